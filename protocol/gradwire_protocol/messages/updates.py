"""Messages with updates and about their end: UPDATE, CONFLATED, STABLE, FINISH, LEAVE."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from gradwire_protocol.limits import MESSAGE_BYTES_MAX
from gradwire_protocol.messages.fields import (
    CLOCK,
    PACE,
    RANK,
    REASON_CHARACTERS_MAX,
    SEQUENCE,
    SEQUENCE_MAX,
    VERSIONS,
    VERSIONS_BYTES_MAX,
)
from gradwire_protocol.messages.kinds import RANKS_MAX, Kind
from gradwire_protocol.messages.layout import ELEMENTS_MAX
from gradwire_protocol.messages.schema import (
    SMALL_BYTES_MAX,
    Check,
    Record,
    blob,
    integer,
    mapping,
    optional,
    record,
    text,
)

UPDATE_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 256
"""Largest encoded update: a message less the map around it."""

PART_ELEMENTS: Final = 2**16
"""Elements in a part of a sum: at most 256 KiB. It is smaller than a block, because its receiver is
slow and each part that arrives proves that the receiver is alive."""


@dataclass(frozen=True, slots=True)
class EncodedUpdate(Record):
    """An encoded update; the stream tells its origin."""

    sequence: int
    based_on: int
    """How many updates of other workers the parameters contained when it was computed."""
    body: bytes
    """Empty for an update that changes nothing and only reports its origin's progress."""
    clock: int = 0
    """Steps of its origin in all updates up to this one; 0 if unknown."""
    pace: int = 0
    """How long its origin takes for a step, without its waits, in microseconds; 0 if unknown."""

    KIND: ClassVar[Kind] = Kind.UPDATE
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "sequence": integer(1, SEQUENCE_MAX),
        "based_on": integer(0, 2**63),
        "body": blob(0, UPDATE_BYTES_MAX),
        "clock": CLOCK,
        "pace": PACE,
    }
    BYTES_MAX: ClassVar[int] = MESSAGE_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Stable(Record):
    """Every live worker has the updates up to these versions."""

    versions: Mapping[int, int]

    KIND: ClassVar[Kind] = Kind.STABLE
    CHECKS: ClassVar[Mapping[str, Check]] = {"versions": VERSIONS}
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Span(Record):
    """The updates in a sum: of each rank, those after `before` up to `after`."""

    before: Mapping[int, int]
    after: Mapping[int, int]
    """Has the same ranks as `before`."""
    updates: int
    """How many updates the sum contains."""
    parts: int
    """How many messages carry the sum."""
    clocks: Mapping[int, int] = field(default_factory=dict)
    """By rank: the clock of the last update in the sum, where known."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "before": VERSIONS,
        "after": VERSIONS,
        "updates": integer(1, 2**63),
        "parts": integer(1, ELEMENTS_MAX // PART_ELEMENTS + 1),
        "clocks": mapping(RANK, CLOCK, RANKS_MAX),
    }


@dataclass(frozen=True, slots=True)
class Conflated(Record):
    """A part of a sum of updates, which the master sends to a slow worker in their place.

    Elements in no part do not change. The sum takes effect when all its parts have arrived.
    """

    start: int
    """The first element covered; a multiple of `PART_ELEMENTS`."""
    body: bytes
    """An encoded update of at most `PART_ELEMENTS`; empty where the whole sum is zero."""
    span: Span | None
    """The updates in the sum; only in the last part."""

    KIND: ClassVar[Kind] = Kind.CONFLATED
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "start": integer(0, ELEMENTS_MAX),
        "body": blob(0, 4 * PART_ELEMENTS + SMALL_BYTES_MAX),
        "span": optional(record(Span)),
    }
    BYTES_MAX: ClassVar[int] = 4 * PART_ELEMENTS + 2 * SMALL_BYTES_MAX + 3 * VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Finish(Record):
    """A worker sends no more updates and waits for the others."""

    sequence: int
    """Sequence of its last update."""

    KIND: ClassVar[Kind] = Kind.FINISH
    CHECKS: ClassVar[Mapping[str, Check]] = {"sequence": SEQUENCE}


@dataclass(frozen=True, slots=True)
class Finished(Record):
    """All live workers have finished."""

    versions: Mapping[int, int]
    """All updates of the run."""

    KIND: ClassVar[Kind] = Kind.FINISHED
    CHECKS: ClassVar[Mapping[str, Check]] = {"versions": VERSIONS}
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Leave(Record):
    """A worker leaves; its connection ends when this is delivered."""

    sequence: int
    """Sequence of its last update."""
    reason: str

    KIND: ClassVar[Kind] = Kind.LEAVE
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "sequence": SEQUENCE,
        "reason": text(REASON_CHARACTERS_MAX),
    }


@dataclass(frozen=True, slots=True)
class Stopping(Record):
    """The master is about to end and waits for every worker's last update.

    A worker answers with LEAVE, unless it has already said that it sends no more updates.
    """

    reason: str

    KIND: ClassVar[Kind] = Kind.STOPPING
    CHECKS: ClassVar[Mapping[str, Check]] = {"reason": text(REASON_CHARACTERS_MAX)}
