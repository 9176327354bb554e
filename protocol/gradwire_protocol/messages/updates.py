"""Messages with updates, and about where they end: UPDATE, CONFLATED, STABLE, FINISH, LEAVE."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from gradwire_protocol.limits import MESSAGE_BYTES_MAX
from gradwire_protocol.messages.fields import (
    CLOCK,
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
"""Largest encoded update: what a message holds less the map around it."""

PART_ELEMENTS: Final = 2**16
"""Elements in a part of a sum, 256 KiB at most: smaller than a block, as it is for who is slow, and
every part that arrives shows that he is there."""


@dataclass(frozen=True, slots=True)
class EncodedUpdate(Record):
    """An update on its way; its origin is the stream it travels in."""

    sequence: int
    based_on: int
    """How many updates of others the parameters contained that it was computed with."""
    body: bytes
    """Nothing where it changes nothing, and only says how far its origin is."""
    clock: int = 0
    """How many steps of its origin are in its updates up to this one; 0 where it does not say."""

    KIND: ClassVar[Kind] = Kind.UPDATE
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "sequence": integer(1, SEQUENCE_MAX),
        "based_on": integer(0, 2**63),
        "body": blob(0, UPDATE_BYTES_MAX),
        "clock": CLOCK,
    }
    BYTES_MAX: ClassVar[int] = MESSAGE_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Stable(Record):
    """Every live worker has the updates up to these."""

    versions: Mapping[int, int]

    KIND: ClassVar[Kind] = Kind.STABLE
    CHECKS: ClassVar[Mapping[str, Check]] = {"versions": VERSIONS}
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Span(Record):
    """Which updates a sum contains: of each rank, those after `before` up to `after`."""

    before: Mapping[int, int]
    after: Mapping[int, int]
    """Of the same ranks."""
    updates: int
    """How many these are."""
    parts: int
    """How many messages the sum takes."""
    clocks: Mapping[int, int] = field(default_factory=dict)
    """By rank: what the last update in it says of its origin's steps, where it does."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "before": VERSIONS,
        "after": VERSIONS,
        "updates": integer(1, 2**63),
        "parts": integer(1, ELEMENTS_MAX // PART_ELEMENTS + 1),
        "clocks": mapping(RANK, CLOCK, RANKS_MAX),
    }


@dataclass(frozen=True, slots=True)
class Conflated(Record):
    """A part of a sum of updates, which the master sends in place of them to who is slow.

    What is not in any part does not change. The sum counts when all parts are here.
    """

    start: int
    """The first element that it covers; a multiple of `PART_ELEMENTS`."""
    body: bytes
    """An encoded update of at most `PART_ELEMENTS`; none where the whole sum is zero."""
    span: Span | None
    """What the sum contains, in the last part."""

    KIND: ClassVar[Kind] = Kind.CONFLATED
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "start": integer(0, ELEMENTS_MAX),
        "body": blob(0, 4 * PART_ELEMENTS + SMALL_BYTES_MAX),
        "span": optional(record(Span)),
    }
    BYTES_MAX: ClassVar[int] = 4 * PART_ELEMENTS + 2 * SMALL_BYTES_MAX + 3 * VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Finish(Record):
    """A worker will send no more updates and waits for the others."""

    sequence: int
    """Of its last update."""

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
    """A worker goes, and its connection ends when this is delivered."""

    sequence: int
    """Of its last update."""
    reason: str

    KIND: ClassVar[Kind] = Kind.LEAVE
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "sequence": SEQUENCE,
        "reason": text(REASON_CHARACTERS_MAX),
    }


@dataclass(frozen=True, slots=True)
class Stopping(Record):
    """The master is about to end, and waits for the last update of everyone.

    A worker answers with LEAVE, unless it has said before that no more updates come.
    """

    reason: str

    KIND: ClassVar[Kind] = Kind.STOPPING
    CHECKS: ClassVar[Mapping[str, Check]] = {"reason": text(REASON_CHARACTERS_MAX)}
