"""Messages between two masters and the voters: FOLLOW, PROMISE, VOTERS."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gradwire_protocol.messages.fields import SEQUENCE, TERM, WORKER_ID, WORKER_ID_BYTES
from gradwire_protocol.messages.kinds import RANKS_MAX, Kind
from gradwire_protocol.messages.schema import SMALL_BYTES_MAX, Check, Record, listing, optional


@dataclass(frozen=True, slots=True)
class Follow(Record):
    """A standby says that it follows this master, and which voters it knows."""

    term: int
    """The highest term that it has heard of or asked for promises in."""
    voters: int | None
    """Number of the last `Voters` received from this master; None at first."""

    KIND: ClassVar[Kind] = Kind.FOLLOW
    CHECKS: ClassVar[Mapping[str, Check]] = {"term": TERM, "voters": optional(SEQUENCE)}


@dataclass(frozen=True, slots=True)
class Promise(Record):
    """A master asks a worker to follow it in a term; the worker answers with its own term."""

    term: int

    KIND: ClassVar[Kind] = Kind.PROMISE
    CHECKS: ClassVar[Mapping[str, Check]] = {"term": TERM}


@dataclass(frozen=True, slots=True)
class Voters(Record):
    """A master tells its standby the voters: the workers whose promises count."""

    number: int
    """Number that the standby repeats in its answer."""
    term: int
    """Term of the master."""
    workers: tuple[bytes, ...]
    """Random ids of the workers."""

    KIND: ClassVar[Kind] = Kind.VOTERS
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "number": SEQUENCE,
        "term": TERM,
        "workers": listing(WORKER_ID, RANKS_MAX),
    }
    BYTES_MAX: ClassVar[int] = SMALL_BYTES_MAX + RANKS_MAX * (WORKER_ID_BYTES + 2)
