"""A run of many workers, which are not there, and have logged much, behind a real HTTP server."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Final, Self

import numpy as np

from gradwire_protocol.messages.logged.scalars import POINT, POINTS_MAX, Logged
from support.api_side import Watched, watching
from support.members import member
from support.waiting import SOON

RUN: Final = "bert"

SERIES: Final = (
    "loss", "accuracy", "gradwire/steps_per_second", "gradwire/density_ratio",
    "gradwire/threshold",
)  # fmt: skip


class CrowdedRun:
    """The server is on a thread of its own until the block ends.

    Parameters
    ----------
    workers, steps : int
        How many workers there are, and of how many steps each has logged all series.
    layers : sequence of str
        Tensors of which one has sent histograms.
    """

    def __init__(self, workers: int, steps: int, layers: Sequence[str] = ()) -> None:
        self._watched = Watched()
        self._watched.daemon.enter("a", RUN)
        roster = self._watched.daemon.runs.in_progress[RUN].roster
        for rank in range(1, workers):
            roster.add_member(member(rank))
        self.series = self._watched.run(RUN).series
        for rank in range(workers):
            self._log(rank, steps)
        if layers:
            self._watched.look(RUN, 7, *layers)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="crowded-run")
        self._server = AsyncExitStack()
        self.url = ""
        """Of its page."""
        self.stack = ExitStack()
        """What is closed with it."""

    def __enter__(self) -> Self:
        self._thread.start()
        entering = self._server.enter_async_context(watching(self._watched))
        self.url = asyncio.run_coroutine_threadsafe(entering, self._loop).result(SOON).url
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()
        asyncio.run_coroutine_threadsafe(self._server.aclose(), self._loop).result(SOON)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SOON)
        self._loop.close()

    def log(self, rank: int, step: int, values: Mapping[str, float]) -> None:
        """Let a worker log something, before the server is there."""
        self._watched.log(RUN, rank, step, values)

    def _log(self, rank: int, steps: int) -> None:
        random, at_once = np.random.default_rng(rank), POINTS_MAX // len(SERIES)
        for number, first in enumerate(range(0, steps, at_once)):
            step = np.arange(first, min(first + at_once, steps)).repeat(len(SERIES))
            points = np.zeros(len(step), POINT)
            points["step"], points["series"] = step, np.resize(np.arange(len(SERIES)), len(step))
            points["value"] = np.exp(-step / steps) + 0.05 * random.normal(size=len(step))
            logged = Logged(number + 1, SERIES, points.tobytes(), 0)
            # Time enough for each worker's messages: none may be too many.
            at = self._watched.daemon.network.now + 10.0 * number
            self.series.add(rank, rank.to_bytes(16, "big"), logged, at)
