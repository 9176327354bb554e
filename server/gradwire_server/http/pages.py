"""Pages that take time to make: in small steps, once for all waiting clients, and not too often."""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator
from time import perf_counter
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

logger: Final = logging.getLogger("gradwire.http")

FAILED: Final = "it could not be made; the master's log says why"

LOAD_MAX: Final = 0.05
"""Part of the time that may be spent on making one page. Who asks more often waits: 20 ms at most
with 56 workers, 0.7 s with 4,094."""

FAILED_PAGE_SECONDS: Final = 1.0
"""How long after a failure a page is made again: who asks meanwhile waits."""

PAUSE_SECONDS_MAX: Final = 5.0
"""Longest pause between two, so that who waits gets a page that takes long."""

WAITING_MAX: Final = 64
"""Most pages that wait for their turn: as many as there are connections. Clients that ask and go
at once would else make a queue without end."""

STEP_SECONDS_MAX: Final = 0.001
"""How long work on a page goes on before datagrams have their turn. One family of metrics is not
interrupted, so with 1,000 workers it can take 4 ms."""


class SharedPages:
    """Pages that are made when clients ask, each for all who wait for it together.

    One is made at a time. None is older than the request.

    Parameters
    ----------
    load_max : float
        Part of the time that may be spent on making them.
    """

    def __init__(self, *, load_max: float = LOAD_MAX) -> None:
        self._load_max = load_max
        self._next: dict[Hashable, asyncio.Task[bytes | None]] = {}
        """Make the pages that are not begun yet, for those who ask now."""
        self._turn = asyncio.Lock()
        self._not_before = 0.0

    async def get(self, key: Hashable, parts: Callable[[], Iterator[bytes]]) -> bytes:
        """Return a page, or raise `web.HTTPInternalServerError`.

        Parameters
        ----------
        key : hashable
            Names the page, also for the log.
        parts : callable
            Returns an iterator that makes it part by part. The event loop runs between parts.
        """
        if key not in self._next:
            if len(self._next) >= WAITING_MAX:
                raise web.HTTPServiceUnavailable(text="too many wait: try again later")
            loop = asyncio.get_running_loop()
            self._next[key] = loop.create_task(self._make(key, parts))
        # A client that disconnects must not cancel the page for the others.
        page = await asyncio.shield(self._next[key])
        if page is None:
            raise web.HTTPInternalServerError(text=FAILED)
        return page

    async def _make(self, key: Hashable, parts: Callable[[], Iterator[bytes]]) -> bytes | None:
        """Return the page, or None where it cannot be made."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            if (pause := self._not_before - loop.time()) > 0:
                await asyncio.sleep(pause)
            del self._next[key]  # who asks from now on may see what this one has not
            spent, pause = Stopwatch(), FAILED_PAGE_SECONDS
            try:
                page = await joined(parts(), spent)
                # After this pause, the time spent is `load_max` of the time since the beginning.
                pause = min(spent.seconds * (1 / self._load_max - 1), PAUSE_SECONDS_MAX)
            except Exception:
                logger.exception("%s could not be made", key)
                return None
            finally:
                self._not_before = loop.time() + pause
            return page


class SharedPage:
    """One page by itself; see `SharedPages`.

    Parameters
    ----------
    name : str
        For the log.
    parts : callable
    load_max : float
    """

    def __init__(
        self, name: str, parts: Callable[[], Iterator[bytes]], *, load_max: float = LOAD_MAX
    ) -> None:
        self._name = name
        self._parts = parts
        self._pages = SharedPages(load_max=load_max)

    async def get(self) -> bytes:
        """Return the page, or raise `web.HTTPInternalServerError`."""
        return await self._pages.get(self._name, self._parts)


class Stopwatch:
    """Counts the time of a task, and has it make way for others."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._began = perf_counter()

    @property
    def seconds(self) -> float:
        """The time of the task so far."""
        return self._spent + perf_counter() - self._began

    async def let_others(self) -> None:
        """Let the rest of the event loop run, if this goes on for some time."""
        if perf_counter() - self._began > STEP_SECONDS_MAX:
            self._spent = self.seconds
            await asyncio.sleep(0)
            self._began = perf_counter()


async def joined(parts: Iterator[bytes], spent: Stopwatch) -> bytes:
    """Return parts as one, made in small steps."""
    made = []
    for part in parts:
        made.append(part)
        await spent.let_others()
    return b"".join(made)


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
