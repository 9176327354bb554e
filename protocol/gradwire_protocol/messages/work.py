"""Messages about what is trained on, WORK and GRANT, and about when to stop, STOP.

A *work* is what the workers of a run divide among themselves: so many *items*, such as the shards
of a data set, once in each epoch. The items of all epochs are numbered through. The master grants
them to workers that ask, in the order of their numbers. A number that was granted is *open* until
the item is done: some worker has trained on it, and all live workers have the updates that came of
it.

So the *ledger* of a work is short: the next number, and the open ones before it. A worker learns it
with each grant, and tells it a master that has restarted. What one of them knows to be done is
done, and the rest is granted again.

WORK says all that a worker has to say of a work, each time. It may be repeated, and the last
counts.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, ClassVar, Final, TypeAlias

from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.messages.fields import SEQUENCE_MAX, Reason
from gradwire_protocol.messages.kinds import RANKS_MAX, Kind
from gradwire_protocol.messages.schema import (
    SMALL_BYTES_MAX,
    Record,
    integer,
    listing,
    mapping,
    text,
)

WORK_NAME_CHARACTERS_MAX: Final = 64

WORKS_MAX: Final = 8
"""Most works of one run: for training, validation, a few others."""

ITEMS_MAX: Final = 2**22
"""Most items of an epoch. A worker that shuffles them takes 8 bytes for each, for a moment."""

EPOCHS_MAX: Final = 2**16

NUMBER_MAX: Final = ITEMS_MAX * EPOCHS_MAX - 1

LEASE_SECONDS_MAX: Final = 30 * 24 * 3600

OPEN_MAX: Final = 2 * RANKS_MAX
"""Most open numbers of a work: beyond that the master waits for some to be done."""

FINISHED_MAX: Final = 256
"""Most items that a worker has finished while not all have its updates: then it gets no other."""

NUMBER_BYTES: Final = 9

LEDGER_BYTES_MAX: Final = SMALL_BYTES_MAX + NUMBER_BYTES * OPEN_MAX

Number: TypeAlias = Annotated[int, integer(0, NUMBER_MAX)]
WorkName: TypeAlias = Annotated[str, text(WORK_NAME_CHARACTERS_MAX)]


@dataclass(frozen=True, slots=True)
class Plan(Record):
    """What a work is; the same for all workers of a run."""

    name: WorkName
    items: Annotated[int, integer(1, ITEMS_MAX)]
    """Of one epoch."""
    epochs: Annotated[int, integer(1, EPOCHS_MAX)]
    seed: Annotated[int, integer(0, 2**32 - 1)] | None
    """What the items of an epoch are shuffled with, by the workers; None if they are not."""
    lease_seconds: Annotated[int, integer(1, LEASE_SECONDS_MAX)]
    """How long a worker may hold an item before it is granted to another one as well."""

    @property
    def numbers(self) -> int:
        """How many items there are in all epochs."""
        return self.items * self.epochs

    def __str__(self) -> str:
        """For messages."""
        seed = "not shuffled" if self.seed is None else f"shuffle_seed={self.seed}"
        return f"{self.items} items, epochs={self.epochs}, {seed}"


@dataclass(frozen=True, slots=True)
class Ledger(Record):
    """Which items of a work are done: all before `next` that are not open."""

    next: Annotated[int, integer(0, NUMBER_MAX + 1)] = 0
    """The first number that was never granted."""
    open: Annotated[tuple[int, ...], listing(integer(0, NUMBER_MAX), OPEN_MAX)] = ()
    """Ascending."""

    BYTES_MAX: ClassVar[int] = LEDGER_BYTES_MAX

    def check(self, plan: Plan) -> None:
        """Raise `InvalidMessageError` if this is no ledger of a work."""
        numbers = (-1, *self.open, self.next)
        in_order = all(one < other for one, other in pairwise(numbers))
        if not in_order or self.next > plan.numbers:
            raise InvalidMessageError(
                f"a ledger of {plan.numbers} items with {self.next} granted, and open ones that "
                "are not in order, or not among these"
            )

    @property
    def done(self) -> int:
        """How many items are done."""
        return self.next - len(self.open)


@dataclass(frozen=True, slots=True)
class Work(Record):
    """What a worker says of a work."""

    plan: Plan
    ledger: Ledger
    """As far as it knows."""
    held: Number | None
    """What it trains on."""
    finished: Annotated[
        dict[int, int], mapping(integer(0, NUMBER_MAX), integer(0, SEQUENCE_MAX), FINISHED_MAX)
    ] = field(default_factory=dict)
    """What it has trained on and does not know to be done; with each the sequence of its last
    update then."""
    wants: bool = False
    """Whether it waits for a grant."""

    KIND: ClassVar[Kind] = Kind.WORK
    BYTES_MAX: ClassVar[int] = LEDGER_BYTES_MAX + (NUMBER_BYTES + 6) * FINISHED_MAX

    def check(self) -> None:
        """Raise `InvalidMessageError` if the parts contradict each other."""
        self.ledger.check(self.plan)
        known = set(self.ledger.open)
        own = {*self.finished, *(() if self.held is None else (self.held,))}
        if not own <= known or self.held in self.finished or (self.wants and self.held is not None):
            raise InvalidMessageError("a worker's items that contradict its own ledger")


@dataclass(frozen=True, slots=True)
class Grant(Record):
    """The answer to a worker that wants an item."""

    name: WorkName
    ledger: Ledger
    number: Number | None
    """None if all items are done, or if the work is refused."""
    refused: Reason = ""
    """Why this worker gets none at all; empty if it is not refused."""

    KIND: ClassVar[Kind] = Kind.GRANT
    BYTES_MAX: ClassVar[int] = LEDGER_BYTES_MAX


@dataclass(frozen=True, slots=True)
class StopTraining(Record):
    """All workers are to end their training, and to finish."""

    reason: Reason

    KIND: ClassVar[Kind] = Kind.STOP


@dataclass(frozen=True, slots=True)
class WorkState(Record):
    """A work as a checkpoint has it."""

    plan: Plan
    ledger: Ledger

    BYTES_MAX: ClassVar[int] = LEDGER_BYTES_MAX + SMALL_BYTES_MAX
