"""`EventFiles`: what workers log, as event files that TensorBoard reads.

::

    DIR/RUN/mean/events.out.tfevents...        the mean of all workers
    DIR/RUN/worker-0/events.out.tfevents...    what worker 0 has logged

Now and then the event loop copies the series of each run, as for a checkpoint, and a thread writes
what is new in them. Nothing waits for it: while a disk hangs the series go on in their bounded
memory, where neighbouring steps become one, and what is missing is written later.

Readers cannot take back a point. So each curve only goes forward: a bucket of steps is written when
its worker has gone on to a later step, and its mean when all workers that are there have.

It needs TensorBoard, `pip install 'gradwire[tensorboard]'`: only the option imports this module.
"""

import logging
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Final
from urllib.parse import quote

import numpy as np
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from gradwire_protocol import UsageError
from gradwire_server.master.master import Master
from gradwire_server.series.board import Curve
from gradwire_server.series.saved import SavedSeries
from gradwire_server.series.series import Series, Shown

logger = logging.getLogger("gradwire.tensorboard")

EVERY_SECONDS: Final = 5.0
"""Least time between two copies. TensorBoard itself looks every 30 s, or when people reload it."""

REST: Final = 100.0
"""Copies take so small a part of the event loop's time."""

POINTS_MAX: Final = 10_000
"""Most points of a run that are written at once, in some 0.3 s; the rest is due next time."""

CLOSE_SECONDS_MAX: Final = 5.0
"""How long the end of the master waits for the last points."""

NAME_BYTES_MAX: Final = 120
"""Of the folder of a run: file systems take 255, and a number may follow."""

Marks = dict[tuple[int | None, str], int]
"""By rank, None for the mean, and series: the first step that is not written."""


