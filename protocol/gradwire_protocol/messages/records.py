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
    14    CONFLATED  master  a part of a sum of updates, in place of them: you are slow
    15    FOLLOW     standby  I am your standby, and in charge of nothing
    16    DIGEST     worker  the digest of my replica, and what is in it
    17    BLOCKS     master  the digests of all blocks of the replica, and what is in it: which of
                             yours differ?
    18    WANT       worker  these: send them to me
    19    PROMISE    both    will you follow me in this term? I follow nobody of an earlier one
    20    VOTERS     master  to its standby: whose promises it takes to go on in my place
    21    RECALL     master  send me these updates again, which you keep
    22    STOPPING   master  I am about to end: leave
    23    BUFFERS    both    what the buffers of a worker's module hold; the master passes it on
    24    WANT_STATE both    give me a part of an optimizer's state; or: no more of it
    25    STATE      both    a part of it; the master passes it on; or: there is none

An observer says JOIN, DIGEST, WANT and LEAVE, and hears what workers hear; an operator says ORDER,
and hears DONE or REFUSE, one for each, in order. A standby says FOLLOW, and hears what workers
hear, and VOTERS (see `gradwire_server.master.terms`). What a peer is, its key says; without keys,
everyone is a worker.

Streams give messages their place: updates travel in the stream of their origin's rank with their
sequence as number, so a relayed message is the same for everyone. The stream of a worker's own rank
brings it corrections only: what an update of its own is less for the others. `CONTROL_STREAM`
carries the rest in order, numbered from 0 on each connection; `SNAPSHOT_STREAM` numbers blocks from
0, `CONFLATED_STREAM` parts of sums, and `STATE_STREAM` parts of optimizers' states.

Every message is a msgpack map, checked field by field (see `schema`). An encoded update, the values
of a block and the state of an optimizer are opaque here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import ClassVar, Final

