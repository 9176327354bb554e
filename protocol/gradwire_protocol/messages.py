"""Messages: what workers and the master of a run say to each other.

::

    kind  name       from    says
    1     JOIN       worker  who I am, what my model looks like, what I have if I am back
    2     WELCOME    master  your rank, who takes part, where your updates and the run's stand
    3     REFUSE     master  no, and why
    4     ROSTER     master  who takes part now
    5     SNAPSHOT   both    a block of the replica: the first worker to the master, then the
                             master to every later worker
    6     UPDATE     both    an encoded update; the master passes it on as it is, or clipped
    7     STABLE     master  every live worker has these updates
    8     FINISH     worker  that was my last update
    9     FINISHED   master  nobody sends any more; these are all updates there are
    10    LEAVE      worker  that was my last update, do not wait for me
    11    ORDER      operator  do this
    12    DONE       master  it is done, or what was asked for
    13    CONTENTS   worker  which updates the replica contains that I send you

An observer says JOIN and LEAVE, and hears what workers hear; an operator says ORDER, and hears DONE
or REFUSE, one for each, in order. What a peer is, its key says; without keys, everyone is a worker.

Streams give messages their place: updates travel in the stream of their origin's rank with their
sequence as number, so a relayed message is the same for everyone. The stream of a worker's own rank
brings it corrections only: what an update of its own is less for the others. `CONTROL_STREAM`
carries the rest in order, numbered from 0 on each connection; `SNAPSHOT_STREAM` numbers blocks from
0.

Every message is a msgpack map, checked field by field (see `schema`). An encoded update and the
values of a block are opaque here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import ClassVar, Final

from gradwire_protocol.layout import ELEMENTS_MAX, LAYOUT_BYTES_MAX, NAME_CHARACTERS_MAX, Layout
from gradwire_protocol.limits import MESSAGE_BYTES_MAX, STREAMS_MAX
from gradwire_protocol.schema import (
    SMALL_BYTES_MAX,
    Check,
    Record,
    blob,
    boolean,
    integer,
    listing,
    mapping,
    optional,
    record,
    text,
)

RANKS_MAX: Final = STREAMS_MAX - 2
"""Most workers of one run: a stream each, and two more."""

CONTROL_STREAM: Final = 2**16 - 1
SNAPSHOT_STREAM: Final = 2**16 - 2

SEQUENCE_MAX: Final = 2**32 - 1
"""Updates of one origin. At a hundred a second they last for sixteen months."""

WORKER_NAME_CHARACTERS_MAX: Final = 64
REASON_CHARACTERS_MAX: Final = 1_000
WORKER_ID_BYTES: Final = 16

ROSTER_BYTES_MAX: Final = SMALL_BYTES_MAX + RANKS_MAX * (4 * WORKER_NAME_CHARACTERS_MAX + 40)
VERSIONS_BYTES_MAX: Final = SMALL_BYTES_MAX + 10 * RANKS_MAX
"""A pair is 1 byte, a rank at most 3, a sequence at most 5."""

ANSWER_BYTES_MAX: Final = SMALL_BYTES_MAX + RANKS_MAX * (4 * WORKER_NAME_CHARACTERS_MAX + 256)
"""What answers an order: besides its name, a worker takes at most 100 bytes of a status, and its
version 20; the rest is for names that are denied."""

assert ANSWER_BYTES_MAX < MESSAGE_BYTES_MAX, "the longest answer fits a message"
assert LAYOUT_BYTES_MAX + ROSTER_BYTES_MAX + VERSIONS_BYTES_MAX < MESSAGE_BYTES_MAX, (
    "a WELCOME with the largest layout and the largest roster fits a message"
)

QUANTUM_EXPONENT_MIN: Final = -40
QUANTUM_EXPONENT_MAX: Final = 0
"""What a replica can have; `gradwire_codecs.replica` has the same bounds, and its reason."""

CODEC_VERSION: Final = 1
"""Of the format of encoded updates; two versions cannot take part in one run."""

UPDATE_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 256
"""Largest encoded update: what a message holds less the map around it."""

BLOCK_ELEMENTS: Final = 2**18
"""Elements in a block of a snapshot: 1 MiB."""


class Kind(IntEnum):
    """Which message it is."""

    JOIN = 1
    WELCOME = 2
    REFUSE = 3
    ROSTER = 4
    SNAPSHOT = 5
    UPDATE = 6
    STABLE = 7
    FINISH = 8
    FINISHED = 9
    LEAVE = 10
    ORDER = 11
    DONE = 12
    CONTENTS = 13


class Action(StrEnum):
    """What an operator can have done."""

    STATUS = "status"
    """Say who takes part and how far the run has got, as JSON."""
    DRAIN = "drain"
    """Let nobody in any more, and stop when the last worker has left."""
    RESUME = "resume"
    """Let workers in again."""
    DENY = "deny"
    """Accept no key of this name, and close what is open of it."""
    ADMIT = "admit"
    """Accept them again."""
    RELEASE = "release"
    """End the quarantine of a worker: what was kept aside is accepted."""
    EXPEL = "expel"
    """Close the connection of a worker or an observer; it may join again."""
    CHECKPOINT = "checkpoint"
    """Write down what there is of the run."""


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
    ROLE = "role"
    ORDER = "order"


class EndCode(IntEnum):
    """Why a master or a worker closed a connection; above the transport's own codes."""

    LEFT = 64
    """The worker left; its LEAVE was received."""
    REFUSED = 65
    """The REFUSE was delivered, or nobody took it in time."""
    STOPPED = 66
    """The master was told to stop."""
    TOO_SLOW = 67
    """More waits for this worker than the master keeps for it."""
    MALFORMED_UPDATE = 68
    """The worker sent an update that does not fit the run."""
    NO_JOIN = 69
    """Nothing was asked for in time."""
    ABORTED = 70
    """The worker gave up: its training failed, or its process is about to end."""
    QUARANTINED = 71
    """The worker was in quarantine for an update far too large, and is not waited for."""
    EXPELLED = 72
    """An operator sent the worker or observer away."""
    RUN_OVER = 73
    """The observer was still there when the next run began."""
    DONE = 74
    """The operator has its answers."""


