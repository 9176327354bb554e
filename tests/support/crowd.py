"""Many workers of a run, which are not there, and have logged much."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Final, Self

import numpy as np

from gradwire_protocol.messages.operating.scalars import POINT, POINTS_MAX, Logged
from gradwire_server.http.limits import HttpLimits
from support.api_side import Watched, watching
from support.members import member

RUN: Final = "bert"

SERIES: Final = (
    "loss", "accuracy", "gradwire/steps_per_second", "gradwire/density_ratio",
    "gradwire/threshold",
)  # fmt: skip

SECONDS_MAX: Final = 60.0


def crowd(workers: int) -> Watched:
    """Return a run with so many workers, whose connections lead nowhere."""
    watched = Watched()
    watched.daemon.enter("a", RUN)
    roster = watched.daemon.runs.in_progress[RUN].roster
    for rank in range(1, workers):
        roster.add_member(member(rank))
    return watched


class CrowdedRun:
    """A crowd's run behind a real HTTP server, on a thread of its own until the block ends.

    Parameters
    ----------
    workers, steps : int
        How many workers there are, and of how many steps each has logged all series.
    """

    url: str
    """Of its page."""

    def __init__(self, workers: int, steps: int) -> None:
        self._watched = crowd(workers)
        self.series = self._watched.run(RUN).series
        random, columns = np.random.default_rng(1), len(SERIES)
        for rank in range(workers):
            for number, first in enumerate(range(0, steps, POINTS_MAX // columns)):
                step = np.arange(first, min(first + POINTS_MAX // columns, steps)).repeat(columns)
                points = np.zeros(len(step), POINT)
                points["step"], points["series"] = step, np.resize(np.arange(columns), len(step))
                points["value"] = np.exp(-step / steps) + 0.05 * random.normal(size=len(step))
                logged = Logged(number + 1, SERIES, points.tobytes(), 0)
                # Time enough for each worker's messages: none may be too many.
                at = self._watched.daemon.network.now + 10.0 * number
                self.series.add(rank, rank.to_bytes(16, "big"), logged, at)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="crowded-run")
        self._server = AsyncExitStack()
        self.stack = ExitStack()
        """What is closed with it."""

    def __enter__(self) -> Self:
        self._thread.start()
        side = self._run(lambda: self._server.enter_async_context(
            watching(self._watched, limits=HttpLimits())
        ))  # fmt: skip
        self.url = f"http://127.0.0.1:{side.server.port}"
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()
        self._run(self._server.aclose)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS_MAX)
        self._loop.close()

    def _run(self, work: Callable[[], Any]) -> Any:
        async def done() -> Any:
            return await work()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(SECONDS_MAX)
