"""Messages between two masters, and to those that vote: FOLLOW, PROMISE, VOTERS."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gradwire_protocol.messages.fields import SEQUENCE, TERM, WORKER_ID, WORKER_ID_BYTES
from gradwire_protocol.messages.kinds import RANKS_MAX, Kind
from gradwire_protocol.messages.schema import SMALL_BYTES_MAX, Check, Record, listing, optional


@dataclass(frozen=True, slots=True)
class Follow(Record):
    """A standby says that it is in charge of nothing, and follows; and which voters it knows."""

    term: int
    """The highest one that it has heard of, or has asked workers to follow it in."""
    voters: int | None
    """The number of the `Voters` that it has from this master; None with the first one."""

    KIND: ClassVar[Kind] = Kind.FOLLOW
    CHECKS: ClassVar[Mapping[str, Check]] = {"term": TERM, "voters": optional(SEQUENCE)}


@dataclass(frozen=True, slots=True)
class Promise(Record):
    """A master asks whether a worker follows it in a term, and the worker answers in which."""

    term: int

    KIND: ClassVar[Kind] = Kind.PROMISE
    CHECKS: ClassVar[Mapping[str, Check]] = {"term": TERM}


@dataclass(frozen=True, slots=True)
class Voters(Record):
    """A master tells its standby whose promises it takes to go on in its place."""

    number: int
    """The standby answers with it."""
    term: int
    """Of the master."""
    workers: tuple[bytes, ...]
    """Their random ids."""

    KIND: ClassVar[Kind] = Kind.VOTERS
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "number": SEQUENCE,
        "term": TERM,
        "workers": listing(WORKER_ID, RANKS_MAX),
    }
    BYTES_MAX: ClassVar[int] = SMALL_BYTES_MAX + RANKS_MAX * (WORKER_ID_BYTES + 2)
