"""Checks of the path to the other end: names, ports and handshakes.

A handshake here ends with the other end's answer, which shows that the key is accepted, and how
long the round trip takes. Only the packet after it opens the connection at a master, which then
closes an older connection with the same key. So a handshake disturbs no worker with this key.
"""

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, TypeAlias

from gradwire.cli.doctor.checks import Check, State
from gradwire.cli.doctor.talk import TimerlessApplication
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
from gradwire_protocol.wire.close_codes import CloseCode
from gradwire_protocol.wire.packets import VERSION
from gradwire_udp import (
    Application,
    SocketCounters,
    TcpCounters,
    TcpDriver,
    UdpDriver,
    open_socket,
    show_address,
)
from gradwire_udp.sockets import SocketAddress, wildcard

Destination: TypeAlias = tuple[socket.AddressFamily, SocketAddress]

ANSWER_SECONDS: Final = 3.0
"""Time for one answer."""

SAMPLES: Final = 20
SAMPLE_SECONDS: Final = 0.1
"""Between two handshakes; a master answers twice this rate from one host."""

RTT_SECONDS_MAX: Final = 0.1
SPREAD_SECONDS_MIN: Final = 0.005
"""A smaller spread is due to the two processes, not to the path."""


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


class _Handshake(TimerlessApplication):
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


async def probe(destination: Destination, credentials: Credentials | None) -> Reached:
    """Find out which transports one address answers."""
    port, udp = await asyncio.gather(tcp_port(destination), handshake(destination, credentials))
    tcp = None
    if udp.seconds is None and port == "open":
        tcp = await handshake(destination, credentials, tcp=True)
    return Reached(destination, udp, tcp, port)


