"""`EndpointDriver`: the base of all drivers of an endpoint, over UDP or TCP.

A driver works in turns: it reports events to the application, sends trains, and sets the timer. A
turn sends a limited number of trains before the rest of the event loop runs: an endpoint with much
to send would receive no acknowledgements otherwise.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from contextlib import suppress
from time import monotonic, thread_time
from typing import Final, Protocol

from gradwire_protocol import Connection, Endpoint, Event, State
from gradwire_protocol.connection.timers import earliest
from gradwire_protocol.connection.train import Train
from gradwire_udp.process import keep_freed_memory
from gradwire_udp.timers import Timer

TRAINS_PER_TURN_MAX: Final = 16
"""Trains sent before the rest of the event loop runs: up to 1 MB."""

REST_RATIO: Final = 3.0
"""After its timer has fired, the application is left alone for so many times as long as that took
the processor, with what was then sent.

A master passes on what has come, and each pass costs something for each worker. So passes take a
quarter of the time at most, and where they take long, more updates come together in each."""

REST_SECONDS_MAX: Final = 0.1
"""Longer than that nothing waits for its timer."""

BLOCKED_SECONDS: Final = 0.001
"""While the socket takes nothing, the timer fires no more often than this: the endpoint has
something to send, so its timer is due all the time."""


class Application(Protocol):
    """The program that uses an endpoint, as a driver sees it."""

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act on an event of a connection."""

    def handle_timer(self, now: float) -> None:
        """Act on every deadline at or before `now`."""

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""


class EndpointDriver(ABC):
    """Drives an endpoint until it is closed; all methods have to be called on the loop's thread."""

    def __init__(
        self, endpoint: Endpoint, application: Application, loop: asyncio.AbstractEventLoop
    ) -> None:
        keep_freed_memory()
        self._endpoint = endpoint
        self._application = application
        self._loop = loop
        self._timer = Timer(loop, self._fire)
        self._blocked = False
        """Whether the socket takes no train now; the subclass ends that, and calls `turn`."""
        self._rests_until = -math.inf
        """Before that the application's timer does not fire."""
        self._turn_scheduled = False
        self._closed = False
        self._quiet: asyncio.Future[None] | None = None

    def now(self) -> float:
        """Return the time that endpoint and application are given.

        It is not the loop's: that of uvloop stands still during a round.
        """
        return monotonic()

    def turn(self) -> None:
        """Report events, send trains, and set the timer; call it after each use of the endpoint.

        What the application has to do at once, when it has heard of all events, it does before
        anything is sent. If there is much to send, the rest is sent after the rest of the loop has
        run.
        """
        if self._closed:
            return
        now = monotonic()
        if not self._report_events(now):
            return
        due = self._application.next_timer()
        is_due = due is not None and max(due, self._rests_until) <= now
        began = thread_time()  # where others have the processor, that is no work
        if is_due:
            self._application.handle_timer(now)
        if not self._send_trains():
            return
        now = monotonic()
        if is_due:
            rest = REST_RATIO * (thread_time() - began)
            self._rests_until = now + min(rest, REST_SECONDS_MAX)
        self._set_timer(now)
        if self._quiet is not None and not self._quiet.done() and self._is_quiet():
            self._quiet.set_result(None)

    def _send_trains(self) -> bool:
        """Send trains; return whether the driver is still open."""
        for _ in range(TRAINS_PER_TURN_MAX):
            if self._blocked or self._closed:
                break
            now = monotonic()
            train = self._endpoint.next_train(now)
            if train is None:
                break
            self._send(train)
            if not self._report_events(now):
                break
        else:
            self._turn_soon()
        return not self._closed

    async def wait_quiet(self, timeout: float) -> None:  # noqa: ASYNC109
        """Wait until our side or the peer's has closed each connection, at most `timeout` seconds.

        Our CLOSE is repeated for a while, and that is waited for. After the peer's CLOSE nothing
        is sent.
        """
        if not self._is_quiet():
            self._quiet = self._quiet or self._loop.create_future()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._quiet), timeout)

    def close(self) -> None:
        """Close the sockets, even if packets are still to be sent."""
        if not self._closed:
            self._closed = True
            self._timer.close()
            self._close()

    @abstractmethod
    def _send(self, train: Train) -> None:
        """Send a train, or store it until the socket takes it."""

    @abstractmethod
    def _close(self) -> None:
        """Close the sockets."""

    def _is_quiet(self) -> bool:
        """Return whether no connection has anything left to send."""
        return all(each.state is State.DRAINING for each in self._endpoint.connections())

    def _own_deadline(self) -> float | None:
        """Return when `_fire` has to be called for the driver itself, or None."""
        return None

    def _report_events(self, now: float) -> bool:
        """Report all events to the application; return whether the driver is still open."""
        while (item := self._endpoint.next_event()) is not None:
            self._application.handle_event(*item, now)
        return not self._closed

    def _turn_soon(self) -> None:
        """Schedule a turn in the loop's next round."""
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn_now)

    def _turn_now(self) -> None:
        self._turn_scheduled = False
        self.turn()

    def _set_timer(self, now: float) -> None:
        due = self._application.next_timer()
        if due is not None:
            due = max(due, self._rests_until)
        timers = self._endpoint.next_timer(), due, self._own_deadline()
        deadline = earliest(timers)
        if deadline is not None and self._blocked:
            deadline = max(deadline, now + BLOCKED_SECONDS)
        self._timer.set(deadline)

    def _fire(self) -> None:
        now = monotonic()
        self._endpoint.handle_timer(now)
        self.turn()
