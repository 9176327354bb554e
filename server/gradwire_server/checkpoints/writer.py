"""Writing of checkpoints, on a thread beside the event loop.

Copying a replica takes tenths of a second, writing it to a disk takes seconds, and a broken disk
never answers. So the master hands over a copy and goes on; it takes the outcome later.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from threading import Thread
from typing import Protocol, TypeAlias

import numpy as np

from gradwire_codecs import Replica
from gradwire_codecs.arrays import Int32Array, UInt64Array
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.admission import Place
from gradwire_protocol.messages.buffers.agreement import agreed_of
from gradwire_protocol.messages.buffers.layout import BufferLayout, Buffers, BufferValues
from gradwire_protocol.messages.checkpoint.format import Checkpoint, check_names, pieces_of
from gradwire_protocol.messages.snapshots import block_span
from gradwire_protocol.messages.work import WorkState
from gradwire_server.checkpoints.folder import CheckpointFolder
from gradwire_server.series.series import Series
from gradwire_server.state.replica_copy import check_block
from gradwire_server.state.run import Run
from gradwire_server.updates.optimizer import saved_layout


@dataclass(frozen=True, slots=True)
class Copy:
    """The state of a run at one moment."""

    of: Run
    """The run itself. Another thread may read only what never changes of it."""
    replica: Replica
    digests: UInt64Array
    """Those that its blocks must have."""
    last_step: Int32Array | None
    """Of DiLoCo's outer optimizer."""
    place: Place
    versions: dict[int, int]
    works: tuple[WorkState, ...]
    finished: bool
    is_over: bool
    series: Series
    buffers: tuple[bytes, ...] = ()
    """The packed messages with the buffers of the workers."""

    @classmethod
    def make(cls, run: Run) -> "Copy":
        """Copy a run: 4 bytes for each element, 8 with DiLoCo, and some for each rank."""
        replica = Replica(run.replica.values.copy(), run.replica.quantum_exponent)
        assert run.digests is not None
        digests = run.digests.blocks.values.copy()
        versions = dict(run.relay.versions)
        works = tuple(WorkState(each.plan, each.ledger(versions)) for each in run.works.values())
        last_step = None if run.rounds is None else run.rounds.last_step
        last_step = None if last_step is None else last_step.copy()
        return cls(
            run,
            replica,
            digests,
            last_step,
            run.relay.log.place,
            versions,
            works,
            run.finished,
            run.is_over,
            deepcopy(run.series),
            run.packed_buffers,
        )

    def check(self) -> None:
        """Say so if the replica is not what the updates lead to."""
        for number in range(len(self.digests)):
            block = self.replica.values[block_span(number, len(self.replica))]
            check_block(block, number, self.digests, self.of.layout)

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Return the content of the file."""
        checkpoint = Checkpoint(
            run=self.of.name,
            layout=saved_layout(self.of.layout, self.of.mode),
            quantum_exponent=self.replica.quantum_exponent,
            versions=self.versions,
            place=self.place,
            works=self.works,
            mode=self.of.mode,
            finished=self.finished,
            digest=self.replica.digest(),
            series=self.series.save().compressed() if self.series.taken else b"",
        )
        agreed = self._agreed()
        content = b""
        if agreed is not None:
            with_buffers = replace(checkpoint, buffers=agreed[0])
            with suppress(ValueError):  # two tensors with one name
                check_names(with_buffers)
                checkpoint, content = with_buffers, agreed[0].to_file(agreed[1])
        values = self.replica.values
        if self.last_step is not None and checkpoint.layout.elements > len(values):
            values = np.concatenate((values, self.last_step))
        return pieces_of(checkpoint, values.astype("<i4", copy=False).data, content)

    def _agreed(self) -> tuple[BufferLayout, BufferValues] | None:
        """Return the buffers that a worker would begin with; None where there are none."""
        try:
            return agreed_of([Buffers.parse(packed) for packed in self.buffers])
        except InvalidMessageError:  # the master relays descriptions, and does not look at them
            return None


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint was written."""

    name: str
    """Of its file."""
    size: int
    """In bytes."""
    seconds: float
    """How long writing took."""
    unix_time: float
    complaint: str = ""
    """Why an older file could not be removed; empty if none failed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A checkpoint could not be written."""

    reason: str


Outcome: TypeAlias = Written | Failed


class CheckpointWriter(Protocol):
    """Writes checkpoints, one at a time."""

    def write(self, copy: Copy) -> None:
        """Start to write; the outcome of the last copy must have been taken before."""

    def take_outcome(self) -> Outcome | None:
        """Return the outcome, once; None before."""


class ThreadWriter:
    """Writes each checkpoint on a thread, which calls `on_ready` when the outcome can be taken."""

    def __init__(self, folder: CheckpointFolder, on_ready: Callable[[], None]) -> None:
        self._folder = folder
        self._on_ready = on_ready
        self._outcome: Outcome | BaseException | None = None

    def write(self, copy: Copy) -> None:
        """Start to write; the outcome of the last copy must have been taken before."""
        # A daemon thread: where the disk never answers, the process must be able to end.
        thread = Thread(target=self._run, args=(copy,), name="gradwire-checkpoint", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the limit of threads is reached
            self._hand_over(Failed(str(error)))

    def take_outcome(self) -> Outcome | None:
        """Return the outcome, once; None before. An unexpected error is raised here."""
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _run(self, copy: Copy) -> None:
        try:
            self._hand_over(self._write(copy))
        except MemoryError:
            self._hand_over(Failed("there is not enough memory"))
        except OSError as error:
            self._hand_over(Failed(f"{self._folder.path}: {error.strerror or error}"))
        except BaseException as error:  # `take_outcome` raises it on the event loop
            self._hand_over(error)

    def _write(self, copy: Copy) -> Written:
        began = time.monotonic()
        copy.check()
        file = self._folder.write(copy.pieces(), copy.of.name, is_over=copy.is_over)
        seconds = time.monotonic() - began
        return Written(file.name, file.size, seconds, time.time(), file.complaint)

    def _hand_over(self, outcome: Outcome | BaseException) -> None:
        self._outcome = outcome
        with suppress(RuntimeError):  # the event loop is closed already
            self._on_ready()
