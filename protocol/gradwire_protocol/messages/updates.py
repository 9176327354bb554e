"""Messages with updates and about their end: UPDATE, ENTRIES, STABLE, FINISH, LEAVE."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.limits import MESSAGE_BYTES_MAX, WINDOW_BYTES, charge_of
from gradwire_protocol.messages.fields import (
    RANK,
    SEQUENCE_MAX,
    VERSIONS_BYTES_MAX,
    Clock,
    Clocks,
    Pace,
    Position,
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

UPDATE_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 6 * VERSIONS_BYTES_MAX
"""Largest encoded update: a message less the maps around it."""

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
    """Every live worker has the log up to a position."""

    position: Position
    versions: Versions
    """The updates up to there."""

    KIND: ClassVar[Kind] = Kind.STABLE
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX + SMALL_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Span(Record):
    """What the log has after one position, up to another one."""

    start: Position
    """Its receiver was sent everything up to here. Between here and the first update in it, there
    is none, or some of its receiver's."""
    after: Versions
    """By rank, the last update in it."""
    updates: Annotated[int, integer(1, 2**63)]
    """How many updates are in it."""
    parts: Annotated[int, integer(1, ELEMENTS_MAX // PART_HITS + 1)]
    """How many messages carry it."""
    based_on: Annotated[Mapping[int, int], mapping(RANK, integer(0, 2**63), RANKS_MAX)]
    """By rank in `after`: what its last update was based on."""
    clocks: Clocks = field(default_factory=dict)
    """By rank: the clock of its last update that has one."""
    paces: Clocks = field(default_factory=dict)
    """By rank: the pace in its last update that has one."""
    closes: Versions = field(default_factory=dict)
    """In rounds, by rank: the last contributed update that is in the replica with it."""


@dataclass(frozen=True, slots=True)
class Entries(Record):
    """Entries of the log: one update as it came, or the sum of several; a part of it, if large.

    A sum is the same for all who are sent it, so it has updates of its receiver, too: these are to
    be subtracted. It takes effect when all its parts are here, and everything before it.
    """

    stop: Annotated[int, integer(1, 2**63)]
    """The position of the last one; names what its parts belong to."""
    body: Annotated[bytes, blob(0, UPDATE_BYTES_MAX)]
    """An encoded update; empty where it changes nothing. Parts have no element in common."""
    span: Span | None
    """What is in it; only in the last part."""

    KIND: ClassVar[Kind] = Kind.ENTRIES
    BYTES_MAX: ClassVar[int] = MESSAGE_BYTES_MAX


class EntriesAssembly:
    """Entries that have come, until they can be taken.

    They can be in the order of the log: when all parts of a sum are here, and everything before it.

    Parameters
    ----------
    elements : int
        Length of the replica.
    """

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self._bodies: dict[int, list[bytes]] = {}
        """By position."""
        self._spans: dict[int, Span] = {}
        self._numbers: dict[int, int] = {}
        """By position, the highest number of a message."""
        self._charge = 0

    def add(self, entries: Entries, number: int) -> None:
        """Take a message with its number; raise `InvalidMessageError` if it does not fit here."""
        stop, span = entries.stop, entries.span
        bodies = self._bodies.setdefault(stop, [])
        bodies.append(entries.body)
        self._charge += charge_of(len(entries.body))
        self._numbers[stop] = max(self._numbers.get(stop, 0), number)
        if span is not None:
            if stop in self._spans:
                raise InvalidMessageError("Entries: a second last part")
            if not span.start + span.updates <= stop:
                raise InvalidMessageError(
                    f"Entries: {span.updates} updates after {span.start}, up to {stop}"
                )
            self._spans[stop] = span
        span = self._spans.get(stop)
        if span is not None and len(bodies) > span.parts:
            raise InvalidMessageError(f"Entries: more than {span.parts} parts")
        parts = self.elements // PART_HITS + 1
        most = 2 * WAITING_SUMS_BYTES_MAX + parts * charge_of(PART_BYTES_MAX)
        if self._charge > most:
            raise InvalidMessageError(
                f"Entries: {self._charge} bytes wait for what comes before; the limit is {most}"
            )

    def after(self, position: int) -> int | None:
        """Return where the entries end that follow a position; None while these are not here."""
        stop = min(self._spans, default=None)
        if stop is None or self._spans[stop].start > position:
            return None
        return stop if len(self._bodies[stop]) == self._spans[stop].parts else None

    def take(self, stop: int) -> tuple[Span, list[bytes], int]:
        """Return what ends at a position, its bodies, and the highest number of its messages."""
        bodies = self._bodies.pop(stop)
        self._charge -= sum(charge_of(len(body)) for body in bodies)
        return self._spans.pop(stop), bodies, self._numbers.pop(stop)


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
