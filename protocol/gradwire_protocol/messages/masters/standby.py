"""Messages between two masters and the voters: FOLLOW, PROMISE, VOTERS."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from gradwire_protocol.messages.fields import WORKER_ID_BYTES, SequenceNumber, Term
from gradwire_protocol.messages.kinds import RANKS_MAX, Kind
from gradwire_protocol.messages.schema import SMALL_BYTES_MAX, Record, blob, listing


@dataclass(frozen=True, slots=True)
class Follow(Record):
    """A standby says that it follows this master, and which voters it knows."""

    term: Term
    """The highest term that it has heard of or asked for promises in."""
    voters: SequenceNumber | None
    """Number of the last `Voters` received from this master; None at first."""

    KIND: ClassVar[Kind] = Kind.FOLLOW


@dataclass(frozen=True, slots=True)
class Promise(Record):
    """A master asks a worker to follow it in a term; the worker answers with its own term."""

    term: Term

    KIND: ClassVar[Kind] = Kind.PROMISE


@dataclass(frozen=True, slots=True)
class Voters(Record):
    """A master tells its standby the voters: the workers whose promises count."""

    number: SequenceNumber
    """Number that the standby repeats in its answer."""
    term: Term
    """Term of the master."""
    workers: Annotated[
        tuple[bytes, ...], listing(blob(WORKER_ID_BYTES, WORKER_ID_BYTES), RANKS_MAX)
    ]
    """Random ids of the workers."""

    KIND: ClassVar[Kind] = Kind.VOTERS
    BYTES_MAX: ClassVar[int] = SMALL_BYTES_MAX + RANKS_MAX * (WORKER_ID_BYTES + 2)
