"""Messages with updates and about their end: UPDATE, CONFLATED, STABLE, FINISH, LEAVE."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from gradwire_protocol.limits import MESSAGE_BYTES_MAX, WINDOW_BYTES
from gradwire_protocol.messages.fields import (
    RANK,
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
from gradwire_protocol.messages.schema import (
    SMALL_BYTES_MAX,
    Record,
    blob,
    integer,
    mapping,
    number,
)

UPDATE_BYTES_MAX: Final = MESSAGE_BYTES_MAX - VERSIONS_BYTES_MAX
"""Largest encoded update: a message less the map around it."""

NORM_MAX: Final = 1e20
"""Above the norm of any update: 2^31 elements of 2^31 quanta each have one of 10^14."""

PART_HITS: Final = 2**15
"""Elements that a part of a sum changes. Its receiver may be slow, and each part that arrives
proves that it is alive."""

PART_BYTES_MAX: Final = 8 * PART_HITS + SMALL_BYTES_MAX
"""Encoded size of a part: no element that it changes takes more than 8 bytes."""

WAITING_SUMS_BYTES_MAX: Final = WINDOW_BYTES
"""Bodies of sums that may wait at a worker for what was sent before them, besides one sum of any
size: a master has no more under way to a worker."""


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
    """The updates in a sum: of each rank in `after`, those after `before`."""

    before: Versions
    """All updates before the first one in the sum, of all ranks."""
    after: Versions
    """The last update of each rank of which it has any."""
    updates: Annotated[int, integer(1, 2**63)]
    """How many updates the sum contains."""
    parts: Annotated[int, integer(1, ELEMENTS_MAX // PART_HITS + 1)]
    """How many messages carry the sum."""
    based_on: Annotated[Mapping[int, int], mapping(RANK, integer(0, 2**63), RANKS_MAX)]
    """By rank in `after`: what its last update was based on."""
    clocks: Clocks = field(default_factory=dict)
    """By rank: the clock of the last update in the sum, where known."""
    paces: Clocks = field(default_factory=dict)
    """By rank: the pace in the last update in the sum, where known."""
    closes: Versions = field(default_factory=dict)
    """In rounds, by rank: the last contributed update that is in the replica with the sum."""


@dataclass(frozen=True, slots=True)
class Conflated(Record):
    """A part of the sum of several updates, which the master sends in their place.

    The sum is the same for all who are sent it, so it has updates of its receiver, too: these are
    to be subtracted. It takes effect when all its parts have arrived, and what was sent before it.
    """

    position: Annotated[int, integer(1, 2**63)]
    """How many updates the master had accepted with the last one in the sum; names the sum."""
    body: Annotated[bytes, blob(0, PART_BYTES_MAX)]
    """An encoded update; empty where the whole sum is zero. Parts have no element in common."""
    span: Span | None
    """The updates in the sum; only in the last part."""

    KIND: ClassVar[Kind] = Kind.CONFLATED
    BYTES_MAX: ClassVar[int] = PART_BYTES_MAX + SMALL_BYTES_MAX + 7 * VERSIONS_BYTES_MAX


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
class Aside(Record):
    """The master keeps the updates of this worker aside, from one on that is far too large."""

    sequence: SequenceNumber
    norm: Annotated[float, number(0.0, NORM_MAX)]
    """Of that update's change, in quanta."""
    limit: Annotated[float, number(0.0, NORM_MAX)]
    """The largest norm that is no outlier."""

    KIND: ClassVar[Kind] = Kind.ASIDE


@dataclass(frozen=True, slots=True)
class Stopping(Record):
    """The master is about to end and waits for every worker's last update.

    A worker answers with LEAVE, unless it has already said that it sends no more updates.
    """

    reason: Reason

    KIND: ClassVar[Kind] = Kind.STOPPING
