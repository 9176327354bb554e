"""Messages with updates and about their end: UPDATE, CONFLATED, STABLE, FINISH, LEAVE."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from gradwire_protocol.limits import MESSAGE_BYTES_MAX
from gradwire_protocol.messages.fields import (
    SEQUENCE_MAX,
    VERSIONS_BYTES_MAX,
    Clock,
    Clocks,
    Pace,
    Reason,
    SequenceNumber,
    Versions,
)
from gradwire_protocol.messages.kinds import RANKS_MAX, Kind
from gradwire_protocol.messages.layout import ELEMENTS_MAX
from gradwire_protocol.messages.schema import SMALL_BYTES_MAX, Record, blob, integer

UPDATE_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 2 * VERSIONS_BYTES_MAX - SMALL_BYTES_MAX
"""Largest encoded update: a message less the map around it, and less what carries it."""

PART_ELEMENTS: Final = 2**16
"""Elements in a part of a sum: at most 256 KiB. It is smaller than a block, because its receiver is
slow and each part that arrives proves that the receiver is alive."""


@dataclass(frozen=True, slots=True)
class EncodedUpdate(Record):
    """An encoded update; the stream tells its origin."""

    sequence: Annotated[int, integer(1, SEQUENCE_MAX)]
    based_on: Annotated[int, integer(0, 2**63)]
    """How many updates of other workers the parameters contained when it was computed."""
    body: Annotated[bytes, blob(0, UPDATE_BYTES_MAX)]
    """Empty for an update that changes nothing and only reports its origin's progress."""
    clock: Clock = 0
    """Steps of its origin in all updates up to this one; 0 if unknown."""
    pace: Pace = 0
    """How long its origin takes for a step, without its waits, in microseconds; 0 if unknown."""
    closes: Versions = field(default_factory=dict)
    """Empty, but in rounds. In the last update of a contribution: its rank and sequence. In the
    last update of a round's result: by rank, the last contributed update that is in the replica."""
    clocks: Clocks = field(default_factory=dict)
    """In a sum of updates, by rank: the clock of the last one in it, where known."""

    def clocks_of(self, rank: int) -> Mapping[int, int]:
        """Return the clocks that it tells, by rank; its own is that of this rank."""
        return {rank: self.clock} if self.clock else self.clocks

    KIND: ClassVar[Kind] = Kind.UPDATE
    BYTES_MAX: ClassVar[int] = MESSAGE_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = RANKS_MAX


@dataclass(frozen=True, slots=True)
class Stable(Record):
    """Every live worker has the updates up to these versions."""

    versions: Versions

    KIND: ClassVar[Kind] = Kind.STABLE
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Span(Record):
    """The updates in a sum: of each rank, those after `before` up to `after`."""

    before: Versions
    after: Versions
    """Has the same ranks as `before`."""
    updates: Annotated[int, integer(1, 2**63)]
    """How many updates the sum contains."""
    parts: Annotated[int, integer(1, ELEMENTS_MAX // PART_ELEMENTS + 1)]
    """How many messages carry the sum."""
    clocks: Clocks = field(default_factory=dict)
    """By rank: the clock of the last update in the sum, where known."""
    closes: Versions = field(default_factory=dict)
    """In rounds, by rank: the last contributed update that is in the replica with the sum."""


@dataclass(frozen=True, slots=True)
class Conflated(Record):
    """A part of a sum of updates, which the master sends to a slow worker in their place.

    Elements in no part do not change. The sum takes effect when all its parts have arrived.
    """

    start: Annotated[int, integer(0, ELEMENTS_MAX)]
    """The first element covered; a multiple of `PART_ELEMENTS`."""
    body: Annotated[bytes, blob(0, 4 * PART_ELEMENTS + SMALL_BYTES_MAX)]
    """An encoded update of at most `PART_ELEMENTS`; empty where the whole sum is zero."""
    span: Span | None
    """The updates in the sum; only in the last part."""

    KIND: ClassVar[Kind] = Kind.CONFLATED
    BYTES_MAX: ClassVar[int] = 4 * PART_ELEMENTS + 2 * SMALL_BYTES_MAX + 4 * VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Finish(Record):
    """A worker sends no more updates and waits for the others."""

    sequence: SequenceNumber
    """Sequence of its last update."""

    KIND: ClassVar[Kind] = Kind.FINISH


@dataclass(frozen=True, slots=True)
class Finished(Record):
    """All live workers have finished."""

    versions: Versions
    """All updates of the run."""

    KIND: ClassVar[Kind] = Kind.FINISHED
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Leave(Record):
    """A worker leaves; its connection ends when this is delivered."""

    sequence: SequenceNumber
    """Sequence of its last update."""
    reason: Reason

    KIND: ClassVar[Kind] = Kind.LEAVE


@dataclass(frozen=True, slots=True)
class Stopping(Record):
    """The master is about to end and waits for every worker's last update.

    A worker answers with LEAVE, unless it has already said that it sends no more updates.
    """

    reason: Reason

    KIND: ClassVar[Kind] = Kind.STOPPING
