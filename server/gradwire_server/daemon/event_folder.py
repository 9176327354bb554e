"""`EventFolder`: the event files of one run, which TensorBoard reads.

::

    DIR/RUN/mean/events.out.tfevents...       what workers have logged, the mean of all
    DIR/RUN/worker-0/events.out.tfevents...   what worker 0 has logged
    DIR/RUN/run/events.out.tfevents...        how fast the run goes

Each folder is a run to TensorBoard, which draws the curves of one name over each other. A training
that begins under the name of an earlier one gets a folder of its own: RUN~2. One that goes on with
its workers after a restart of the master goes on in its folder.

Files are opened for each write: so a folder that was removed is noticed, and is made again with all
that there is. What a full disk has taken of a write is taken back.

It needs TensorBoard, `pip install 'gradwire[tensorboard]'`: only `event_files` imports this module.
"""

import os
import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Final
from urllib.parse import quote

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from gradwire_server.series.series import Shown
from gradwire_server.series.tail import Tail

VERSION: Final = "brain.Event:2"
"""What an event file begins with."""

NAME_BYTES_MAX: Final = 120
"""Of the folder of a run: file systems take 255, and a number may follow."""

FIGURES_GROWTH: Final = 1.001
"""Figures of the run are written when it has had so many times the updates: 700 times until it has
had twice as many."""

PLAIN: Final = "-_.,+=@ "
"""Characters that the name of a folder may have, besides letters and digits."""

FILE: Final = re.compile(r"events\.out\.tfevents\.(\d{10})\.")
"""The name of an event file, with the second in which it begins."""

HEADER: Final = struct.Struct("<QI")
"""Of a record: its length, and a checksum of that."""

CHECKSUM_BYTES: Final = 4
"""After a record."""

WORKER: Final = "worker-"
MEAN: Final = "mean"
RUN: Final = "run"


@dataclass(slots=True)
class _Pending:
    """What is written next in one folder."""

    data: BytesIO = field(default_factory=BytesIO)
    points: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    """By series: the first step that is not written then."""


