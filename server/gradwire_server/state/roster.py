"""The roster: the members of the run, with their ranks and phases.

::

    WAITING ──▶ FOUNDING ──▶ LIVE
       └──────▶ SYNCING ──────▲

The first worker is FOUNDING: its parameters start the run. A worker that joins meanwhile is WAITING
for them. Later workers are SYNCING while they receive a snapshot, or blocks of one; updates are
sent to them from the start.

An observer is a member that sends no updates, and nothing waits for it. Its rank is only a name.
Observers get ranks from the highest down, so that those of workers stay close together.
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from gradwire_protocol import Connection, InOrder, Role
from gradwire_protocol.messages.admission import Join, Peer, name_in_roster
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.link import Link, UpdateReceived
from gradwire_protocol.messages.replicas import Digest
from gradwire_protocol.messages.snapshots import SnapshotFeed
from gradwire_server.state.buffer_feed import BufferFeed
from gradwire_server.state.replica_copy import ReplicaCopy
from gradwire_server.updates.update_rate import UpdateRate
from gradwire_server.updates.vetting import Norms


class Phase(Enum):
    """Progress of a member."""

    WAITING = auto()
    FOUNDING = auto()
    SYNCING = auto()
    LIVE = auto()


TRANSITIONS: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.WAITING: frozenset({Phase.FOUNDING, Phase.SYNCING}),
    Phase.FOUNDING: frozenset({Phase.LIVE}),
    Phase.SYNCING: frozenset({Phase.LIVE}),
    Phase.LIVE: frozenset(),
}


@dataclass(slots=True)
class Offer:
    """A copy of the replica for a worker that compares its own with it."""

    copy: ReplicaCopy | None
    """None once the worker has not answered in time."""
    expires_at: float


@dataclass(slots=True, eq=False)
class Member:
    """A worker or an observer."""

    rank: int
    join: Join
    link: Link
    updates: InOrder[UpdateReceived]
    """Puts its updates in order."""
    _: KW_ONLY
    phase: Phase = Phase.WAITING
    feed: SnapshotFeed | None = None
    """The snapshot that is being sent to it."""
    last_sequence: int | None = None
    """Sequence of its last update, once it has said so in FINISH or LEAVE."""
    leaving: str | None = None
    """The reason in its LEAVE."""
    removing: bool = False
    """Whether it is being removed: its updates are still accepted, and trigger nothing else."""
    pace: UpdateRate[UpdateReceived] = field(default_factory=UpdateRate)
    """Its updates that wait because it sends them too fast."""
    norms: Norms = field(default_factory=Norms)
    state_norms: Norms = field(default_factory=Norms)
    """Those of its optimizer's state, where that is contributed, too."""
    quarantine: list[UpdateReceived] | None = None
    """Its updates in quarantine, in order; None while it is not in quarantine."""
    trusted: bool = False
    """Whether an operator has released it from quarantine: it is not put there again."""
    stood_out: bool = False
    """Whether an update of it was far larger than the others'."""
    stands_by: bool = False
    """Whether it is the standby, an observer whose acknowledgements count for stability."""
    unchecked_digest: Digest | None = None
    """The digest of its replica that it sent last, until that is checked."""
    buffers: BufferFeed = field(default_factory=BufferFeed)
    offer: Offer | None = None
    """The copy of the replica that it is to compare its own with."""
    repaired_at: float | None = None
    """When a mismatch of its replica was last followed by an offer."""
    observes: bool = field(init=False)
    """Whether it is an observer, by the role in its key, or the standby."""

    def __post_init__(self) -> None:
        """Set the fields that follow from others."""
        self.observes = self.stands_by or role_of(self.link.connection) is Role.OBSERVER

    def move_to(self, phase: Phase) -> None:
        """Change the phase, along `TRANSITIONS`."""
        assert phase in TRANSITIONS[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase

    @property
    def key_name(self) -> str | None:
        """The name in its key; None without one."""
        identity = self.link.connection.identity
        return None if identity is None else identity.name

    @property
    def shown_name(self) -> str:
        """The name in the roster, from its key and the name that it gives itself."""
        return name_in_roster(self.key_name, self.join.name)

    @property
    def name(self) -> str:
        """For logs: rank and name."""
        return f"rank {self.rank} ({self.shown_name})"


class Parted(NamedTuple):
    """A worker that takes part no more."""

    name: str
    key_name: str | None
    address: object
    state: str
    """How it has parted, in a word or two."""


def role_of(connection: Connection) -> Role:
    """Return the role in a peer's key. Where there are no keys, every peer is a worker."""
    return Role.WORKER if connection.identity is None else connection.identity.role


class Roster:
    """Members by rank and by connection."""

    def __init__(self) -> None:
        self._by_rank: dict[int, Member] = {}
        self._by_connection: dict[Connection, Member] = {}

    def __len__(self) -> int:
        """Return the number of members, observers included."""
        return len(self._by_rank)

    def __iter__(self) -> Iterator[Member]:
        """Iterate over the members by rank."""
        return iter([self._by_rank[rank] for rank in sorted(self._by_rank)])

    @property
    def workers(self) -> list[Member]:
        """The members that train, by rank."""
        return [member for member in self if not member.observes]

    def add_member(self, member: Member) -> None:
        """Add a member."""
        assert member.rank not in self._by_rank
        self._by_rank[member.rank] = member
        self._by_connection[member.link.connection] = member

    def remove(self, member: Member) -> None:
        """Remove a member; its rank is free again."""
        del self._by_rank[member.rank]
        del self._by_connection[member.link.connection]

    def of(self, connection: Connection) -> Member | None:
        """Return the member behind a connection."""
        return self._by_connection.get(connection)

    def at(self, rank: int) -> Member | None:
        """Return the member with this rank."""
        return self._by_rank.get(rank)

    def with_id(self, worker_id: bytes) -> Member | None:
        """Return the member with this worker id."""
        return next((m for m in self if m.join.worker_id == worker_id), None)

    def free_rank(
        self, wanted: int | None, role: Role = Role.WORKER, kept: frozenset[int] = frozenset()
    ) -> int:
        """Return the rank wanted if it is free, else the lowest free one.

        An observer gets the highest free one: a worker may need the one that it wants. Ranks in
        `kept` are not free.
        """
        taken = self._by_rank.keys() | kept
        if role is Role.OBSERVER:
            return next(rank for rank in reversed(range(WORKERS_MAX)) if rank not in taken)
        if wanted is not None and wanted not in taken:
            return wanted
        return next(rank for rank in range(len(taken) + 1) if rank not in taken)

    def peers(self) -> tuple[Peer, ...]:
        """Return the workers as a ROSTER lists them."""
        return tuple(
            Peer(member.rank, member.shown_name, member.last_sequence is not None)
            for member in self.workers
        )
