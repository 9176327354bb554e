"""Pages that take time to make: in small steps, once for all waiting clients, and not too often."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

logger: Final = logging.getLogger("gradwire.http")

FAILED_PAGE_SECONDS: Final = 1.0
"""How long after a failure a page is made again, and a further failure logged."""

STEP_SECONDS_MAX: Final = 0.001
"""How long work on a page goes on before datagrams have their turn. One family of metrics is not
interrupted, so with 1,000 workers it can take 4 ms."""


class PageFailedError(Exception):
    """A page could not be made; the log says why."""


class SharedPage:
    """A page that is made when a client asks; many requests share one that is a little older.

    Parameters
    ----------
    parts : callable
        Returns an iterator that makes the page part by part. The event loop runs between parts.
    load_max : float
        Part of the time that may be spent on making it.
    """

    def __init__(
        self,
        path: str,
        parts: Callable[[], Iterator[bytes]],
        *,
        load_max: float,
    ) -> None:
        self._path = path
        self._parts = parts
        self._load_max = load_max
        self._made: bytes | None = None
        self._good_until = 0.0
        self._making: asyncio.Task[None] | None = None

    async def get(self) -> bytes:
        """Return the page, or raise `PageFailedError`."""
        loop = asyncio.get_running_loop()
        if self._making is None and loop.time() >= self._good_until:
            self._making = loop.create_task(self._make())
        if self._making is not None:
            # A client that disconnects must not cancel the page for the others.
            await asyncio.shield(self._making)
        if self._made is None:
            raise PageFailedError
        return self._made

    async def close(self) -> None:
        """Stop making the page."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)

    async def _make(self) -> None:
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
