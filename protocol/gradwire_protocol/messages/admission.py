"""Messages about taking part: JOIN, WELCOME, REFUSE, ROSTER."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final

from gradwire_protocol.limits import MESSAGE_BYTES_MAX
from gradwire_protocol.messages.fields import (
    ADDRESS,
    NAME,
    RANK,
    REASON_CHARACTERS_MAX,
    ROSTER_BYTES_MAX,
    SEQUENCE,
    TERM,
    VERSIONS,
    VERSIONS_BYTES_MAX,
    WORKER_ID,
    WORKER_NAME,
    WORKER_NAME_CHARACTERS_MAX,
)
from gradwire_protocol.messages.kinds import RANKS_MAX, Kind
from gradwire_protocol.messages.layout import LAYOUT_BYTES_MAX, NAME_CHARACTERS_MAX, Layout
from gradwire_protocol.messages.schema import (
    SMALL_BYTES_MAX,
    Check,
    Record,
    boolean,
    integer,
    listing,
    optional,
    record,
    text,
)

assert LAYOUT_BYTES_MAX + ROSTER_BYTES_MAX + VERSIONS_BYTES_MAX < MESSAGE_BYTES_MAX, (
    "a WELCOME with the largest layout and the largest roster fits a message"
)
QUANTUM_EXPONENT_MIN: Final = -40

QUANTUM_EXPONENT_MAX: Final = 0
"""As of a replica; `gradwire_codecs.replica.replica` has the same bounds, and their reason."""

CODEC_VERSION: Final = 1
"""Of the format of encoded updates; two versions cannot take part in one run."""


class RefusalCode(StrEnum):
    """Why a worker may not join, or an order is not carried out."""

    OTHER_RUN = "other_run"
    OTHER_LAYOUT = "other_layout"
    OTHER_CODEC = "other_codec"
    TOO_LARGE = "too_large"
    RUN_FULL = "run_full"
    RUN_FINISHED = "run_finished"
    ALREADY_JOINED = "already_joined"
    NOT_EXPECTED = "not_expected"
    DRAINING = "draining"
    NO_RUN = "no_run"
    NOT_IN_CHARGE = "not_in_charge"
    ROLE = "role"
    ORDER = "order"


@dataclass(frozen=True, slots=True)
class Peer(Record):
    """A worker as others know it."""

    rank: int
    name: str
    finished: bool
    """Whether it has sent its last update."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "rank": RANK,
        "name": WORKER_NAME,
        "finished": boolean,
    }


