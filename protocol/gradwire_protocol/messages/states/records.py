"""Messages with the buffers and the optimizer state of a worker."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from gradwire_protocol.limits import (
    BUFFER_LAYOUT_BYTES_MAX,
    BUFFERS_BYTES_MAX,
    KIB,
    MESSAGE_BYTES_MAX,
)
from gradwire_protocol.messages.fields import Rank, Reason, SequenceNumber
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.layout import ELEMENTS_MAX
from gradwire_protocol.messages.schema import SMALL_BYTES_MAX, Record, blob, integer

STATE_PART_BYTES: Final = 256 * KIB
"""Most bytes in a part of an optimizer's state: two seconds on a link of 1 Mbit/s."""

STATE_SLOTS_MAX: Final = 8
"""Most numbers that an optimizer keeps for each parameter. Adam keeps two."""

STATE_PARTS_MAX: Final = 1 + -(-(4 * STATE_SLOTS_MAX + 8) * ELEMENTS_MAX // STATE_PART_BYTES)
"""Parts of the largest state: its description, then its values and a few numbers for each
tensor."""


@dataclass(frozen=True, slots=True)
class Buffers(Record):
    """The values of the buffers of a worker's module; `buffers.agreed` says what all use.

    The latest message of each rank counts. One without values withdraws the rank's buffers.
    """

    rank: Rank
    """The worker they belong to."""
    final: bool
    """Whether it is the rank's last: the worker is finishing, and these values count until the run
    ends."""
    leaves: bool
    """Whether the worker leaves while others train on. Its statistics count, but of what is not
    averaged its values are used only where no other worker has any."""
    layout: Annotated[bytes, blob(0, BUFFER_LAYOUT_BYTES_MAX)]
    """A packed `BufferLayout`. Only buffers of the same layout are averaged."""
    floats: Annotated[bytes, blob(0, BUFFERS_BYTES_MAX)]
    """Little-endian floats of 4 or 8 bytes, as the layout says."""
    integers: Annotated[bytes, blob(0, BUFFERS_BYTES_MAX)]
    """Little-endian int64."""
    others: Annotated[bytes, blob(0, BUFFERS_BYTES_MAX)]
    """What is not averaged, little-endian, as the layout says."""

    KIND: ClassVar[Kind] = Kind.BUFFERS
    BYTES_MAX: ClassVar[int] = MESSAGE_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0

    @classmethod
    def withdrawal(cls, rank: int) -> "Buffers":
        """Return a message that withdraws the buffers of a rank."""
        return cls(rank, False, False, layout=b"", floats=b"", integers=b"", others=b"")

    @property
    def nbytes(self) -> int:
        """Size of the values; 0 where there are none."""
        return len(self.floats) + len(self.integers) + len(self.others)


@dataclass(frozen=True, slots=True)
class WantState(Record):
    """A worker asks the master for an optimizer's state, or the master asks another worker."""

    number: SequenceNumber
    """Number of the request, assigned by the master; 0 from the worker that asks."""
    part: Annotated[int, integer(0, STATE_PARTS_MAX - 1)] | None
    """The part wanted next; None to cancel. The worker that asks sends 0 or None."""

    KIND: ClassVar[Kind] = Kind.WANT_STATE


@dataclass(frozen=True, slots=True)
class StatePart(Record):
    """A part of the state of an optimizer, or the answer that there is none.

    The first part describes the state; the others are its bytes, in order. A new number begins
    another state and replaces one that could not be completed.
    """

    number: SequenceNumber
    """Number of the request."""
    part: Annotated[int, integer(0, STATE_PARTS_MAX - 1)]
    parts: Annotated[int, integer(0, STATE_PARTS_MAX)]
    """How many parts there are; 0 if no state is available."""
    body: Annotated[bytes, blob(0, STATE_PART_BYTES)]
    reason: Reason = ""
    """Why no state is available."""

    KIND: ClassVar[Kind] = Kind.STATE
    BYTES_MAX: ClassVar[int] = STATE_PART_BYTES + SMALL_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0
