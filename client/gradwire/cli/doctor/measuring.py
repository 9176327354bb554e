"""Checks of an open connection: size of datagrams, rates, and the clock at the other end."""

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
"""Time for the other end to say that it is a doctor, besides some round trips."""

SIZE_SECONDS: Final = 5.0
"""Time for the search for the size of datagrams."""

POLL_SECONDS: Final = 0.02

GOODBYE_SECONDS: Final = 0.5

RATE_MIN: Final = 20e6
"""Bits per second; a lower rate is slow."""

CLOCK_SECONDS_MAX: Final = 1.0

NEEDS_SERVE: Final = "needs `gradwire doctor --serve` at the other end, in place of the master"


class DoctorClient(TimerlessApplication):
    """One connection to a serving doctor, or to a master."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.connected: asyncio.Future[None] = loop.create_future()
        self.hello: asyncio.Future[tuple[dict[str, Any], float]] = loop.create_future()
        """The HELLO of the other end, and our time of day when it arrived."""
        self.done: asyncio.Future[None] = loop.create_future()
        self.received_bytes = 0
        self.received_at = 0.0
        self.filler: Filler | None = None
        self.sent: asyncio.Future[None] = loop.create_future()
        """Done when all FILLs have arrived at the other end."""

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
                        future.exception()  # no warning where nothing waits for this future

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
async def open_connection(
    destination: Destination, transport: str, credentials: Credentials | None
) -> AsyncIterator[tuple[DoctorClient, Connection, UdpDriver | TcpDriver]]:
    """Keep a connection open until the block ends; `ConnectionLostError` if it cannot be opened."""
    # The smallest size of datagrams first, so that each larger one is known to arrive. Keepalives
    # soon after the last packet, so that a lost probe is soon known to be lost.
    config = ConnectionConfig(
        datagram_bytes=DATAGRAM_BYTES_MIN, connect_timeout_seconds=3.0, keepalive_seconds=0.1
    )
    client = DoctorClient()
    connection, driver = dial(destination, config, credentials, client, tcp=transport == "tcp")
    try:
        driver.turn()
        await client.connected
        yield client, connection, driver
        connection.close(EndCode.DONE, "done", monotonic())
        driver.turn()
        await driver.wait_quiet(GOODBYE_SECONDS)
    finally:
        driver.close()


async def measure(
    destination: Destination, transport: str, credentials: Credentials | None
) -> list[Check]:
    """Check what a connection carries."""
    checks = []
    async with open_connection(destination, transport, credentials) as (client, connection, driver):
        hello = await _hello(client, connection)
        if transport == "udp":
            checks.append(judge_size(await _datagram_bytes(connection)))
        if hello is None:
            return [*checks, *unmeasured_at_a_master()]
        said, arrived = hello
        checks.append(judge_other_end(said))
        checks.append(judge_clock(said["unix_time"] - (arrived - (connection.rtt or 0.0) / 2)))
        checks.append(judge_rate("out", *await _upload(client, connection, driver)))
    async with open_connection(destination, transport, credentials) as (client, connection, driver):
        checks.append(judge_rate("in", *await _download(client, connection, driver)))
    return checks


def unmeasured_at_a_master() -> list[Check]:
    """Return, as unmeasured, the checks that need a doctor at the other end."""
    return [
        Check(name, State.UNMEASURED, NEEDS_SERVE)
        for name in ("other end", "clock", "rate out", "rate in")
    ]


def judge_size(size: int) -> Check:
    """Say which size of datagrams arrives."""
    figures = {"datagram_bytes": size}
    text = f"datagrams of {size} bytes arrive"
    check = Check("path", State.OK, text, figures=figures)
    if size >= DATAGRAM_BYTES:
        return check
    return check.slow(
        f"look for a tunnel or VPN on the way and raise its MTU to {DATAGRAM_BYTES + 48} or more; "
        f"else set datagram_bytes={size}, which saves the search for it at every start",
        text=f"{text}, and none of {DATAGRAM_BYTES}",
    )


def judge_other_end(hello: dict[str, Any]) -> Check:
    """Say which version runs at the other end."""
    return Check("other end", State.OK, f"gradwire {hello['gradwire']}", figures=hello)


def judge_clock(ahead: float) -> Check:
    """Say how much the other end's clock is ahead of ours."""
    figures = {"ahead_seconds": ahead}
    text = f"the other end's is {abs(ahead):.3g} s {'ahead' if ahead >= 0 else 'behind'}"
    check = Check("clock", State.OK, text, figures=figures)
    if abs(ahead) <= CLOCK_SECONDS_MAX:
        return check
    return check.slow(
        "set both clocks by NTP (timedatectl set-ntp true): otherwise times in logs cannot be "
        "compared, and the master refuses a worker whose clock is set back as a replay"
    )


