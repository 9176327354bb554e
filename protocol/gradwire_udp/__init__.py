"""The only package with sockets: it drives an `Endpoint` and its application on an event loop.

`DatagramSocket` carries many datagrams with one system call, `Timer` is precise to some tens of
microseconds, and `UdpDriver` connects both to an endpoint. `TcpDriver` is for networks that block
UDP. `Drivers` runs several drivers for one application.
"""

from gradwire_udp.counters import SocketCounters, TcpCounters
from gradwire_udp.drivers import Drivers, new_event_loop
from gradwire_udp.endpoint_driver import Application
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
from gradwire_udp.tcp.driver import TcpDriver
from gradwire_udp.tcp.peer import TcpAddress
from gradwire_udp.timers import Timer
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
