"""Messages with what belongs to a worker besides its parameters: buffers, optimizer state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from gradwire_protocol.limits import BUFFERS_BYTES_MAX, KIB, MESSAGE_BYTES_MAX
from gradwire_protocol.messages.fields import DIGEST_BYTES, RANK, REASON_CHARACTERS_MAX, SEQUENCE
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.layout import ELEMENTS_MAX
from gradwire_protocol.messages.schema import (
    SMALL_BYTES_MAX,
    Check,
    Record,
    blob,
    boolean,
    integer,
    optional,
    text,
)

STATE_PART_BYTES: Final = 256 * KIB
"""Most bytes in a part of an optimizer's state: two seconds on a link of 1 Mbit/s."""

STATE_SLOTS_MAX: Final = 8
"""Most numbers that an optimizer keeps for each parameter; Adam's two are many already."""

STATE_PARTS_MAX: Final = 1 + -(-(4 * STATE_SLOTS_MAX + 8) * ELEMENTS_MAX // STATE_PART_BYTES)
"""Parts of the largest state: what it is made of, then its values and some numbers for each
tensor."""


@dataclass(frozen=True, slots=True)
class Buffers(Record):
    """What the buffers of a worker's module hold, of which everyone takes the mean.

    The latest one of each rank counts. One without values says that none does any more.
    """

    rank: int
    """Whose they are."""
    final: bool
    """Whether it is the last one: the worker finishes, and it counts until the run has, too."""
    layout_digest: bytes
    """Of names, shapes and types: only buffers of the same layout are averaged."""
    floats: bytes
    """Little-endian; the layout says whether they have 4 bytes or 8."""
    integers: bytes
    """Little-endian int64."""

    KIND: ClassVar[Kind] = Kind.BUFFERS
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "rank": RANK,
        "final": boolean,
        "layout_digest": blob(DIGEST_BYTES, DIGEST_BYTES),
        "floats": blob(0, BUFFERS_BYTES_MAX),
        "integers": blob(0, BUFFERS_BYTES_MAX),
    }
    BYTES_MAX: ClassVar[int] = MESSAGE_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0

    @classmethod
    def none_of(cls, rank: int) -> "Buffers":
        """Return what says that nothing of a rank counts any more."""
        return cls(rank, final=False, layout_digest=bytes(DIGEST_BYTES), floats=b"", integers=b"")

    @property
    def nbytes(self) -> int:
        """Size of the values; 0 where there are none."""
        return len(self.floats) + len(self.integers)


@dataclass(frozen=True, slots=True)
class WantState(Record):
    """A worker asks for the state of another one's optimizer, or the master asks that one."""

    number: int
    """Which of all that the master gets for somebody; 0 from the worker that asks."""
    part: int | None
    """The part that is due; None where no more is wanted. From who asks, 0 or None."""

    KIND: ClassVar[Kind] = Kind.WANT_STATE
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "number": SEQUENCE,
        "part": optional(integer(0, STATE_PARTS_MAX - 1)),
    }


@dataclass(frozen=True, slots=True)
class StatePart(Record):
    """A part of the state of an optimizer, or that there is none.

    The first part says what the state is made of; the others are its bytes, in order. With another
    number another state begins, in place of one that could not be had to its end.
    """

    number: int
    """As it was asked for."""
    part: int
    parts: int
    """How many there are; 0 where there is no state to be had."""
    body: bytes
    reason: str = ""
    """Why there is none."""

    KIND: ClassVar[Kind] = Kind.STATE
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "number": SEQUENCE,
        "part": integer(0, STATE_PARTS_MAX - 1),
        "parts": integer(0, STATE_PARTS_MAX),
        "body": blob(0, STATE_PART_BYTES),
        "reason": text(REASON_CHARACTERS_MAX),
    }
    BYTES_MAX: ClassVar[int] = STATE_PART_BYTES + SMALL_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0