from gradwire_protocol.limits import BUFFERS_BYTES_MAX, KIB, MESSAGE_BYTES_MAX, STREAMS_MAX
from gradwire_protocol.messages.layout import (
    ELEMENTS_MAX,
    LAYOUT_BYTES_MAX,
    NAME_CHARACTERS_MAX,
    Layout,
)
from gradwire_protocol.messages.schema import (
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

RANKS_MAX: Final = STREAMS_MAX - 4
"""Most workers of one run: a stream each, and four more."""

CONTROL_STREAM: Final = 2**16 - 1
SNAPSHOT_STREAM: Final = 2**16 - 2
CONFLATED_STREAM: Final = 2**16 - 3
STATE_STREAM: Final = 2**16 - 4

SEQUENCE_MAX: Final = 2**32 - 1
"""Updates of one origin. At a hundred a second they last for sixteen months."""

CLOCK_MAX: Final = 2**32 - 1
"""Steps of one worker."""

WORKER_NAME_CHARACTERS_MAX: Final = 64
REASON_CHARACTERS_MAX: Final = 1_000
WORKER_ID_BYTES: Final = 16

TERM_MAX: Final = 2**32 - 1
"""Terms; each takes the loss of a master, or of its standby."""

ADDRESS_CHARACTERS_MAX: Final = 300
"""Of ``host:port``: a name of 253 characters (RFC 1035, section 2.3.4), brackets and a port."""

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
"""As of a replica; `gradwire_codecs.replica.replica` has the same bounds, and their reason."""

CODEC_VERSION: Final = 1
"""Of the format of encoded updates; two versions cannot take part in one run."""

UPDATE_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 256
"""Largest encoded update: what a message holds less the map around it."""

BLOCK_ELEMENTS: Final = 2**18
"""Elements in a block of a snapshot: 1 MiB."""

PART_ELEMENTS: Final = 2**16
"""Elements in a part of a sum, 256 KiB at most: smaller than a block, as it is for who is slow, and
every part that arrives shows that he is there."""
BLOCKS_MAX: Final = -(-ELEMENTS_MAX // BLOCK_ELEMENTS)
"""Blocks of the largest replica: 8,192."""

DIGEST_BYTES: Final = 8

STATE_PART_BYTES: Final = 256 * KIB
"""Most bytes in a part of an optimizer's state: two seconds on a link of 1 Mbit/s."""

STATE_SLOTS_MAX: Final = 8
"""Most numbers that an optimizer keeps for each parameter; Adam's two are many already."""

STATE_PARTS_MAX: Final = 1 + -(-(4 * STATE_SLOTS_MAX + 8) * ELEMENTS_MAX // STATE_PART_BYTES)
"""Parts of the largest state: what it is made of, then its values and some numbers for each
tensor."""


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
    CONFLATED = 14
    FOLLOW = 15
    DIGEST = 16
    BLOCKS = 17
    WANT = 18
    PROMISE = 19
    VOTERS = 20
    RECALL = 21
    STOPPING = 22
    BUFFERS = 23
    WANT_STATE = 24
    STATE = 25


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
    NOT_IN_CHARGE = "not_in_charge"
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
    """More waits for this worker than the master keeps for it, or it took nothing for too long."""
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
    STEPPED_DOWN = 75
    """This master is not in charge any more; another one is, or it will be again."""


_RANK: Final = integer(0, RANKS_MAX - 1)
_SEQUENCE: Final = integer(0, SEQUENCE_MAX)
_VERSIONS: Final = mapping(_RANK, _SEQUENCE, RANKS_MAX)
_CLOCK: Final = integer(0, CLOCK_MAX)
_NAME: Final = text(NAME_CHARACTERS_MAX)
_WORKER_NAME: Final = text(WORKER_NAME_CHARACTERS_MAX)
_ANSWER: Final = text(ANSWER_BYTES_MAX)
_TERM: Final = integer(0, TERM_MAX)
_ADDRESS: Final = text(ADDRESS_CHARACTERS_MAX)
_WORKER_ID: Final = blob(WORKER_ID_BYTES, WORKER_ID_BYTES)


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
    kept: Mapping[int, int] = field(default_factory=dict)
    """By rank: the first update that it keeps, and all after it that it has; its own included."""
    term: int = 0
    """The highest term that it has followed a master in, or has promised to."""
    leaving: bool = False
    """Whether it only wants to know that it has left."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "rank": _RANK,
        "sequence": _SEQUENCE,
        "versions": _VERSIONS,
        "workers": integer(0, RANKS_MAX),
        "kept": _VERSIONS,
        "term": _TERM,
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

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "run": optional(_NAME),
        "worker_id": _WORKER_ID,
        "name": _WORKER_NAME,
        "rank": optional(_RANK),
        "codec": integer(0, 2**16 - 1),
        "quantum_exponent": integer(QUANTUM_EXPONENT_MIN, QUANTUM_EXPONENT_MAX),
        "layout": record(Layout),
        "resume": optional(record(Resume)),
        "partial": optional(_VERSIONS),
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
        "term": _TERM,
        "standby": optional(_ADDRESS),
        "compares": boolean,
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
class Recall(Record):
    """A master that was started anew asks for updates that a worker has said it keeps."""

    rank: int
    """Whose they are."""
    first: int
    last: int

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "rank": _RANK,
        "first": _SEQUENCE,
        "last": _SEQUENCE,
    }


@dataclass(frozen=True, slots=True)
class Digest(Record):
    """A worker says what its replica is."""

    versions: Mapping[int, int]
    """Its own included."""
    digest: int
    """Of the replica with these updates."""
    corrections: int
    """How many corrections are in it of those that came over this connection."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "versions": _VERSIONS,
        "digest": integer(0, 2**64 - 1),
        "corrections": _SEQUENCE,
    }
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Blocks(Record):
    """The master says what every block of the replica is, so that a worker finds which differ."""

    versions: Mapping[int, int]
    """The updates in it, the worker's own included."""
    digests: bytes
    """Little-endian, 8 bytes each."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "versions": _VERSIONS,
        "digests": blob(DIGEST_BYTES, DIGEST_BYTES * BLOCKS_MAX),
    }
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX + DIGEST_BYTES * BLOCKS_MAX


@dataclass(frozen=True, slots=True)
class Want(Record):
    """A worker asks for blocks of the replica that BLOCKS was about."""

    blocks: tuple[int, ...]
    """Their numbers; none where it has them all."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "blocks": listing(integer(0, BLOCKS_MAX - 1), BLOCKS_MAX)
    }
    BYTES_MAX: ClassVar[int] = SMALL_BYTES_MAX + 3 * BLOCKS_MAX


@dataclass(frozen=True, slots=True)
class Refuse(Record):
    """A worker may not take part, or an order is not carried out."""

    code: str
    reason: str
    master: str | None = None
    """``host:port`` of the master to try instead, if there is one."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "code": text(NAME_CHARACTERS_MAX),
        "reason": text(REASON_CHARACTERS_MAX),
        "master": optional(_ADDRESS),
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
    """Little-endian int32, or fewer bytes, of which it can be made."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "start": integer(0, ELEMENTS_MAX),
        "values": blob(1, 4 * BLOCK_ELEMENTS),
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
    """Nothing where it changes nothing, and only says how far its origin is."""
    clock: int = 0
    """How many steps of its origin are in its updates up to this one; 0 where it does not say."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "sequence": integer(1, SEQUENCE_MAX),
        "based_on": integer(0, 2**63),
        "body": blob(0, UPDATE_BYTES_MAX),
        "clock": _CLOCK,
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
class Span(Record):
    """Which updates a sum contains: of each rank, those after `before` up to `after`."""

    before: Mapping[int, int]
    after: Mapping[int, int]
    """Of the same ranks."""
    updates: int
    """How many these are."""
    parts: int
    """How many messages the sum takes."""
    clocks: Mapping[int, int] = field(default_factory=dict)
    """By rank: what the last update in it says of its origin's steps, where it does."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "before": _VERSIONS,
        "after": _VERSIONS,
        "updates": integer(1, 2**63),
        "parts": integer(1, ELEMENTS_MAX // PART_ELEMENTS + 1),
        "clocks": mapping(_RANK, _CLOCK, RANKS_MAX),
    }


@dataclass(frozen=True, slots=True)
class Conflated(Record):
    """A part of a sum of updates, which the master sends in place of them to who is slow.

    What is not in any part does not change. The sum counts when all parts are here.
    """

    start: int
    """The first element that it covers; a multiple of `PART_ELEMENTS`."""
    body: bytes
    """An encoded update of at most `PART_ELEMENTS`; none where the whole sum is zero."""
    span: Span | None
    """What the sum contains, in the last part."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "start": integer(0, ELEMENTS_MAX),
        "body": blob(0, 4 * PART_ELEMENTS + SMALL_BYTES_MAX),
        "span": optional(record(Span)),
    }
    BYTES_MAX: ClassVar[int] = 4 * PART_ELEMENTS + 2 * SMALL_BYTES_MAX + 3 * VERSIONS_BYTES_MAX


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

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "rank": _RANK,
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
class Stopping(Record):
    """The master is about to end, and waits for the last update of everyone.

    A worker answers with LEAVE, unless it has said before that no more updates come.
    """

    reason: str

    CHECKS: ClassVar[Mapping[str, Check]] = {"reason": text(REASON_CHARACTERS_MAX)}


@dataclass(frozen=True, slots=True)
class Follow(Record):
    """A standby says that it is in charge of nothing, and follows; and which voters it knows."""

    term: int
    """The highest one that it has heard of, or has asked workers to follow it in."""
    voters: int | None
    """The number of the `Voters` that it has from this master; None with the first one."""

    CHECKS: ClassVar[Mapping[str, Check]] = {"term": _TERM, "voters": optional(_SEQUENCE)}


@dataclass(frozen=True, slots=True)
class Promise(Record):
    """A master asks whether a worker follows it in a term, and the worker answers in which."""

    term: int

    CHECKS: ClassVar[Mapping[str, Check]] = {"term": _TERM}


@dataclass(frozen=True, slots=True)
class Voters(Record):
    """A master tells its standby whose promises it takes to go on in its place."""

    number: int
    """The standby answers with it."""
    term: int
    """Of the master."""
    workers: tuple[bytes, ...]
    """Their random ids."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "number": _SEQUENCE,
        "term": _TERM,
        "workers": listing(_WORKER_ID, RANKS_MAX),
    }
    BYTES_MAX: ClassVar[int] = SMALL_BYTES_MAX + RANKS_MAX * (WORKER_ID_BYTES + 2)


@dataclass(frozen=True, slots=True)
class WantState(Record):
    """A worker asks for the state of another one's optimizer, or the master asks that one."""

    number: int
    """Which of all that the master gets for somebody; 0 from the worker that asks."""
    part: int | None
    """The part that is due; None where no more is wanted. From who asks, 0 or None."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "number": _SEQUENCE,
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

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "number": _SEQUENCE,
        "part": integer(0, STATE_PARTS_MAX - 1),
        "parts": integer(0, STATE_PARTS_MAX),
        "body": blob(0, STATE_PART_BYTES),
        "reason": text(REASON_CHARACTERS_MAX),
    }
    BYTES_MAX: ClassVar[int] = STATE_PART_BYTES + SMALL_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0


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
