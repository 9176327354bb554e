"""Pages that take time to make: in small steps, once for all waiting clients, and not too often."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from gradwire_server.http.limits import FAILED_PAGE_SECONDS, STEP_SECONDS_MAX

logger: Final = logging.getLogger("gradwire.http")


class PageFailedError(Exception):
    """A page could not be made; the log says why."""


class Budget:
    """The time that several pages may take together: one after the other is made, with pauses.

    Parameters
    ----------
    load_max : float
        Part of the time that may be spent.
    """

    def __init__(self, load_max: float) -> None:
        self._load_max = load_max
        self._turn = asyncio.Lock()
        self._free_at = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Callable[[float], None]]:
        """Wait for a turn; yield a function to call with the seconds that were spent."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(max(self._free_at - loop.time(), 0.0))

            def note_spent(seconds: float) -> None:
                self._free_at = loop.time() + seconds * (1 / self._load_max - 1)

            yield note_spent


class SharedPage:
    """A page that is made when a client asks; many requests share one that is a little older.

    Parameters
    ----------
    parts : callable
        Returns an iterator that makes the page part by part. The event loop runs between parts.
    load_max : float
        Part of the time that may be spent on making it.
    budget : Budget, optional
        Of the time for making it and others.
    """

    def __init__(
        self,
        path: str,
        parts: Callable[[], Iterator[bytes]],
        *,
        load_max: float,
        budget: Budget | None = None,
    ) -> None:
        self._path = path
        self._parts = parts
        self._load_max = load_max
        self._budget = budget
        self._made: bytes | None = None
        self._good_until = 0.0
        self._making: asyncio.Task[None] | None = None
        self._has_turn = False
        """Whether it is being made; else it waits for its turn."""
        self._clients = 0
        """How many wait for it."""

    @property
    def size(self) -> int:
        """Bytes that it has in memory."""
        return len(self._made or b"")

    async def get(self) -> bytes:
        """Return the page, or raise `PageFailedError`."""
        loop = asyncio.get_running_loop()
        if self._making is None and loop.time() >= self._good_until:
            self._making = loop.create_task(self._make_in_turn())
        if self._making is not None:
            await self._wait_for(self._making)
        if self._made is None:
            raise PageFailedError
        return self._made

    async def close(self) -> None:
        """Stop making the page."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)

    async def _wait_for(self, making: asyncio.Task[None]) -> None:
        self._clients += 1
        try:
            # A client that disconnects must not cancel the page for the others.
            await asyncio.shield(making)
        finally:
            self._clients -= 1
            if not self._clients and not self._has_turn:
                # Else clients that ask and go would make a queue of pages that nobody wants.
                making.cancel()
                self._making = None

    async def _make_in_turn(self) -> None:
        if self._budget is None:
            self._has_turn = True
            await self._make()
            return
        async with self._budget.turn() as note_spent:
            self._has_turn = True
            note_spent(await self._make())

    async def _make(self) -> float:
        """Make the page; return how long that took."""
        spent = 0.0
        pause = FAILED_PAGE_SECONDS
        try:
            parts: list[bytes] = []
            began = perf_counter()
            for part in self._parts():
                parts.append(part)
                if (step := perf_counter() - began) > STEP_SECONDS_MAX:
                    spent += step
                    await asyncio.sleep(0)
                    began = perf_counter()
            spent += perf_counter() - began
            self._made = b"".join(parts)
            # After this pause, the time spent is `load_max` of the time since the beginning.
            pause = spent * (1 / self._load_max - 1)
        except Exception:
            self._made = None
            logger.exception("%s could not be made", self._path)
        finally:
            self._good_until = asyncio.get_running_loop().time() + pause
            self._making = None
            self._has_turn = False
        return spent


def metrics_parts(registry: CollectorRegistry) -> Iterator[bytes]:
    """Yield the metrics in Prometheus' text format, one family at a time."""
    for family in registry.collect():
        yield generate_latest(_Family(family))


class _Family(Collector):
    """A collector of one metric family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> tuple[Metric]:
        return (self._family,)