class EventFolder:
    """The files of one run, which one thread writes.

    Parameters
    ----------
    path : Path
        See `folder_of`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tail = Tail()
        self._files: dict[str, Path] = {}
        """By the name of a folder: the file that is written there."""
        self._pending: dict[str, _Pending] = {}
        """By the name of a folder."""
        self._updates = 0
        """That the run had had when its figures were written last."""
        for folder in path.iterdir() if path.is_dir() else ():
            self._read(folder)

    def begin(self) -> int:
        """Forget what was added and not written, and what was written to files that are gone.

        Returns how many files these are.
        """
        self._pending = {}
        lost = [name for name, file in self._files.items() if not file.exists()]
        for name in lost:
            del self._files[name]
            if name == RUN:
                self._updates = 0
            else:
                self.tail.forget(_rank_of(name))
        return len(lost)

    def add(self, shown: Shown, began: float) -> None:
        """Add what is due of a curve to what is written next.

        Parameters
        ----------
        began : float
            The time of day (Unix) from which the curve counts its seconds.
        """
        curve = shown.curve
        pending = self._pending_in(MEAN if shown.rank is None else f"{WORKER}{shown.rank}")
        columns = curve.step.tolist(), curve.seconds.tolist(), curve.mean.tolist()
        for step, seconds, mean in zip(*columns, strict=True):
            _put(pending, step, began + seconds, {shown.series: mean})
        pending.steps[shown.series] = int(curve.step[-1]) + curve.steps

    def add_figures(self, updates: int, at: float, figures: Mapping[str, float]) -> bool:
        """Add figures of the run; return whether it has gone on far enough for that.

        Parameters
        ----------
        updates : int
            Updates that the run has had: the step of these figures.
        at : float
            Time of day (Unix).
        """
        if updates < max(FIGURES_GROWTH * self._updates, self._updates + 1):
            return False
        pending = self._pending_in(RUN)
        _put(pending, updates, at, figures)
        pending.steps[RUN] = updates
        return True

    def flush(self) -> int:
        """Write what was added; return how many points that were.

        Raises `OSError`; what was not written then is due once more.
        """
        pending, self._pending = self._pending, {}
        points = 0
        for name, each in pending.items():
            self._append(name, each.data.getbuffer())
            points += each.points
            if name == RUN:
                self._updates = each.steps[RUN]
                continue
            for series, step in each.steps.items():
                self.tail.note(_rank_of(name), series, step)
        return points

    # Private.

    def _pending_in(self, name: str) -> _Pending:
        return self._pending.setdefault(name, _Pending())

    def _append(self, name: str, data: memoryview) -> None:
        """Add all of it to a file, or nothing."""
        file = self._files.get(name) or self._new_file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab", buffering=0) as opened:
            size = os.fstat(opened.fileno()).st_size
            try:
                if not size:
                    _write_whole(opened.fileno(), _record(Event(file_version=VERSION)))
                _write_whole(opened.fileno(), data)
            except OSError:
                with suppress(OSError):
                    opened.truncate(size)
                raise
        self._files[name] = file

    def _new_file(self, name: str) -> Path:
        """Return a file after all that are there: TensorBoard reads them in this order."""
        there = [FILE.match(each.name) for each in (self.path / name).glob("events.*")]
        last = max((int(found[1]) for found in there if found), default=0)
        begun = max(int(time.time()), last + 1)  # of two in a second, or after a clock went back
        file = f"events.out.tfevents.{begun:010d}.{socket.gethostname()}.{os.getpid()}"
        return self.path / name / file

    def _read(self, folder: Path) -> None:
        """Note what is written already."""
        if folder.name not in (MEAN, RUN) and _rank_of(folder.name) is None:
            return
        for file in sorted(folder.glob("events.out.tfevents.*")):
            for event in _events_in(file):
                for value in event.summary.value:
                    if folder.name == RUN:
                        self._updates = max(self._updates, event.step)
                    else:
                        self.tail.note(_rank_of(folder.name), value.tag, event.step + 1)


def folder_of(directory: Path, run: str, *, goes_on: bool) -> Path:
    """Return the folder of a run: that of the last one of its name if it goes on, or a new one."""
    name = safe_name(run)
    pattern = re.compile(re.escape(name) + r"(?:~([1-9]\d{0,8}))?")
    there = [each.name for each in directory.iterdir()] if directory.is_dir() else []
    numbers = [int(found[1] or 1) for each in there if (found := pattern.fullmatch(each))]
    number = max(numbers, default=0) + (not (goes_on and numbers))
    return directory / (name if number == 1 else f"{name}~{number}")


def safe_name(run: str) -> str:
    """Return a folder's name for a run: any other character than these is quoted, as in a URL."""
    kept = "".join(each if each.isalnum() or each in PLAIN else quote(each, "") for each in run)
    # "~" comes before a number. No name is that of a hidden folder, of this one or of its parent.
    kept = re.sub(r"^\.", "%2E", kept.replace("~", "%7E"))
    encoded = kept.encode()
    if len(encoded) <= NAME_BYTES_MAX:
        return kept
    digest = sha256(run.encode()).hexdigest()[:12]
    return f"{encoded[: NAME_BYTES_MAX - 13].decode(errors='ignore')}-{digest}"


def _rank_of(folder: str) -> int | None:
    """Return the rank of the worker whose folder it is; None for the mean."""
    number = folder.removeprefix(WORKER)
    return int(number) if number.isdecimal() else None


def _put(pending: _Pending, step: int, at: float, values: Mapping[str, float]) -> None:
    summary = Summary(
        value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    )
    pending.data.write(_record(Event(wall_time=at, step=step, summary=summary)))
    pending.points += len(values)


def _record(event: Event) -> bytes:
    data = BytesIO()
    RecordWriter(data).write(event.SerializeToString())
    return data.getvalue()


def _events_in(file: Path) -> Iterator[Event]:
    """Yield the events of a file, up to where it was cut off."""
    data = file.read_bytes()
    at = 0
    while at + HEADER.size <= len(data):
        begin = at + HEADER.size
        end = begin + HEADER.unpack_from(data, at)[0]
        at = end + CHECKSUM_BYTES
        if at > len(data):
            return
        try:
            yield Event.FromString(data[begin:end])
        except DecodeError:
            return


def _write_whole(descriptor: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
