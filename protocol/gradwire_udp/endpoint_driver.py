"""`EndpointDriver`: what all drivers of an endpoint do alike, whatever carries its packets.

What it does comes in turns: the application hears of events, trains leave, the timer is set. Nor
does sending go on for long before the rest of the event loop has its chance: an endpoint with much
to send would else be deaf for acknowledgements meanwhile.
"""

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from time import monotonic
from typing import Final, Protocol

from gradwire_protocol import Address, Connection, Event
from gradwire_protocol.connection.train import Train
from gradwire_udp.process import keep_freed_memory
from gradwire_udp.timers import Timer

TRAINS_PER_TURN_MAX: Final = 16
"""Trains sent before the rest of the loop has its turn: up to 1 MB."""

BLOCKED_SECONDS: Final = 0.001
"""While the socket takes nothing, the endpoint's timer is not asked more often than this: it is
due all the time, because something is to be sent."""


class Driven(Protocol):
    """What is driven: a `gradwire_protocol.Endpoint`."""

    def __len__(self) -> int:
        """Return the number of connections, goodbyes under way included."""

    def receive(
        self, view: memoryview, segment: int, address: Address, ecn: int, now: float, /
    ) -> None:
        """Take in what one read brought; the view is used up on return."""

    def next_event(self) -> tuple[Connection, Event] | None:
        """Return what happened next, until there is nothing left to tell."""

    def next_train(self, now: float, /) -> Train | None:
        """Return what has to leave; its buffers are valid until the next call."""

    def on_blocked(self, now: float, /) -> None:
        """Note that the socket takes no more."""

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""

    def handle_timer(self, now: float, /) -> None:
        """Act on every deadline at or before `now`."""


class Application(Protocol):
    """What sits on top of an endpoint."""

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act on what a connection reports."""

    def handle_timer(self, now: float) -> None:
        """Act on every deadline at or before `now`."""

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""


class EndpointDriver(ABC):
    """Drives an endpoint until it is closed.

    Parameters
    ----------
    endpoint : Driven
        An `Endpoint`.
    application : Application
    loop : asyncio.AbstractEventLoop
        Where it runs; all methods have to be called on its thread.
    """

    def __init__(
        self, endpoint: Driven, application: Application, loop: asyncio.AbstractEventLoop
    ) -> None:
        keep_freed_memory()
        self._endpoint = endpoint
        self._application = application
        self._loop = loop
        self._timer = Timer(loop, self._fire)
        self._blocked = False
        """Whether no train can be taken now; who ends that calls `turn`."""
        self._turn_scheduled = False
        self._closed = False
        self._quiet: asyncio.Future[None] | None = None

    def now(self) -> float:
        """Return the time of endpoint and application.

        Not that of the loop: uvloop's stands still for as long as a round takes.
        """
        return monotonic()

    def turn(self) -> None:
        """Do all there is to do; to be called after telling endpoint or application something.

        Where there is much, some of it is done when the rest of the loop has had its turn.
        """
        if self._closed:
            return
        if not self._report_events(monotonic()):
            return
        for _ in range(TRAINS_PER_TURN_MAX):
            if self._blocked:
                break
            now = monotonic()
            train = self._endpoint.next_train(now)
            if train is None:
                break
            self._send(train)
            if not self._report_events(now):
                return
        else:
            self._turn_soon()
        self._set_timer(monotonic())
        if self._quiet is not None and not self._quiet.done() and self._is_quiet():
            self._quiet.set_result(None)

    async def wait_quiet(self, timeout: float) -> None:  # noqa: ASYNC109
        """Wait until all connections are over, goodbyes included, at most `timeout` seconds."""
        if not self._is_quiet():
            self._quiet = self._quiet or self._loop.create_future()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._quiet), timeout)

    def close(self) -> None:
        """Stop and close what carries the packets, whatever is still under way."""
        if not self._closed:
            self._closed = True
            self._timer.close()
            self._close()

    @abstractmethod
    def _send(self, train: Train) -> None:
        """Send a train, or keep it."""

    @abstractmethod
    def _close(self) -> None:
        """Close everything."""

    def _is_quiet(self) -> bool:
        """Return whether nothing is under way."""
        return not len(self._endpoint)

    def _own_deadline(self) -> float | None:
        """Return when `_fire` has to be called for a reason that is the driver's own."""
        return None

    def _report_events(self, now: float) -> bool:
        """Let the application hear of everything; return whether to go on."""
        while (item := self._endpoint.next_event()) is not None:
            self._application.handle_event(*item, now)
        return not self._closed

    def _turn_soon(self) -> None:
        """Have another turn in the loop's next round."""
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn_now)

    def _turn_now(self) -> None:
        self._turn_scheduled = False
        self.turn()

    def _set_timer(self, now: float) -> None:
        timers = (
            self._endpoint.next_timer(), self._application.next_timer(), self._own_deadline()
        )  # fmt: skip
        deadline = min((t for t in timers if t is not None), default=None)
        if deadline is not None and self._blocked:
            deadline = max(deadline, now + BLOCKED_SECONDS)
        self._timer.set(deadline)

    def _fire(self) -> None:
        now = monotonic()
        self._endpoint.handle_timer(now)
        self._report_events(now)
        self._application.handle_timer(now)
        self.turn()
