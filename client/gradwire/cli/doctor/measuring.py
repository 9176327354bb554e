"""What an open connection carries: size of datagrams, rates, and the clock at the other end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic, time
from typing import Any, Final

from gradwire.cli.doctor.checks import Check, State
from gradwire.cli.doctor.reach import Destination, dial
from gradwire.cli.doctor.talk import (
    CONTROL_STREAM,
    RATE_BYTES,
    RATE_SECONDS,
    Filler,
    TalkKind,
    TimerlessApplication,
)
from gradwire.errors import ConnectionLostError
from gradwire_protocol import (
    Connected,
    Connection,
    ConnectionConfig,
    Credentials,
    Disconnected,
    Event,
    MessageDelivered,
    MessageReceived,
    Priority,
)
from gradwire_protocol.limits import DATAGRAM_BYTES, DATAGRAM_BYTES_MIN
from gradwire_protocol.messages.kinds import EndCode
from gradwire_udp import TcpDriver, UdpDriver

HELLO_SECONDS: Final = 1.0
"""How long the other end may take to say that it is a doctor, besides some round trips."""

SIZE_SECONDS: Final = 5.0
"""How long the search for the size of datagrams may take."""

POLL_SECONDS: Final = 0.02

GOODBYE_SECONDS: Final = 0.5

RATE_MIN: Final = 20e6
"""Bits per second below which it is worth a look."""

CLOCK_SECONDS_MAX: Final = 1.0

NEEDS_SERVE: Final = "needs `gradwire doctor --serve` at the other end, in place of the master"


class Talker(TimerlessApplication):
    """One connection to a doctor that serves, or to a master."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.connected: asyncio.Future[None] = loop.create_future()
        self.hello: asyncio.Future[tuple[dict[str, Any], float]] = loop.create_future()
        """What the other end says of itself, and our time of day at which it came."""
        self.done: asyncio.Future[None] = loop.create_future()
        self.received_bytes = 0
        self.received_at = 0.0
        self.filler: Filler | None = None
        self.sent: asyncio.Future[None] = loop.create_future()
        """Whether all FILLs have arrived."""

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act on what the connection reports."""
        match event:
            case Connected():
                self.connected.set_result(None)
            case MessageReceived():
                self._receive(connection, event, now)
            case MessageDelivered() if self.filler is not None:
                self.filler.on_delivered(event.number, now)
                if self.filler.over and not self.sent.done():
                    self.sent.set_result(None)
            case Disconnected():
                lost = ConnectionLostError(f"the connection is over: {event.reason}")
                for future in (self.connected, self.hello, self.done, self.sent):
                    if not future.done():
                        future.set_exception(lost)
                        future.exception()  # not everyone waits for all of them

    def _receive(self, connection: Connection, event: MessageReceived, now: float) -> None:
        connection.release(event.charge)
        if event.kind == TalkKind.FILL:
            self.received_bytes += len(memoryview(event.payload))
            self.received_at = now
        elif event.kind == TalkKind.HELLO and not self.hello.done():
            self.hello.set_result((json.loads(bytes(event.payload)), time()))
        elif event.kind == TalkKind.DONE and not self.done.done():
            self.done.set_result(None)


@asynccontextmanager
async def talking(
    destination: Destination, transport: str, credentials: Credentials | None
) -> AsyncIterator[tuple[Talker, Connection, UdpDriver | TcpDriver]]:
    """Hold an open connection.

    Raises
    ------
    ConnectionLostError
        If it does not come about.
    """
    # It starts with the smallest size, so that each larger one was seen to arrive; and a short
    # silence is asked about, by which a probe is known to be lost soon.
    config = ConnectionConfig(
        datagram_bytes=DATAGRAM_BYTES_MIN, connect_timeout_seconds=3.0, keepalive_seconds=0.1
    )
    talker = Talker()
    connection, driver = dial(destination, config, credentials, talker, tcp=transport == "tcp")
    try:
        driver.turn()
        await talker.connected
        yield talker, connection, driver
        connection.close(EndCode.DONE, "done", monotonic())
        driver.turn()
        await driver.wait_quiet(GOODBYE_SECONDS)
    finally:
        driver.close()


async def measure(
    destination: Destination, transport: str, credentials: Credentials | None
) -> list[Check]:
    """Measure what a connection carries."""
    checks = []
    async with talking(destination, transport, credentials) as (talker, connection, driver):
        hello = await _hello(talker, connection)
        if transport == "udp":
            checks.append(judge_size(await _datagram_bytes(connection)))
        if hello is None:
            return [*checks, *not_by_a_master()]
        said, arrived = hello
        checks.append(judge_other_end(said))
        checks.append(judge_clock(said["unix_time"] - (arrived - (connection.rtt or 0.0) / 2)))
        checks.append(judge_rate("out", *await _upload(talker, connection, driver)))
    async with talking(destination, transport, credentials) as (talker, connection, driver):
        checks.append(judge_rate("in", *await _download(talker, connection, driver)))
    return checks


def not_by_a_master() -> list[Check]:
    """Return the checks that a master takes no part in."""
    return [
        Check(name, State.UNMEASURED, NEEDS_SERVE)
        for name in ("other end", "clock", "rate out", "rate in")
    ]


def judge_size(size: int) -> Check:
    """Say how large datagrams can be."""
    figures = {"datagram_bytes": size}
    text = f"datagrams of {size} bytes arrive"
    check = Check("path", State.OK, text, figures=figures)
    if size >= DATAGRAM_BYTES:
        return check
    return check.slow(
        f"look for a tunnel or VPN on the way and raise its MTU to {DATAGRAM_BYTES + 48} or more; "
        f"else set datagram_bytes={size}, which saves finding that out at every start",
        text=f"{text}, and none of {DATAGRAM_BYTES}",
    )


def judge_other_end(hello: dict[str, Any]) -> Check:
    """Say what runs at the other end."""
    return Check("other end", State.OK, f"gradwire {hello['gradwire']}", figures=hello)


def judge_clock(ahead: float) -> Check:
    """Say how much the other end's clock is ahead of ours."""
    figures = {"ahead_seconds": ahead}
    text = f"the other end's is {abs(ahead):.3g} s {'ahead' if ahead >= 0 else 'behind'}"
    check = Check("clock", State.OK, text, figures=figures)
    if abs(ahead) <= CLOCK_SECONDS_MAX:
        return check
    return check.slow(
        "set both by NTP (timedatectl set-ntp true): lines of logs cannot be compared, and a "
        "worker whose clock is set back is taken for a replay, and not let in"
    )