async def tcp_port(destination: Destination) -> str:
    """Return the state of a TCP port: ``"open"``, ``"refused"`` or ``"silent"``."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(*destination[1][:2])
    except TimeoutError:
        return "silent"
    except OSError as error:
        return "refused" if isinstance(error, ConnectionRefusedError) else "silent"
    writer.close()
    return "open"


async def handshake(
    destination: Destination,
    credentials: Credentials | None,
    *,
    tcp: bool = False,
) -> Answer:
    """Do a handshake with the other end, and send nothing after it."""
    config = ConnectionConfig(
        connect_timeout_seconds=ANSWER_SECONDS, datagram_bytes=DATAGRAM_BYTES_MIN
    )
    application = _Handshake()
    try:
        _, driver = dial(destination, config, credentials, application, tcp=tcp)
    except OSError as error:
        return Answer(None, 0, error.strerror or str(error))
    application.driver = driver
    began = monotonic()
    driver.turn()
    ended, event = await application.over
    sent = (
        driver.counters.packets_sent
        if isinstance(driver, TcpDriver)
        else driver.counters.datagrams_sent
    )
    if isinstance(event, Disconnected):
        return Answer(None, sent, event.reason, event.code)
    return Answer(ended - began, sent)


def dial(
    destination: Destination,
    config: ConnectionConfig,
    credentials: Credentials | None,
    application: Application,
    *,
    tcp: bool,
) -> tuple[Connection, UdpDriver | TcpDriver]:
    """Dial an address; the first `turn` of the returned driver sends a packet.

    `OSError` if this machine cannot open a socket for the address.
    """
    family, address = destination
    loop = asyncio.get_running_loop()
    endpoint = Endpoint(
        config.over_tcp if tcp else config, random_bytes=os.urandom, credentials=credentials
    )
    if tcp:
        over_tcp = TcpDriver(endpoint, application, loop, TcpCounters())
        return endpoint.connect(over_tcp.dial(address, family), monotonic()), over_tcp
    sock = open_socket(wildcard(family), family)
    over_udp = UdpDriver(sock, endpoint, application, loop, SocketCounters())
    return endpoint.connect(address, monotonic()), over_udp


async def repeat_handshake(
    destination: Destination, credentials: Credentials | None
) -> list[Answer]:
    """Do `SAMPLES` handshakes over UDP."""
    answers = []
    for _ in range(SAMPLES):
        answers.append(await handshake(destination, credentials))
        await asyncio.sleep(SAMPLE_SECONDS)
    return answers


def judge_names(text: str, destinations: Sequence[Destination]) -> Check:
    """Say which addresses a name has."""
    shown = [show_address(address) for _, address in destinations]
    return Check("name", State.OK, f"{text} is {', '.join(shown)}", figures={"addresses": shown})


def judge_reached(reached: Sequence[Reached], *, has_key: bool) -> Check:
    """Say which transport the other end answers, at the best of its addresses."""
    best = best_of(reached)
    where = show_address(best.destination[1])
    silent = [show_address(r.destination[1]) for r in reached if r.transport is None]
    figures = {"address": where, "transport": best.transport, "silent": silent, "tcp": best.port}
    beside = f" (nothing at {', '.join(silent)})" if silent and best.transport else ""
    check = Check("port", State.OK, f"UDP is answered at {where}{beside}", figures=figures)
    if best.transport == "udp":
        return check
    if best.transport == "tcp":
        return check.slow(
            "let UDP pass to this port in both directions, in the firewall, the security group and "
            "the container's -p PORT:PORT/udp",
            text=f"only TCP is answered at {where}, UDP is not{beside}",
        )
    answers = [best.udp] if best.tcp is None else [best.udp, best.tcp]
    versions = next((a.reason for a in answers if a.code == CloseCode.VERSION), None)
    if versions is not None:
        return Check(
            "port",
            State.BROKEN,
            f"{where} speaks protocol version {versions}, this gradwire {VERSION}",
            "install the same version of gradwire on both",
            figures,
        )
    if best.port == "open":
        return Check("port", State.BROKEN, *_not_let_in(where, has_key=has_key), figures)
    if best.port == "refused":
        return Check(
            "port",
            State.BROKEN,
            f"nothing listens at TCP {where}, and UDP is not answered",
            "start `gradwire master --listen 0.0.0.0:PORT --key-file run.key` there, or "
            "`gradwire doctor --serve`, and check the port. For a master with --transport udp, "
            "check that the key here is derived from its run key",
            figures,
        )
    return Check(
        "port",
        State.BROKEN,
        f"neither UDP nor TCP is answered at {where}: a firewall, another address, or a host "
        "that is down",
        "ping the host; let UDP and TCP pass to this port",
        figures,
    )


def _not_let_in(where: str, *, has_key: bool) -> tuple[str, str]:
    text = f"something listens at TCP {where}, and answers no handshake"
    if not has_key:
        return f"{text} without a key", (
            "say --key-file: a master with a run key does not answer without a key. Otherwise "
            "something other than gradwire listens there"
        )
    return f"{text} with this key", (
        "the key is derived from another run key, its name is denied, the master has no key at "
        "all, or the clock here was set back: compare the run in the line `key` with that of the "
        "master's key file, and make a new key with `gradwire keygen --worker NAME --from run.key`"
    )


def judge_round_trip(answers: Sequence[Answer]) -> Check:
    """Say how long a round trip takes, and how much that varies."""
    seconds = sorted(a.seconds for a in answers if a.seconds is not None and a.sent == 1)
    if not seconds:
        return Check(
            "round trip",
            State.UNMEASURED,
            f"none of {len(answers)} handshakes was answered at the first try",
        )
    least, median = seconds[0], seconds[len(seconds) // 2]
    spread = seconds[(9 * len(seconds)) // 10 - (len(seconds) % 10 == 0)] - least
    figures = {"least_seconds": least, "median_seconds": median, "spread_seconds": spread}
    text = (
        f"{1e3 * median:.3g} ms, at least {1e3 * least:.3g}, nine of ten within "
        f"{1e3 * spread:.3g} more ({len(seconds)} handshakes)"
    )
    check = Check("round trip", State.OK, text, figures=figures)
    if median > RTT_SECONDS_MAX:
        return check.slow(
            "run the master closer to the workers; `gradwire estimate --rtt` says what it costs"
        )
    if spread > max(SPREAD_SECONDS_MIN, 2 * least):
        return check.slow(
            "something on the way queues, or a machine is busy: look for other traffic, Wi-Fi, or "
            "processes that take all cores"
        )
    return check


def judge_loss(answers: Sequence[Answer]) -> Check:
    """Say how many datagrams of the handshakes, or answers to them, were lost."""
    sent = sum(a.sent for a in answers)
    answered = sum(a.seconds is not None for a in answers)
    lost = sent - answered
    figures = {"sent": sent, "lost": lost}
    text = f"{lost} of {sent} datagrams, there or back"
    check = Check("loss", State.OK, text, figures=figures)
    if not lost:
        return check
    return check.slow(
        "gradwire keeps its rate up to some percent; look for a full link, Wi-Fi or a bad cable"
    )


def best_of(reached: Sequence[Reached]) -> Reached:
    """Return the address with the best transport, then the best TCP port; the first of equals."""
    order = ("udp", "tcp", None)
    ports = ("open", "refused", "silent")
    return min(reached, key=lambda r: (order.index(r.transport), ports.index(r.port)))
