"""`Buffers`: a message with the buffers of a worker."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from gradwire_protocol.limits import BUFFER_LAYOUT_BYTES_MAX, BUFFERS_BYTES_MAX, MESSAGE_BYTES_MAX
from gradwire_protocol.messages.fields import Rank
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.schema import Record, blob


@dataclass(frozen=True, slots=True)
class Buffers(Record):
    """The values of the buffers of a worker's module; `agreement.agreed` says what all use.

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
