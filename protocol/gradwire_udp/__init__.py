"""The one place with sockets: drives an `Endpoint` and its application on an event loop.

`DatagramSocket` makes one system call carry many datagrams, `Timer` calls back to some tens of
microseconds, and `UdpDriver` ties both to an endpoint. `TcpDriver` does so for networks that let no
UDP through, and `Drivers` holds several together.
"""

from gradwire_udp.drivers import Drivers
from gradwire_udp.endpoint_driver import Application
from gradwire_udp.loops import new_event_loop
from gradwire_udp.sockets import (
    local_address_in,
    open_listener,
    open_socket,
    resolve,
    resolve_all,
    show_address,
    show_addresses,
    source_of,
    split_address,
)
from gradwire_udp.tcp.counters import TcpCounters
from gradwire_udp.tcp.driver import TcpDriver
from gradwire_udp.tcp.peer import TcpAddress
from gradwire_udp.timers import Timer
from gradwire_udp.udp.counters import SocketCounters
from gradwire_udp.udp.datagram_socket import DatagramSocket, Read
from gradwire_udp.udp.driver import UdpDriver
from gradwire_udp.udp.kernel_features import Features

__all__ = [
    "Application",
    "DatagramSocket",
    "Drivers",
    "Features",
    "Read",
    "SocketCounters",
    "TcpAddress",
    "TcpCounters",
    "TcpDriver",
    "Timer",
    "UdpDriver",
    "local_address_in",
    "new_event_loop",
    "open_listener",
    "open_socket",
    "resolve",
    "resolve_all",
    "show_address",
    "show_addresses",
    "source_of",
    "split_address",
]