@dataclass(slots=True, eq=False)
class _Recorded:
    """A run whose series are written. Folder and marks are the thread's while that runs."""

    name: str
    series: Series
    goes_on: bool
    """Whether an earlier master has written what is there."""
    copied: int = 0
    """How many scalars had come when its series were copied last."""
    folder: Path | None = None
    marks: Marks = field(default_factory=dict)
    has_ended: bool = False
    """Whether it was copied after its end. It stays as long as the master has its series."""
    is_behind: bool = False
    """Whether something is due that was not written."""
    is_failing: bool = False
    """Whether it could not be, and the log says so."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """The series of a run at one moment."""

    of: _Recorded
    series: SavedSeries
    live: frozenset[int] | None
    """Ranks of the workers that may log more; None if nothing comes any more."""
    began: float
    """The time of day (Unix) from which its seconds count."""


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
        self._file = (
            f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        )
        self._recorded: dict[int, _Recorded] = {}
        """By the identity of the series."""
        self._thread: Thread | None = None
        self._next_at = 0.0

    def look(self, masters: Iterable[tuple[str, Master]], now: float) -> None:
        """Write what is new, when it is time to; called on the event loop.

        Parameters
        ----------
        masters : iterable
            Names of runs and their masters, also of those that are over: a short training may have
            begun and ended since the last look.
        """
        is_writing = self._thread is not None and self._thread.is_alive()
        if now >= self._next_at and not is_writing:
            began = time.perf_counter()
            self._begin(masters, now)
            self._next_at = now + max(EVERY_SECONDS, REST * (time.perf_counter() - began))

    def wait(self) -> bool:
        """Wait for the end of writing, for `CLOSE_SECONDS_MAX`; return whether it has ended."""
        if self._thread is None:
            return True
        self._thread.join(CLOSE_SECONDS_MAX)
        return not self._thread.is_alive()

    def close(self, masters: Iterable[tuple[str, Master]], now: float) -> None:
        """Write all that is left, and end."""
        if self.wait():
            self._begin(masters, now, is_last=True)
        if not self.wait():
            logger.error("the last points were not written to %s", self._directory)

    def _begin(
        self, masters: Iterable[tuple[str, Master]], now: float, *, is_last: bool = False
    ) -> None:
        there: dict[int, Master] = {}
        for name, master in masters:
            run, series = master.run, master.series
            if series is None or (run is not None and run.recovery is not None):
                continue  # it is not known yet whether it goes on
            there[id(series)] = master
            goes_on = run is not None and run.recovered
            self._recorded.setdefault(id(series), _Recorded(name, series, goes_on))
        copies = []
        for key, each in list(self._recorded.items()):
            live = None
            if key not in there or is_last:
                del self._recorded[key]
            elif there[key].run is not None:
                live = frozenset(member.rank for member in there[key].roster.workers)
            ends = live is None and not each.has_ended
            each.has_ended |= ends
            began = each.series.began  # None where nothing came after a restart
            is_new = ends or each.is_behind or each.series.taken > each.copied
            if is_new and began is not None:
                each.copied = each.series.taken
                copies.append(_Copy(each, each.series.save(), live, time.time() - (now - began)))
        self._thread = Thread(target=self._write, args=(copies,), name="tensorboard", daemon=True)
        self._thread.start()

    # On the thread.

    def _write(self, copies: list[_Copy]) -> None:
        for copy in copies:
            try:
                self._write_run(copy)
            except OSError as error:
                copy.of.is_behind = True
                if not copy.of.is_failing:
                    logger.warning(
                        "nothing can be written for TensorBoard to %s: %s; it is tried again for "
                        "as long as a run goes on",
                        self._directory,
                        error.strerror or error,
                    )
                copy.of.is_failing = True
            else:
                copy.of.is_failing = False

    def _write_run(self, copy: _Copy) -> None:
        recorded, series = copy.of, Series.restored(copy.series)
        if not series.ranks:
            return
        if recorded.folder is None:
            goes_on = recorded.goes_on
            recorded.folder = folder_of(self._directory, recorded.name, goes_on=goes_on)
            recorded.marks = marks_in(recorded.folder)
        points = 0
        recorded.is_behind = False
        pending: dict[Path, tuple[BytesIO, Marks]] = {}
        for shown in due(series, recorded.marks, copy.live):
            of = "mean" if shown.rank is None else f"worker-{shown.rank}"
            data, marks = pending.setdefault(recorded.folder / of / self._file, (BytesIO(), {}))
            _append(data, shown, copy.began)
            marks[shown.rank, shown.series] = _end(shown)
            points += len(shown.curve.numbers)
            if points > POINTS_MAX and copy.live is not None:
                recorded.is_behind = True
                break
        for path, (data, marks) in pending.items():
            _write_whole(path, data.getvalue())
            recorded.marks |= marks


def due(series: Series, marks: Marks, live: frozenset[int] | None) -> Iterator[Shown]:
    """Yield of each curve what is not written and complete.

    Parameters
    ----------
    live : frozenset of int or None
        Ranks of workers that may log more; None if nothing comes any more.
    """
    steps = {rank: [step for step, _ in series.newest(rank).values()] for rank in live or ()}
    fronts = {rank: max(each) for rank, each in steps.items() if each}
    for name in series.names():
        curves = list(series.curves_of(name))
        ranks = [shown.rank for shown in curves if shown.rank in fronts]
        for shown in curves:
            curve = shown.curve
            chosen = curve.step >= marks.get((shown.rank, name), 0)
            waited_for = ranks if shown.rank is None else {shown.rank} & fronts.keys()
            for rank in waited_for:
                chosen &= curve.step + curve.steps <= fronts[rank]
            if chosen.any():
                at = np.flatnonzero(chosen)
                yield shown._replace(
                    curve=Curve(curve.steps, curve.numbers[at], curve.cells[:, at])
                )


def marks_in(folder: Path) -> Marks:
    """Return what an earlier master has written there."""
    marks: Marks = {}
    for path in sorted(folder.glob("*/events.out.tfevents.*")):
        number = path.parent.name.removeprefix("worker-")
        rank = int(number) if number.isdecimal() else None
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                key = rank, value.tag
                marks[key] = max(event.step + 1, marks.get(key, 0))
    return marks


def folder_of(directory: Path, run: str, *, goes_on: bool) -> Path:
    """Return the folder of a run: that of the last one of its name if it goes on, or a new one."""
    name = quote(run, safe=" +,=@").replace("~", "%7E")  # "~" comes before a number
    name = re.sub(r"^\.", "%2E", name)  # neither hidden, nor this folder, nor its parent
    if len(name) > NAME_BYTES_MAX:
        name = f"{name[: NAME_BYTES_MAX - 13]}-{sha256(run.encode()).hexdigest()[:12]}"
    pattern = re.compile(re.escape(name) + r"(?:~([1-9]\d{0,8}))?")
    found = [pattern.fullmatch(each.name) for each in directory.iterdir()]
    number = max((int(each[1] or 1) for each in found if each), default=0)
    number += not (goes_on and number)
    return directory / (name if number == 1 else f"{name}~{number}")


def _end(shown: Shown) -> int:
    """Return the first step after a curve."""
    return int(shown.curve.step[-1]) + shown.curve.steps


def _append(data: BytesIO, shown: Shown, began: float) -> None:
    writer = RecordWriter(data)
    curve = shown.curve
    columns = curve.step.tolist(), curve.seconds.tolist(), curve.mean.tolist()
    for step, seconds, mean in zip(*columns, strict=True):
        summary = Summary(value=[Summary.Value(tag=shown.series, simple_value=mean)])
        event = Event(wall_time=began + seconds, step=step, summary=summary)
        writer.write(event.SerializeToString())


def _write_whole(path: Path, data: bytes) -> None:
    """Append all of it, or nothing: a reader stops at half an event for good."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        head = BytesIO()
        RecordWriter(head).write(Event(file_version="brain.Event:2").SerializeToString())
        data = head.getvalue() + data
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise
