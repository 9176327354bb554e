"""Probes of a master: handshakes that end with its answer, and connections over TCP.

The answer shows that the key is accepted, and how long the round trip takes. Only the packet after
it opens the connection at a master, which then closes an older one with the same key. So a probe
disturbs no worker with this key.
"""

import asyncio
import os
from dataclasses import dataclass
from time import monotonic
from typing import Final

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
from gradwire_udp.sockets import Destination, wildcard

ANSWER_SECONDS: Final = 3.0
"""Time for one answer."""

PROBES: Final = 100
PROBE_SECONDS: Final = 0.1
"""Between two of them; a master answers twice this rate from one host."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one handshake."""

    seconds: float | None
    """From the first INIT to the answer; None without an answer."""
    sent: int
    """Datagrams sent until the answer, or until the handshake was given up."""
    reason: str = ""
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
        if self.udp.seconds is not None:
            return "udp"
        return "tcp" if self.tcp is not None and self.tcp.seconds is not None else None


async def probe(destination: Destination, credentials: Credentials | None) -> Reached:
    """Find out which transports one address answers."""
    port, udp = await asyncio.gather(_tcp_port(destination), handshake(destination, credentials))
    tcp = None
    if udp.seconds is None and port == "open":
        tcp = await handshake(destination, credentials, tcp=True)
    return Reached(destination, udp, tcp, port)


async def repeat_handshake(
    destination: Destination, credentials: Credentials | None
) -> list[Answer]:
    """Do `PROBES` handshakes over UDP."""
    answers = []
    for _ in range(PROBES):
        answers.append(await handshake(destination, credentials))
        await asyncio.sleep(PROBE_SECONDS)
    return answers


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
    began = monotonic()
    driver: TcpDriver | UdpDriver
    try:
        if tcp:
            driver = TcpDriver(endpoint, application, loop, TcpCounters())
            endpoint.connect(driver.dial(address, family), began)
        else:
            sock = open_socket(wildcard(family), family)
            driver = UdpDriver(sock, endpoint, application, loop, SocketCounters())
            endpoint.connect(address, began)
    except OSError as error:
        return Answer(None, 0, error.strerror or str(error))
    application.driver = driver
    driver.turn()
    ended, event = await application.over
    sent = 1 if isinstance(driver, TcpDriver) else driver.counters.datagrams_sent
    if isinstance(event, Disconnected):
        return Answer(None, sent, event.reason, event.code)
    return Answer(ended - began, sent)


class _Handshake:
    """An application that closes its driver at the first event."""

    def __init__(self) -> None:
        self.over: asyncio.Future[tuple[float, Event]] = asyncio.get_running_loop().create_future()
        self.driver: UdpDriver | TcpDriver | None = None

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Note the first event, and send nothing more."""
        if isinstance(event, Connected | Disconnected) and not self.over.done():
            self.over.set_result((now, event))
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
