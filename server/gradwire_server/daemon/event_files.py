"""`EventFiles`: what workers log, written for TensorBoard on a thread of its own.

The thread asks the event loop for a copy of the series of each run, some milliseconds of work, when
it has written the last one. Nothing waits for the thread: while a disk hangs, the series go on in
their bounded memory, and the next copy has what was missed. So nothing is dropped, but neighbouring
steps may have become one, and of the runs that are over while nothing can be written only the last
ones are kept.

A failure is counted, logged now and then, and tried again.

It needs TensorBoard, `pip install 'gradwire[tensorboard]'`: only the option imports this module.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Final

from gradwire_protocol import UsageError
from gradwire_server.daemon.event_folder import EventFolder, folder_of
from gradwire_server.master.master import Master
from gradwire_server.metrics import ServerMetrics
from gradwire_server.runs.runs import Runs
from gradwire_server.series.series import Series
from gradwire_server.state.run import Run

logger = logging.getLogger("gradwire.tensorboard")

EVERY_SECONDS: Final = 5.0
"""Least time between two copies. TensorBoard itself looks every 30 s, or when one reloads."""

WORK_SECONDS: Final = 0.001
REST: Final = 20.0
"""The thread works for so long, and rests so many times as long: datagrams wait for it 5 % of the
time at most. That is some 2,000 points a second."""

CLOSE_SECONDS_MAX: Final = 5.0
"""How long the end may take: 100,000 points, written without a rest, take 3 s."""

LINE_SECONDS: Final = 60.0
"""Least time between two lines in the log that say why nothing can be written."""

ANSWER_SECONDS_MAX: Final = 60.0
"""How long the event loop may take for a copy; longer, and it is asked once more."""

OVER_MAX: Final = 4
"""Runs that are over and not written: 29 MB each."""


@dataclass(slots=True, eq=False)
class _Recorded:
    """A run whose series are written. The thread alone has the folder."""

    run: Run
    name: str
    master: Master
    is_over: bool = False
    written: int = -1
    """How many scalars had come when its series were written last."""
    updates_written: int = -1
    """How many updates it had had then."""
    is_settled: bool = False
    """Whether all that was logged by then was due."""
    is_done: bool = False
    """Whether all of it is written, and it is over."""
    folder: EventFolder | None = None
    before: tuple[float, int, float] | None = None
    """Of the last figures: when, updates, bytes."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """A run at one moment, for the thread."""

    of: _Recorded
    series: Series
    seconds: float
    """Since the first scalar was logged."""
    goes_on: bool
    """Whether it goes on after a restart of the master."""
    is_over: bool
    """Whether nothing comes any more, or nothing more is written."""
    updates: int
    bytes_received: float
    workers: int
    at: float = field(default_factory=time.time)
    """Time of day (Unix)."""


class EventFiles:
    """Writes what the workers of all runs log.

    Parameters
    ----------
    directory : Path
        Is made if there is none.

    Raises
    ------
    UsageError
        If nothing can be written there.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError as error:
            raise UsageError(
                f"--tensorboard {directory}: {error.strerror or error}; pass a folder that this "
                "user may write to"
            ) from None
        self._recorded: list[_Recorded] = []
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="gradwire-tensorboard", daemon=True)
        self._rested_at = 0.0
        self._said_at = float("-inf")

    def begin(self, runs: Runs, metrics: ServerMetrics, now: Callable[[], float]) -> None:
        """Write what is logged from now on; called on the event loop.

        Parameters
        ----------
        now : callable
            Returns the time of the masters.
        """
        self._runs, self._metrics, self._now = runs, metrics, now
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self._thread.start()

    def note_over(self, run: Run) -> None:
        """Note that nothing is logged in a run any more."""
        if not run.series.taken and not run.relay.versions:
            return
        self._look()
        for each in self._recorded:
            if each.run is run:
                each.is_over = True
        over = [each for each in self._recorded if each.is_over]
        for each in over[:-OVER_MAX]:
            self._metrics.tensorboard_failures.inc()
            logger.warning(
                "run %r is over, and not all of it was written for TensorBoard", each.name
            )
            self._recorded.remove(each)

    async def close(self) -> None:
        """Write what there is, within `CLOSE_SECONDS_MAX`, and end."""
        self._stopping.set()
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._closed.wait()
        except TimeoutError:
            logger.error(  # noqa: TRY400  # it says it all
                "%s: the last points were not written within %g s", self._directory,
                CLOSE_SECONDS_MAX,
            )  # fmt: skip

    # On the event loop.

    def _look(self) -> None:
        """Note the runs that have begun since the last time, and forget those that are written."""
        self._recorded = [each for each in self._recorded if not each.is_done]
        known = {id(each.run) for each in self._recorded}
        for name, master in self._runs.masters:
            if master.run is not None and id(master.run) not in known:
                self._recorded.append(_Recorded(master.run, master.run.name or name, master))

    def _samples(self) -> list[_Sample]:
        """Return what has changed since it was written."""
        self._look()
        current = {id(master.run) for _, master in self._runs.masters}
        samples = []
        for each in self._recorded:
            each.is_over |= id(each.run) not in current
            sample = _sample(each, self._now(), is_last=self._stopping.is_set())
            if sample is not None:
                samples.append(sample)
        return samples

    def _answer(self, future: Future[list[_Sample]]) -> None:
        try:
            future.set_result(self._samples())
        except BaseException as error:  # the thread raises it
            future.set_exception(error)

    # On the thread.

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopping.wait(EVERY_SECONDS)
            try:
                self._write_all()
            except Exception:
                self._metrics.tensorboard_failures.inc()
                logger.exception("internal error: TensorBoard has less; the runs go on")
        self._tell(self._closed.set)

    def _write_all(self) -> None:
        future: Future[list[_Sample]] = Future()
        self._tell(self._answer, future)
        with suppress(TimeoutError):
            for sample in future.result(ANSWER_SECONDS_MAX):
                self._rested_at = time.perf_counter()
                try:
                    self._write(sample)
                except OSError as error:
                    self._note_failure(error)

    def _write(self, sample: _Sample) -> None:
        recorded = sample.of
        folder = recorded.folder
        if folder is None:
            path = folder_of(self._directory, recorded.name, goes_on=sample.goes_on)
            path.mkdir(parents=True, exist_ok=True)  # the next one of its name has another folder
            folder = recorded.folder = EventFolder(path)
            logger.info("run %r is written for TensorBoard to %s", recorded.name, path)
        if lost := folder.begin():
            logger.warning(
                "%d files of run %r are gone from %s: what they had is written once more",
                lost,
                recorded.name,
                folder.path,
            )
        began = sample.at - sample.seconds
        for shown in folder.tail.due(sample.series, sample.seconds, is_over=sample.is_over):
            if shown is not None:
                folder.add(shown, began)
            self._rest()
        if sample.workers:  # else it is over, or about to be
            self._add_figures(folder, sample)
        self._metrics.tensorboard_points.inc(folder.flush())
        recorded.written, recorded.updates_written = sample.series.taken, sample.updates
        recorded.is_settled = folder.tail.is_settled(sample.series, sample.seconds)
        recorded.is_done = sample.is_over and recorded.is_over

    def _add_figures(self, folder: EventFolder, sample: _Sample) -> None:
        recorded = sample.of
        now = sample.at, sample.updates, sample.bytes_received
        if recorded.before is None:
            recorded.before = now
            return
        seconds = max(now[0] - recorded.before[0], 1e-3)
        figures = {
            "gradwire/updates_per_second": (now[1] - recorded.before[1]) / seconds,
            "gradwire/update_bytes_per_second": (now[2] - recorded.before[2]) / seconds,
            "gradwire/workers": float(sample.workers),
        }
        if folder.add_figures(sample.updates, sample.at, figures):
            recorded.before = now

    def _rest(self) -> None:
        """Let others work, when it is time to; not at the end."""
        worked = time.perf_counter() - self._rested_at
        if worked > WORK_SECONDS:
            self._stopping.wait(REST * min(worked, REST * WORK_SECONDS))
            self._rested_at = time.perf_counter()

    def _note_failure(self, error: OSError) -> None:
        self._metrics.tensorboard_failures.inc()
        now = time.monotonic()
        if now - self._said_at >= LINE_SECONDS:
            self._said_at = now
            logger.warning(
                "nothing can be written for TensorBoard to %s: %s; it is tried again, and the runs "
                "go on",
                self._directory,
                error.strerror or error,
            )

    def _tell(self, act: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the event loop is closed already
            self._loop.call_soon_threadsafe(act, *arguments)


def _sample(recorded: _Recorded, now: float, *, is_last: bool) -> _Sample | None:
    """Return a run at this moment; None if nothing has changed."""
    run, master = recorded.run, recorded.master
    if run.recovery is not None:
        return None  # it is not known yet whether it goes on
    updates = sum(run.relay.versions.values())
    is_same = (run.series.taken, updates) == (recorded.written, recorded.updates_written)
    is_over = recorded.is_over or is_last
    if is_same and recorded.is_settled and not is_over:
        return None
    size = master.state.metrics.registry.get_sample_value("gradwire_update_bytes_sum") or 0.0
    series = run.series if recorded.is_over else run.series.copy()
    return _Sample(
        of=recorded,
        series=series,
        seconds=series.seconds(now),
        goes_on=run.recovered,
        is_over=is_over,
        updates=updates,
        bytes_received=size,
        workers=len(master.roster.workers),
    )