def judge_rate(direction: str, size: int, seconds: float) -> Check:
    """Say which rate a direction carries."""
    name = f"rate {direction}"
    if not size or seconds <= 0:
        return Check(
            name,
            State.BROKEN,
            f"nothing of {RATE_BYTES / 2**20:g} MiB arrived in {RATE_SECONDS:g} s",
            "handshakes pass, data does not: look for a firewall that limits UDP, and see the line "
            "`path`",
            {"bits_per_second": 0.0, "bytes": size},
        )
    rate = 8 * size / seconds
    text = f"{rate / 1e6:.3g} Mbit/s ({size / 2**20:.3g} MiB in {seconds:.2g} s)"
    figures = {"bits_per_second": rate, "bytes": size, "seconds": seconds}
    check = Check(name, State.OK, text, figures=figures)
    if rate >= RATE_MIN:
        return check
    return check.slow(
        f"`gradwire estimate --link {max(rate / 1e6, 0.01):.2g}Mbit ...` says how many workers and "
        "which density it carries"
    )


async def _hello(
    client: DoctorClient, connection: Connection
) -> tuple[dict[str, Any], float] | None:
    """Return the HELLO of the other end, and when it arrived; None from a master."""
    seconds = HELLO_SECONDS + 4 * (connection.rtt or 0.0)
    try:
        return await asyncio.wait_for(asyncio.shield(client.hello), seconds)
    except TimeoutError:
        return None


async def _datagram_bytes(connection: Connection) -> int:
    """Return the largest size of datagrams that arrive, after the search for it."""
    sizes = connection.sender.sizes
    until = monotonic() + SIZE_SECONDS
    while (now := monotonic()) < until:
        again = sizes.next_timer
        if not sizes.probing and (again is None or again > now + SIZE_SECONDS):
            break
        await asyncio.sleep(POLL_SECONDS)
    return sizes.current


async def _upload(
    client: DoctorClient, connection: Connection, driver: UdpDriver | TcpDriver
) -> tuple[int, float]:
    """Return how many bytes have arrived at the other end, in how many seconds."""
    client.filler = Filler(connection, monotonic())
    client.filler.fill(monotonic())
    driver.turn()
    await _wait(client.sent, 2 * RATE_SECONDS)
    return client.filler.delivered_bytes, client.filler.seconds


async def _download(
    client: DoctorClient, connection: Connection, driver: UdpDriver | TcpDriver
) -> tuple[int, float]:
    """Return how many bytes have arrived here, in how many seconds."""
    began = monotonic()
    connection.send(CONTROL_STREAM, 0, TalkKind.ASK, b"?", Priority.CONTROL)
    driver.turn()
    await _wait(client.done, 2 * RATE_SECONDS)
    return client.received_bytes, client.received_at - began


async def _wait(future: "asyncio.Future[None]", seconds: float) -> None:
    try:
        await asyncio.wait_for(asyncio.shield(future), seconds)
    except TimeoutError:
        return  # what has arrived until now counts
