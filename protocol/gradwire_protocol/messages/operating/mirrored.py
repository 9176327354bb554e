"""SAVED and PASSED: what workers have logged, from a master to its standby.

The standby is sent what was logged until it came, in parts, and from then on each message in which
a worker logs something, as it came. They are on the stream on which workers log, in order, and
nothing else waits for them.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from gradwire_protocol.limits import KIB
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.kinds import WORKERS_MAX, Kind
from gradwire_protocol.messages.operating.histograms import Histograms
from gradwire_protocol.messages.operating.scalars import Logged
from gradwire_protocol.messages.schema import SMALL_BYTES_MAX, Record, blob, choice, integer

PART_BYTES: Final = 256 * KIB


@dataclass(frozen=True, slots=True)
class Saved(Record):
    """A part of what was logged until now."""

    first: bool
    """Whether it is the first part: what came before is void."""
    last: bool
    """Whether it is the last one."""
    body: Annotated[bytes, blob(0, PART_BYTES)]

    KIND: ClassVar[Kind] = Kind.SAVED
    BYTES_MAX: ClassVar[int] = SMALL_BYTES_MAX + PART_BYTES


@dataclass(frozen=True, slots=True)
class Passed(Record):
    """What a worker has logged since then."""

    rank: Annotated[int, integer(0, WORKERS_MAX - 1)]
    worker: Annotated[bytes, blob(WORKER_ID_BYTES, WORKER_ID_BYTES)]
    kind: Annotated[int, choice(int(Kind.LOGGED), int(Kind.HISTOGRAMS))]
    body: Annotated[bytes, blob(0, max(Logged.BYTES_MAX, Histograms.BYTES_MAX))]
    """A `Logged` or `Histograms`, packed."""

    KIND: ClassVar[Kind] = Kind.PASSED
    BYTES_MAX: ClassVar[int] = SMALL_BYTES_MAX + max(Logged.BYTES_MAX, Histograms.BYTES_MAX)

    def unpacked(self) -> Logged | Histograms:
        """Return what the worker has logged; `InvalidMessageError` if it is malformed."""
        records: tuple[type[Logged | Histograms], ...] = Logged, Histograms
        return next(each for each in records if self.kind == each.KIND).parse(self.body)
