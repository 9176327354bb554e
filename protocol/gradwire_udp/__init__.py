"""The one place with UDP sockets: drives an `Endpoint` and its application on an event loop."""

from gradwire_udp.driver import Application, SocketCounters, UdpDriver
from gradwire_udp.loops import new_event_loop
from gradwire_udp.sockets import local_address_in, open_socket, resolve, show_address, split_address

__all__ = [
    "Application",
    "SocketCounters",
    "UdpDriver",
    "local_address_in",
    "new_event_loop",
    "open_socket",
    "resolve",
    "show_address",
    "split_address",
]