_RANK: Final = integer(0, RANKS_MAX - 1)
_SEQUENCE: Final = integer(0, SEQUENCE_MAX)
_VERSIONS: Final = mapping(_RANK, _SEQUENCE, RANKS_MAX)
_NAME: Final = text(NAME_CHARACTERS_MAX)
_WORKER_NAME: Final = text(WORKER_NAME_CHARACTERS_MAX)
_ANSWER: Final = text(ANSWER_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class Peer(Record):
    """A worker as others know it."""

    rank: int
    name: str
    finished: bool
    """Whether it has sent its last update."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "rank": _RANK,
        "name": _WORKER_NAME,
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

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "rank": _RANK,
        "sequence": _SEQUENCE,
        "versions": _VERSIONS,
        "workers": integer(0, RANKS_MAX),
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

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "run": optional(_NAME),
        "worker_id": blob(WORKER_ID_BYTES, WORKER_ID_BYTES),
        "name": _WORKER_NAME,
        "rank": optional(_RANK),
        "codec": integer(0, 2**16 - 1),
        "quantum_exponent": integer(QUANTUM_EXPONENT_MIN, QUANTUM_EXPONENT_MAX),
        "layout": record(Layout),
        "resume": optional(record(Resume)),
    }
    BYTES_MAX: ClassVar[int] = LAYOUT_BYTES_MAX + VERSIONS_BYTES_MAX + SMALL_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Welcome(Record):
    """A worker takes part.

    With `founder` set it asks for the first parameters; without, a snapshot comes too, unless the
    worker is back and the updates it lacks are still kept. Who joins
    while another worker's are on their way is welcomed when they are here, or, where that worker is
    gone before, may be asked for its own.
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
    """Whether the worker keeps its replica, because every update that it lacks is sent to it."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "run": _NAME,
        "rank": _RANK,
        "sequence": _SEQUENCE,
        "quantum_exponent": integer(QUANTUM_EXPONENT_MIN, QUANTUM_EXPONENT_MAX),
        "layout": record(Layout),
        "roster": listing(record(Peer), RANKS_MAX),
        "founder": boolean,
        "versions": _VERSIONS,
        "resumed": boolean,
    }
    BYTES_MAX: ClassVar[int] = LAYOUT_BYTES_MAX + ROSTER_BYTES_MAX + VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Contents(Record):
    """A worker says which updates the replica contains that it sends to a master started anew."""

    versions: Mapping[int, int]
    """Its own included."""

    CHECKS: ClassVar[Mapping[str, Check]] = {"versions": _VERSIONS}
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Refuse(Record):
    """A worker may not take part, or an order is not carried out."""

    code: str
    reason: str

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "code": text(NAME_CHARACTERS_MAX),
        "reason": text(REASON_CHARACTERS_MAX),
    }


@dataclass(frozen=True, slots=True)
class Roster(Record):
    """Who takes part."""

    peers: tuple[Peer, ...]

    CHECKS: ClassVar[Mapping[str, Check]] = {"peers": listing(record(Peer), RANKS_MAX)}
    BYTES_MAX: ClassVar[int] = ROSTER_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Snapshot(Record):
    """A block of the replica."""

    start: int
    values: bytes
    """Little-endian int32."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "start": integer(0, ELEMENTS_MAX),
        "values": blob(4, 4 * BLOCK_ELEMENTS),
    }
    BYTES_MAX: ClassVar[int] = 4 * BLOCK_ELEMENTS + SMALL_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class EncodedUpdate(Record):
    """An update on its way; its origin is the stream it travels in."""

    sequence: int
    based_on: int
    """How many updates of others the parameters contained that it was computed with."""
    body: bytes

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "sequence": integer(1, SEQUENCE_MAX),
        "based_on": integer(0, 2**63),
        "body": blob(1, UPDATE_BYTES_MAX),
    }
    BYTES_MAX: ClassVar[int] = MESSAGE_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Stable(Record):
    """Every live worker has the updates up to these."""

    versions: Mapping[int, int]

    CHECKS: ClassVar[Mapping[str, Check]] = {"versions": _VERSIONS}
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Finish(Record):
    """A worker will send no more updates and waits for the others."""

    sequence: int
    """Of its last update."""

    CHECKS: ClassVar[Mapping[str, Check]] = {"sequence": _SEQUENCE}


