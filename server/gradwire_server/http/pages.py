"""Pages that take time to make: in small steps, once for all waiting clients, and not too often."""

import asyncio
import logging
from collections.abc import Callable, Iterator
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

STEP_SECONDS_MAX: Final = 0.001
"""How long work on a page goes on before datagrams have their turn. One family of metrics is not
interrupted, so with 1,000 workers it can take 4 ms."""


class SharedPage:
    """A page that is made when a client asks, and for all who wait for it together.

    It is never older than the request.

    Parameters
    ----------
    name : str
        For the log.
    parts : callable
        Returns an iterator that makes the page part by part. The event loop runs between parts.
    load_max : float
        Part of the time that may be spent on making it.
    """

    def __init__(
        self, name: str, parts: Callable[[], Iterator[bytes]], *, load_max: float = LOAD_MAX
    ) -> None:
        self._name = name
        self._parts = parts
        self._load_max = load_max
        self._next: asyncio.Task[bytes | None] | None = None
        """Makes the page for those who ask now; not begun yet."""
        self._turn = asyncio.Lock()
        self._not_before = 0.0

    async def get(self) -> bytes:
        """Return the page, or raise `web.HTTPInternalServerError`."""
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_task(self._make())
        # A client that disconnects must not cancel the page for the others.
        page = await asyncio.shield(self._next)
        if page is None:
            raise web.HTTPInternalServerError(text=FAILED)
        return page

    async def _make(self) -> bytes | None:
        """Return the page, or None where it cannot be made."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            if (pause := self._not_before - loop.time()) > 0:
                await asyncio.sleep(pause)
            self._next = None  # who asks from now on may see what this one has not
            spent, pause = 0.0, FAILED_PAGE_SECONDS
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
                # After this pause, the time spent is `load_max` of the time since the beginning.
                pause = min(spent * (1 / self._load_max - 1), PAUSE_SECONDS_MAX)
                return b"".join(parts)
            except Exception:
                logger.exception("%s could not be made", self._name)
                return None
            finally:
                self._not_before = loop.time() + pause


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