@dataclass(frozen=True, slots=True)
class Resume(Record):
    """What a worker still has that took part before and lost its connection."""

    rank: int
    sequence: int
    """Of the last update that it has encoded, sent or not."""
    versions: Mapping[int, int]
    """The updates of others that it has."""
    workers: int
    """How many workers took part when it last heard of them."""
    kept: Mapping[int, int] = field(default_factory=dict)
    """By rank: the first update that it keeps, and all after it that it has; its own included."""
    term: int = 0
    """The highest term that it has followed a master in, or has promised to."""
    leaving: bool = False
    """Whether it only wants to know that it has left."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "rank": RANK,
        "sequence": SEQUENCE,
        "versions": VERSIONS,
        "workers": integer(0, RANKS_MAX),
        "kept": VERSIONS,
        "term": TERM,
        "leaving": boolean,
    }


@dataclass(frozen=True, slots=True)
class Join(Record):
    """A worker asks to take part."""

    run: str | None
    """The run it means; None for whichever the master has."""
    worker_id: bytes
    """Random, the same as long as the session lives."""
    name: str
    """For people: host and process."""
    rank: int | None
    """The rank it would like, if that is free."""
    codec: int
    """Version of the format of encoded updates."""
    quantum_exponent: int
    """The quantum that suits its parameters, used if it is the first one."""
    layout: Layout
    resume: Resume | None = None
    """What it has, if it is back."""
    partial: Mapping[int, int] | None = None
    """The updates in the part of the replica that it has, if its connection was lost while that
    came."""
    gives_state: bool = False
    """Whether it gives the state of its optimizer to those who ask for one."""

    KIND: ClassVar[Kind] = Kind.JOIN
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "run": optional(NAME),
        "worker_id": WORKER_ID,
        "name": WORKER_NAME,
        "rank": optional(RANK),
        "codec": integer(0, 2**16 - 1),
        "quantum_exponent": integer(QUANTUM_EXPONENT_MIN, QUANTUM_EXPONENT_MAX),
        "layout": record(Layout),
        "resume": optional(record(Resume)),
        "partial": optional(VERSIONS),
        "gives_state": boolean,
    }
    BYTES_MAX: ClassVar[int] = LAYOUT_BYTES_MAX + 2 * VERSIONS_BYTES_MAX + SMALL_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Welcome(Record):
    """A worker takes part.

    With `founder` set it asks for the first parameters; without, a snapshot comes too, unless the
    worker has something already: then the updates that it lacks come, if they are still kept, and
    where these do not lead to a replica, BLOCKS. Who joins while another worker's are on their way
    is welcomed when they are here, or, where that worker is gone before, may be asked for its own.
    """

    run: str
    rank: int
    sequence: int
    """The sequence of the last update of this rank; the worker goes on with the next."""
    quantum_exponent: int
    layout: Layout
    roster: tuple[Peer, ...]
    founder: bool
    """Whether this worker's parameters start the run; otherwise a snapshot follows."""
    versions: Mapping[int, int]
    """What the snapshot contains."""
    resumed: bool = False
    """Whether every update is sent to the worker that what it has lacks."""
    term: int = 1
    """Of the master; the worker follows none of an earlier one any more."""
    standby: str | None = None
    """``host:port`` of the other master, where this one may be lost."""
    compares: bool = False
    """Whether BLOCKS are sent, and of the replica only what the worker then asks for."""

    KIND: ClassVar[Kind] = Kind.WELCOME
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "run": NAME,
        "rank": RANK,
        "sequence": SEQUENCE,
        "quantum_exponent": integer(QUANTUM_EXPONENT_MIN, QUANTUM_EXPONENT_MAX),
        "layout": record(Layout),
        "roster": listing(record(Peer), RANKS_MAX),
        "founder": boolean,
        "versions": VERSIONS,
        "resumed": boolean,
        "term": TERM,
        "standby": optional(ADDRESS),
        "compares": boolean,
    }
    BYTES_MAX: ClassVar[int] = LAYOUT_BYTES_MAX + ROSTER_BYTES_MAX + VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Refuse(Record):
    """A worker may not take part, or an order is not carried out."""

    code: str
    reason: str
    master: str | None = None
    """``host:port`` of the master to try instead, if there is one."""

    KIND: ClassVar[Kind] = Kind.REFUSE
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "code": text(NAME_CHARACTERS_MAX),
        "reason": text(REASON_CHARACTERS_MAX),
        "master": optional(ADDRESS),
    }


@dataclass(frozen=True, slots=True)
class Roster(Record):
    """Who takes part."""

    peers: tuple[Peer, ...]

    KIND: ClassVar[Kind] = Kind.ROSTER
    CHECKS: ClassVar[Mapping[str, Check]] = {"peers": listing(record(Peer), RANKS_MAX)}
    BYTES_MAX: ClassVar[int] = ROSTER_BYTES_MAX


def name_in_roster(key_name: str | None, own_name: str) -> str:
    """Return what everyone knows a worker by.

    The name in its key comes first, which nobody else can have; what it calls itself may be
    anything.

    Parameters
    ----------
    key_name : str or None
        The name in its key; None without one.
    own_name : str
        What it calls itself.
    """
    if key_name is None or key_name == own_name:
        return own_name
    return f"{key_name} at {own_name}"[:WORKER_NAME_CHARACTERS_MAX]