def judge_rate(direction: str, size: int, seconds: float) -> Check:
    """Say how much a direction carries."""
    name = f"rate {direction}"
    if not size or seconds <= 0:
        return Check(
            name,
            State.BROKEN,
            f"nothing of {RATE_BYTES / 2**20:g} MiB arrived in {RATE_SECONDS:g} s",
            "handshakes pass and data does not: look for a firewall that limits UDP, and at the "
            "line `path`",
            {"bits_per_second": 0.0, "bytes": size},
        )
    rate = 8 * size / seconds
    text = f"{rate / 1e6:.3g} Mbit/s ({size / 2**20:.3g} MiB in {seconds:.2g} s)"
    figures = {"bits_per_second": rate, "bytes": size, "seconds": seconds}
    check = Check(name, State.OK, text, figures=figures)
    if rate >= RATE_MIN:
        return check
    return check.slow(
        f"`gradwire estimate --link {max(rate / 1e6, 0.01):.2g}Mbit ...` says up to how many "
        "workers and what density it carries"
    )


async def _hello(talker: Talker, connection: Connection) -> tuple[dict[str, Any], float] | None:
    """Return what the other end says of itself; None where it is a master."""
    seconds = HELLO_SECONDS + 4 * (connection.rtt or 0.0)
    try:
        return await asyncio.wait_for(asyncio.shield(talker.hello), seconds)
    except TimeoutError:
        return None


async def _datagram_bytes(connection: Connection) -> int:
    """Return the largest size of datagrams that arrive, once the search for it is over."""
    sizes = connection.sender.sizes
    until = monotonic() + SIZE_SECONDS
    while (now := monotonic()) < until:
        again = sizes.next_timer
        if not sizes.probing and (again is None or again > now + SIZE_SECONDS):
            break
        await asyncio.sleep(POLL_SECONDS)
    return sizes.current


async def _upload(
    talker: Talker, connection: Connection, driver: UdpDriver | TcpDriver
) -> tuple[int, float]:
    """Return how many bytes have arrived there, and in how many seconds."""
    talker.filler = Filler(connection, monotonic())
    talker.filler.fill(monotonic())
    driver.turn()
    await _wait(talker.sent, 2 * RATE_SECONDS)
    return talker.filler.delivered_bytes, talker.filler.seconds


async def _download(
    talker: Talker, connection: Connection, driver: UdpDriver | TcpDriver
) -> tuple[int, float]:
    """Return how many bytes have arrived here, and in how many seconds."""
    began = monotonic()
    connection.send(CONTROL_STREAM, 0, TalkKind.ASK, b"?", Priority.CONTROL)
    driver.turn()
    await _wait(talker.done, 2 * RATE_SECONDS)
    return talker.received_bytes, talker.received_at - began


async def _wait(future: "asyncio.Future[None]", seconds: float) -> None:
    try:
        await asyncio.wait_for(asyncio.shield(future), seconds)
    except TimeoutError:
        return  # what has come until now counts
