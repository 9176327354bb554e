"""Messages about taking part, JOIN, WELCOME, REFUSE, ROSTER.

Of a standby and the voters: FOLLOW, PROMISE, VOTERS.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, ClassVar, Final, TypeAlias

from gradwire_protocol.limits import MESSAGE_BYTES_MAX
from gradwire_protocol.messages.fields import (
    RANK,
    REASON_CHARACTERS_MAX,
    ROSTER_BYTES_MAX,
    VERSIONS_BYTES_MAX,
    WORKER_ID_BYTES,
    WORKER_NAME_CHARACTERS_MAX,
    HostPort,
    LogId,
    Position,
    Rank,
    Reason,
    RunName,
    SequenceNumber,
    Term,
    Versions,
    WorkerId,
    WorkerName,
)
from gradwire_protocol.messages.kinds import RANKS_MAX, Kind
from gradwire_protocol.messages.layout import LAYOUT_BYTES_MAX, NAME_CHARACTERS_MAX, Layout
from gradwire_protocol.messages.modes.mode import Mode
from gradwire_protocol.messages.schema import (
    SMALL_BYTES_MAX,
    Record,
    blob,
    integer,
    listing,
    record,
    text,
)

assert LAYOUT_BYTES_MAX + ROSTER_BYTES_MAX + VERSIONS_BYTES_MAX < MESSAGE_BYTES_MAX, (
    "a WELCOME with the largest layout and the largest roster fits a message"
)
QUANTUM_EXPONENT_MIN: Final = -40

QUANTUM_EXPONENT_MAX: Final = 0
"""Bounds of a replica's quantum; `gradwire_codecs.replica.replica` has the same, and their
reason."""

QuantumExponent: TypeAlias = Annotated[int, integer(QUANTUM_EXPONENT_MIN, QUANTUM_EXPONENT_MAX)]

CODEC_VERSION: Final = 2
"""Version of the format of encoded updates. All workers of a run need the same."""


CLOCK_SECONDS: Final = 1e-6
"""Two masters that continue a run begin at different times, counted in this."""


class RefusalCode(StrEnum):
    """Why a worker may not join or an order is not carried out."""

    OTHER_RUN = "other_run"
    OTHER_LAYOUT = "other_layout"
    OTHER_CODEC = "other_codec"
    OTHER_MODE = "other_mode"
    TOO_LARGE = "too_large"
    RUN_FULL = "run_full"
    RUN_FINISHED = "run_finished"
    ALREADY_JOINED = "already_joined"
    NOT_EXPECTED = "not_expected"
    DRAINING = "draining"
    NO_RUN = "no_run"
    NOT_IN_CHARGE = "not_in_charge"
    ROLE = "role"


@dataclass(frozen=True, slots=True)
class Peer(Record):
    """A worker as listed in the roster."""

    rank: Rank
    name: WorkerName
    finished: bool
    """Whether it has sent its last update."""


def incarnation_of(log: int) -> int:
    """Return how many masters have continued the run, by the id of a log."""
    return log >> 32


@dataclass(frozen=True, slots=True)
class LogName(Record):
    """The name of a log, and where it parts from the one of which it is the continuation."""

    id: LogId = 0
    base: LogId = 0
    """The log of the master before; 0 for none."""
    parts_at: Position = 0
    """Up to this position, both are the same."""

    def continued(self, position: int, now: float) -> "LogName":
        """Return the name of a log that goes on from a position of this one.

        Another master may have gone on from there as well, so half of it is random: by the clock.
        """
        chance = round(now / CLOCK_SECONDS) % 2**32
        return LogName((incarnation_of(self.id) + 1) << 32 | chance, self.id, position)

    def shares(self, other: "LogName", position: int) -> bool:
        """Return whether the log is the same as another one, up to a position."""
        if self.id == other.id:
            return True
        if self.id == other.base:
            return position <= other.parts_at
        if self.base == other.base != 0:
            return position <= min(self.parts_at, other.parts_at)
        return self.base == other.id and position <= self.parts_at


@dataclass(frozen=True, slots=True)
class Place(Record):
    """A position in a log."""

    log: Annotated[LogName, record(LogName)] = field(default_factory=LogName)
    position: Position = 0

    @property
    def earliest_log(self) -> LogId:
        """The log before, where both are the same up to here; else this one."""
        log = self.log
        return log.base if log.base and self.position <= log.parts_at else log.id


@dataclass(frozen=True, slots=True)
class Resume(Record):
    """The state of a returning worker, which took part before and lost its connection."""

    rank: Rank
    sequence: SequenceNumber
    """Sequence of the last update that it has encoded, sent or not."""
    place: Annotated[Place, record(Place)]
    """Up to where it has the log."""
    versions: Versions
    """The updates up to there."""
    workers: Annotated[int, integer(0, RANKS_MAX)]
    """Number of workers in the last roster it received."""
    kept_after: Position
    """It keeps what the log has after this position."""
    kept_from: SequenceNumber
    """The first of its own updates that it keeps; where it keeps none, the next one."""
    term: Term = 0
    """The highest term in which it has followed a master or promised to."""
    leaving: bool = False
    """Whether it only asks for confirmation that it has left."""
    heard_of: Annotated[tuple[int, ...], listing(RANK, RANKS_MAX)] = ()
    """Ranks of other workers of which it has no update, and that were in a roster: these may come
    back, too."""

    @property
    def known(self) -> set[int]:
        """Ranks of the other workers that it knows of."""
        return {*self.versions, *self.heard_of} - {self.rank}


@dataclass(frozen=True, slots=True)
class Join(Record):
    """A worker asks to take part."""

    run: RunName | None
    """The run to join; None for any run of the master."""
    worker_id: WorkerId
    """Random, and constant for the life of the session."""
    name: WorkerName
    """Host and process, for people to read."""
    rank: Rank | None
    """The rank it prefers, if that is free."""
    codec: Annotated[int, integer(0, 2**16 - 1)]
    """Version of the format of encoded updates."""
    quantum_exponent: QuantumExponent
    """The quantum that suits its parameters; it counts if the worker founds the run."""
    layout: Layout
    resume: Resume | None = None
    """The state of a returning worker; None for a new one."""
    partial: Place | None = None
    """That of the part of a snapshot that had arrived when its connection was lost."""
    mode: Mode | None = None
    """The mode that it wants; None for that of the run. The first worker's is the run's."""

    KIND: ClassVar[Kind] = Kind.JOIN
    BYTES_MAX: ClassVar[int] = LAYOUT_BYTES_MAX + 2 * VERSIONS_BYTES_MAX + SMALL_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Welcome(Record):
    """A worker is accepted.

    With `founder` set, the worker sends the first parameters. Otherwise it receives a snapshot. A
    worker that already has a replica receives the updates it lacks if the master still keeps them,
    or BLOCKS if those updates are not enough. A worker that joins while a founder's parameters are
    under way is welcomed when they have arrived; if the founder is lost before that, this worker
    may be asked for its own.
    """

    run: RunName
    rank: Rank
    sequence: SequenceNumber
    """The sequence of the last update of this rank; the worker continues with the next."""
    quantum_exponent: QuantumExponent
    layout: Layout
    roster: Annotated[tuple[Peer, ...], listing(record(Peer), RANKS_MAX)]
    founder: bool
    """Whether this worker's parameters start the run."""
    place: Annotated[Place, record(Place)]
    """The place of the snapshot; for a worker that keeps its replica, the place after which it is
    sent the log; for the heir of a recovered run, the place after which it is to send what it
    keeps of the log."""
    versions: Versions
    """The updates in the snapshot."""
    resumed: bool = False
    """Whether the worker receives every update that its own replica lacks."""
    term: Term = 1
    """Term of the master; the worker no longer follows a master of an earlier term."""
    standby: HostPort | None = None
    """``host:port`` of the standby to turn to if this master is lost."""
    compares: bool = False
    """Whether the master sends BLOCKS, and then only the blocks of the replica that the worker
    wants."""
    buffers: Annotated[int, integer(0, 2 * RANKS_MAX)] = 0
    """How many BUFFERS follow: the run's at this moment."""
    mode: Mode = field(default_factory=Mode)
    """That of the run."""

    KIND: ClassVar[Kind] = Kind.WELCOME
    BYTES_MAX: ClassVar[int] = LAYOUT_BYTES_MAX + ROSTER_BYTES_MAX + VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Refuse(Record):
    """A worker may not take part or an order is not carried out."""

    code: Annotated[str, text(NAME_CHARACTERS_MAX)]
    reason: Reason
    master: HostPort | None = None
    """``host:port`` of the master to try instead, if there is one."""

    KIND: ClassVar[Kind] = Kind.REFUSE

    @property
    def within_limit(self) -> "Refuse":
        """The refusal with its reason cut: names of parameters and runs in it may be long."""
        return replace(self, reason=self.reason[:REASON_CHARACTERS_MAX])


@dataclass(frozen=True, slots=True)
class Roster(Record):
    """The workers that take part."""

    peers: Annotated[tuple[Peer, ...], listing(record(Peer), RANKS_MAX)]

    KIND: ClassVar[Kind] = Kind.ROSTER
    BYTES_MAX: ClassVar[int] = ROSTER_BYTES_MAX


def name_in_roster(key_name: str | None, own_name: str) -> str:
    """Return the name of a worker in the roster.

    The name in its key, if it has one, comes first, because no other worker can have it. The name
    that a worker gives itself is unchecked.
    """
    if key_name is None or key_name == own_name:
        return own_name
    return f"{key_name} at {own_name}"[:WORKER_NAME_CHARACTERS_MAX]


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
