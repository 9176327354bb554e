"""Probes of a master: handshakes that end with its answer, and connections over TCP.

The answer shows that the key is accepted. Only the packet after it opens the connection at a
master, which then closes an older one with the same key. So a probe disturbs no worker with this
key.
"""

import asyncio
import os
import socket
from dataclasses import dataclass
from time import monotonic
from typing import Final, TypeAlias

from gradwire_protocol import (
    Connected,
    Connection,
    ConnectionConfig,
    Credentials,
    Disconnected,
    Endpoint,
    Event,
)
from gradwire_protocol.limits import DATAGRAM_BYTES_MIN
from gradwire_protocol.wire.frames import CloseCode
from gradwire_udp import SocketCounters, TcpCounters, TcpDriver, UdpDriver, open_socket
from gradwire_udp.sockets import SocketAddress, wildcard

Destination: TypeAlias = tuple[socket.AddressFamily, SocketAddress]

ANSWER_SECONDS: Final = 3.0
"""Time for one answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one handshake."""

    came: bool
    reason: str = ""
    """Why none came."""
    code: int = CloseCode.UNREACHABLE


@dataclass(frozen=True, slots=True)
class Reached:
    """What answers at one address."""

    destination: Destination
    udp: Answer
    tcp: Answer | None
    """None where UDP was answered, or the TCP port is not open."""
    port: str
    """State of the TCP port: ``"open"``, ``"refused"`` or ``"silent"``."""

    @property
    def transport(self) -> str | None:
        """Transport that was answered: ``"udp"``, ``"tcp"`` or None."""
        if self.udp.came:
            return "udp"
        return "tcp" if self.tcp is not None and self.tcp.came else None


async def probe(destination: Destination, credentials: Credentials | None) -> Reached:
    """Find out which transports one address answers."""
    port, udp = await asyncio.gather(_tcp_port(destination), handshake(destination, credentials))
    tcp = None
    if not udp.came and port == "open":
        tcp = await handshake(destination, credentials, tcp=True)
    return Reached(destination, udp, tcp, port)


async def handshake(
    destination: Destination, credentials: Credentials | None, *, tcp: bool = False
) -> Answer:
    """Do a handshake with a master, and send nothing after it."""
    family, address = destination
    config = ConnectionConfig(
        connect_timeout_seconds=ANSWER_SECONDS, datagram_bytes=DATAGRAM_BYTES_MIN
    )
    endpoint = Endpoint(
        config.over_tcp if tcp else config, random_bytes=os.urandom, credentials=credentials
    )
    loop, application = asyncio.get_running_loop(), _Handshake()
    driver: TcpDriver | UdpDriver
    try:
        if tcp:
            driver = TcpDriver(endpoint, application, loop, TcpCounters())
            endpoint.connect(driver.dial(address, family), monotonic())
        else:
            sock = open_socket(wildcard(family), family)
            driver = UdpDriver(sock, endpoint, application, loop, SocketCounters())
            endpoint.connect(address, monotonic())
    except OSError as error:
        return Answer(False, error.strerror or str(error))
    application.driver = driver
    driver.turn()
    event = await application.over
    if isinstance(event, Disconnected):
        return Answer(False, event.reason, event.code)
    return Answer(True)


class _Handshake:
    """An application that closes its driver at the first event."""

    def __init__(self) -> None:
        self.over: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self.driver: UdpDriver | TcpDriver | None = None

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Note the first event, and send nothing more."""
        if isinstance(event, Connected | Disconnected) and not self.over.done():
            self.over.set_result(event)
            assert self.driver is not None
            self.driver.close()

    def handle_timer(self, now: float) -> None:
        """Do nothing."""

    def next_timer(self) -> float | None:
        """Return None."""
        return None


async def _tcp_port(destination: Destination) -> str:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(*destination[1][:2])
    except TimeoutError:
        return "silent"
    except OSError as error:
        return "refused" if isinstance(error, ConnectionRefusedError) else "silent"
    writer.close()
    return "open"
