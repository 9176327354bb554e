"""`Drivers`: one application for several endpoints, each with its own driver.

An event of one endpoint may give another endpoint something to send, as in a master that relays: so
after every event the other drivers get a turn, too.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TypeVar

from gradwire_protocol import Connection, Event
from gradwire_udp.endpoint_driver import Application, EndpointDriver


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop; of asyncio where uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


AnyDriver = TypeVar("AnyDriver", bound=EndpointDriver)


class Drivers:
    """Several drivers, used as one."""

    def __init__(self, application: Application, loop: asyncio.AbstractEventLoop) -> None:
        self._application = application
        self._loop = loop
        self._drivers: list[EndpointDriver] = []
        self._turn_scheduled = False
        self._reported: set[int] = set()

    def add(self, make: Callable[[Application], AnyDriver]) -> AnyDriver:
        """Add a driver; `make` returns it, given the application that the driver has to report to.

        A driver has to take a turn of its own after each report.
        """
        index = len(self._drivers)
        on_report = partial(self._on_report, index)
        driver = make(_SharedApplication(self._application, on_report, has_timers=not index))
        self._drivers.append(driver)
        return driver

    def now(self) -> float:
        """Return the time that endpoints and application are given."""
        return monotonic()

    def turn(self) -> None:
        """Let every driver take a turn."""
        for driver in self._drivers:
            driver.turn()

    async def wait_quiet(self, timeout: float) -> None:  # noqa: ASYNC109
        """Wait until no connection has anything left to send, at most `timeout` seconds."""
        deadline = monotonic() + timeout
        for driver in self._drivers:
            await driver.wait_quiet(max(deadline - monotonic(), 0.0))

    def close(self) -> None:
        """Close every driver."""
        for driver in self._drivers:
            driver.close()

    def _on_report(self, index: int) -> None:
        """Schedule a turn of the other drivers, after that of driver `index`."""
        self._reported.add(index)
        if len(self._drivers) > 1 and not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn_others)

    def _turn_others(self) -> None:
        self._turn_scheduled = False
        reported, self._reported = self._reported, set()
        for index, driver in enumerate(self._drivers):
            if reported != {index}:
                driver.turn()


class _SharedApplication:
    """The application as one of several drivers sees it: only the first one runs its timers."""

    def __init__(
        self, application: Application, on_report: Callable[[], None], *, has_timers: bool
    ) -> None:
        self._application = application
        self._on_report = on_report
        self._has_timers = has_timers

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        self._application.handle_event(connection, event, now)
        self._on_report()

    def handle_timer(self, now: float) -> None:
        if self._has_timers:
            self._application.handle_timer(now)
            self._on_report()

    def next_timer(self) -> float | None:
        return self._application.next_timer() if self._has_timers else None