@dataclass(frozen=True, slots=True)
class Finished(Record):
    """All live workers have finished."""

    versions: Mapping[int, int]
    """All updates of the run."""

    CHECKS: ClassVar[Mapping[str, Check]] = {"versions": _VERSIONS}
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Leave(Record):
    """A worker goes, and its connection ends when this is delivered."""

    sequence: int
    """Of its last update."""
    reason: str

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "sequence": _SEQUENCE,
        "reason": text(REASON_CHARACTERS_MAX),
    }


@dataclass(frozen=True, slots=True)
class Order(Record):
    """An operator wants something done."""

    action: str
    """An `Action`; one that the master does not know is refused."""
    name: str
    """Whom or which rank it is about; empty where it is about nobody."""

    CHECKS: ClassVar[Mapping[str, Check]] = {"action": _WORKER_NAME, "name": _WORKER_NAME}


@dataclass(frozen=True, slots=True)
class OrderDone(Record):
    """An order was carried out."""

    text: str
    """What there is to say about it; the status as JSON."""

    CHECKS: ClassVar[Mapping[str, Check]] = {"text": _ANSWER}
    BYTES_MAX: ClassVar[int] = ANSWER_BYTES_MAX + SMALL_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0


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


def total(versions: Mapping[int, int], *, without: int) -> int:
    """Return how many updates a version vector contains, those of one rank left out."""
    return sum(sequence for rank, sequence in versions.items() if rank != without)


def covers(versions: Mapping[int, int], others: Mapping[int, int]) -> bool:
    """Return whether a version vector contains everything that another one does."""
    return all(versions.get(rank, 0) >= sequence for rank, sequence in others.items())
