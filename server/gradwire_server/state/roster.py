"""The roster: who takes part in the run, under which rank, and how far each has got.

::

    WAITING ──▶ FOUNDING ──▶ LIVE
       └──────▶ SYNCING ──────▲

The first worker is FOUNDING: its parameters start the run. A worker that joins meanwhile is WAITING
for them. Later ones are SYNCING while they receive a snapshot, or blocks of one; updates reach them
from the start.

An observer is a member that sends nothing, and that nobody waits for. It has a rank as a name, from
the highest one down, so that those of workers stay close together.
"""

from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, auto
from typing import Final

from gradwire_protocol import Connection, InOrder, Role
from gradwire_protocol.messages.admission import Join, Peer, name_in_roster
from gradwire_protocol.messages.kinds import RANKS_MAX
from gradwire_protocol.messages.link import Link, UpdateReceived
from gradwire_protocol.messages.replicas import Digest
from gradwire_protocol.messages.snapshots import SnapshotFeed
from gradwire_server.state.backlog import Backlog
from gradwire_server.state.buffer_feed import BufferFeed
from gradwire_server.state.replica_copy import ReplicaCopy
from gradwire_server.updates.update_rate import UpdateRate
from gradwire_server.updates.vetting import Norms


class Phase(Enum):
    """How far a worker has got."""

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
    """None when it was not answered to for too long."""
    passes: int = 0
    """Of the self-check, since."""


@dataclass(slots=True, eq=False)
class Member:
    """A worker that takes part, or an observer."""

    rank: int
    join: Join
    link: Link
    updates: InOrder[UpdateReceived]
    """Its updates, put in order."""
    _: KW_ONLY
    phase: Phase = Phase.WAITING
    feed: SnapshotFeed | None = None
    """The snapshot on its way to it."""
    last_sequence: int | None = None
    """Of its last update, once it has said which that is."""
    leaving: str | None = None
    """Why it goes, once it has said so."""
    going: bool = False
    """Whether it is being parted with: what it has sent comes in, and nothing follows from it."""
    backlog: Backlog = field(init=False)
    """What is under way to it. What is of its own rank is a correction: it was clipped."""
    pace: UpdateRate[UpdateReceived] = field(default_factory=UpdateRate)
    """Its updates that were too many for one moment."""
    norms: Norms = field(default_factory=Norms)
    """How large its updates were."""
    aside: list[UpdateReceived] | None = None
    """Its updates since it is in quarantine, in order; None while it is not."""
    vouched: bool = False
    """Whether an operator has let it out of quarantine: it is not sent there again."""
    clipped: bool = False
    """Whether an update of it was clipped."""
    stands_by: bool = False
    """Whether it is the standby: an observer that counts as somebody who has what it was sent."""
    corrections: int = 0
    """How many were, over this connection."""
    asked_state: bool = False
    """Whether it has asked for the state of an optimizer."""
    state_parts: set[int] = field(default_factory=set)
    """The parts of such a state that are under way to it, by their number in the stream."""
    claim: Digest | None = None
    """What it has said of its replica, and was not checked yet."""
    buffers: BufferFeed = field(default_factory=BufferFeed)
    """What it is still to be told of others' buffers."""
    offer: Offer | None = None
    """What it compares its replica with."""
    repaired_at: float | None = None
    """When it was last offered to."""
    observes: bool = field(init=False)
    """Whether it is an observer, as its key says, or the standby."""

    def __post_init__(self) -> None:
        """Look at its key; nothing is under way to it."""
        self.observes = self.stands_by or role_of(self.link.connection) is Role.OBSERVER
        self.backlog = Backlog(self.rank)

    def move_to(self, phase: Phase) -> None:
        """Note how far it has got."""
        assert phase in TRANSITIONS[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase

    @property
    def key_name(self) -> str | None:
        """The name in its key; None without one."""
        identity = self.link.connection.identity
        return None if identity is None else identity.name

    @property
    def shown_name(self) -> str:
        """What others know it by: the name in its key, and what it calls itself."""
        return name_in_roster(self.key_name, self.join.name)

    @property
    def name(self) -> str:
        """For logs: rank and name."""
        return f"rank {self.rank} ({self.shown_name})"


def role_of(connection: Connection) -> Role:
    """Return what a peer may do. Where nobody has a key, everyone is a worker."""
    return Role.WORKER if connection.identity is None else connection.identity.role


class Roster:
    """Members by rank and by connection."""

    def __init__(self) -> None:
        self._by_rank: dict[int, Member] = {}
        self._by_connection: dict[Connection, Member] = {}

    def __len__(self) -> int:
        """Return how many take part, observers included."""
        return len(self._by_rank)

    def __iter__(self) -> Iterator[Member]:
        """Iterate over the members by rank."""
        return iter([self._by_rank[rank] for rank in sorted(self._by_rank)])

    @property
    def workers(self) -> list[Member]:
        """Those that train, by rank."""
        return [member for member in self if not member.observes]

    @property
    def connections(self) -> Iterable[Connection]:
        """Those of all members."""
        return self._by_connection.keys()

    def add_member(self, member: Member) -> None:
        """Let a worker take part."""
        assert member.rank not in self._by_rank
        self._by_rank[member.rank] = member
        self._by_connection[member.link.connection] = member

    def remove(self, member: Member) -> None:
        """Let a worker go; its rank is free again."""
        del self._by_rank[member.rank]
        del self._by_connection[member.link.connection]

    def of(self, connection: Connection) -> Member | None:
        """Return the member behind a connection."""
        return self._by_connection.get(connection)

    def at(self, rank: int) -> Member | None:
        """Return the member with this rank."""
        return self._by_rank.get(rank)

    def with_id(self, worker_id: bytes) -> Member | None:
        """Return the member with this identity."""
        return next((m for m in self if m.join.worker_id == worker_id), None)

    def free_rank(
        self, wanted: int | None, role: Role = Role.WORKER, kept: frozenset[int] = frozenset()
    ) -> int:
        """Return the rank wanted if it is free, else the lowest free one.

        An observer gets the highest free one: that which it wants might be meant for a worker.
        Those that are kept for somebody are not free.
        """
        taken = self._by_rank.keys() | kept
        if role is Role.OBSERVER:
            return next(rank for rank in reversed(range(RANKS_MAX)) if rank not in taken)
        if wanted is not None and wanted not in taken:
            return wanted
        return next(rank for rank in range(len(taken) + 1) if rank not in taken)

    def peers(self) -> tuple[Peer, ...]:
        """Return what everyone may know of the workers."""
        return tuple(
            Peer(member.rank, member.shown_name, member.last_sequence is not None)
            for member in self.workers
        )
