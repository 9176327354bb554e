"""One end of a connection over a real socket: a driver, an endpoint, an application."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from inspect import Parameter, signature
from random import Random
from typing import Any

import pytest

from gradwire_protocol import (
    Address,
    Connected,
    Connection,
    ConnectionConfig,
    Credentials,
    Disconnected,
    Endpoint,
    Event,
    MessageDelivered,
    MessageReceived,
    Priority,
)
from gradwire_udp import SocketCounters, UdpDriver, open_socket
from gradwire_udp.endpoint_driver import EndpointDriver
from support.loops import LOOPS_BY_NAME
from support.tiers import variants
from support.waiting import until

LOOPS = pytest.mark.parametrize("kind", variants("uvloop", "asyncio"))
CODE = 64


_closing: list[Callable[[], None]] = []


def close_in_the_end(close: Callable[[], None]) -> None:
    """Let `run_on` call this when its test is over, whether it passes or fails."""
    _closing.append(close)


def run_on(kind: str, test: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine on a loop of a kind, and close every side that it made."""

    async def run() -> None:
        try:
            await test()
        finally:
            while _closing:
                _closing.pop()()

    with asyncio.Runner(loop_factory=LOOPS_BY_NAME[kind]) as runner:
        runner.run(run())


def on_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a test of a coroutine: `run_on` runs it on loops of every kind."""

    @wraps(test)
    def run(kind: str, **fixtures: Any) -> None:
        run_on(kind, partial(test, **fixtures))

    added = Parameter("kind", Parameter.KEYWORD_ONLY)
    parameters = [*signature(test).parameters.values(), added]
    vars(run)["__signature__"] = signature(test).replace(parameters=parameters)
    made: Callable[..., None] = LOOPS(run)
    return made


class Alarm:
    """The timer of an application: it fires once at its deadline, and that is written down."""

    def __init__(self) -> None:
        self.deadline: float | None = None
        self.fired_at: list[float] = []

    def handle_timer(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self.fired_at.append(now)

    def next_timer(self) -> float | None:
        return self.deadline


class Keeper(Alarm):
    """An endpoint, and an application that keeps what it hears; what drives it is added."""

    driver: EndpointDriver

    def __init__(
        self,
        config: ConnectionConfig,
        connections_max: int,
        credentials: Credentials | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__()
        self.connection: Connection | None = None
        self.received: list[tuple[int, int, bytes]] = []
        self.delivered: list[tuple[int, int]] = []
        self.ended: Disconnected | None = None
        self.endpoint = Endpoint(
            config,
            random_bytes=random_bytes,
            connections_max=connections_max,
            credentials=credentials,
        )
        close_in_the_end(lambda: self.driver.close())

    # What the driver asks of an application.

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        match event:
            case Connected():
                self.connection = connection
            case MessageReceived():
                self.received.append((event.stream, event.number, bytes(event.payload)))
                connection.release(event.charge)
            case MessageDelivered():
                self.delivered.append((event.stream, event.number))
            case Disconnected():
                self.ended = event
            case _:
                pass

    # What a test wants.

    def send(self, messages: list[tuple[int, int, bytes]]) -> None:
        assert self.connection is not None
        for stream, number, payload in messages:
            self.connection.send(stream, number, 1, payload, Priority.UPDATE)
        self.driver.turn()

    def hang_up(self, reason: str = "bye") -> None:
        assert self.connection is not None
        self.connection.close(CODE, reason, self.driver.now())
        self.driver.turn()


class Side(Keeper):
    """A UDP socket, and what sits on top of it."""

    driver: UdpDriver

    def __init__(
        self,
        *,
        accepts: bool = False,
        sock: socket.socket | None = None,
        config: ConnectionConfig | None = None,
        credentials: Credentials | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__(config or ConnectionConfig(), int(accepts), credentials, random_bytes)
        self.socket = sock or open_socket(("127.0.0.1", 0))
        self.counters = SocketCounters()
        loop = asyncio.get_running_loop()
        self.driver = UdpDriver(self.socket, self.endpoint, self, loop, self.counters)

    def dial(self, address: Address) -> None:
        self.endpoint.connect(address, self.driver.now())
        self.driver.turn()


async def connected(one: Side, other: Side) -> None:
    """Let one side dial the other, and wait until both know it."""
    one.dial(other.driver.address)
    await until(lambda: one.connection and other.connection, "the connection")


async def connected_sides() -> tuple[Side, Side]:
    """Return two sides, one of which has dialled the other."""
    one, other = Side(), Side(accepts=True)
    await connected(one, other)
    return one, other


def messages(seed: int, n: int, sizes: list[int]) -> list[tuple[int, int, bytes]]:
    random = Random(seed)
    return [(number % 3, number, random.randbytes(random.choice(sizes))) for number in range(n)]
