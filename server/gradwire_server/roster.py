"""The roster: who takes part in the run, under which rank, and how far each has got.

::

    WAITING ──▶ FOUNDING ──▶ LIVE
       └──────▶ SYNCING ──────▲

The first worker is FOUNDING: its parameters start the run. Who joins meanwhile is WAITING for
them. Later ones are SYNCING while they receive a snapshot; updates reach them from the start.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from gradwire_protocol import Connection, InOrder
from gradwire_protocol.link import Link, UpdateReceived
from gradwire_protocol.messages import Join, Peer
from gradwire_protocol.snapshots import SnapshotFeed


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


@dataclass(slots=True, eq=False)
class Member:
    """A worker that takes part."""

    rank: int
    join: Join
    link: Link
    updates: InOrder[UpdateReceived]
    """Its updates, put in order."""
    phase: Phase = Phase.WAITING
    feed: SnapshotFeed | None = None
    """The snapshot on its way to it."""
    last_sequence: int | None = None
    """Of its last update, once it has said which that is."""
    leaving: str | None = None
    """Why it goes, once it has said so."""
    unacknowledged: dict[tuple[int, int], float] = field(default_factory=dict)
    """Relayed updates (rank, sequence) that it does not have yet, and when they were accepted."""

    def move_to(self, phase: Phase) -> None:
        """Note how far it has got."""
        assert phase in TRANSITIONS[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase

    @property
    def name(self) -> str:
        """For logs: rank and what the worker calls itself."""
        return f"rank {self.rank} ({self.join.name})"


class Roster:
    """Members by rank and by connection."""

    def __init__(self) -> None:
        self._by_rank: dict[int, Member] = {}
        self._by_connection: dict[Connection, Member] = {}

    def __len__(self) -> int:
        """Return how many take part."""
        return len(self._by_rank)

    def __iter__(self) -> Iterator[Member]:
        """Iterate over the members by rank."""
        return iter([self._by_rank[rank] for rank in sorted(self._by_rank)])

    def add(self, member: Member) -> None:
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

    def with_id(self, worker_id: bytes) -> Member | None:
        """Return the member with this identity."""
        return next((m for m in self if m.join.worker_id == worker_id), None)

    def free_rank(self, wanted: int | None) -> int:
        """Return the rank wanted if it is free, else the lowest free one."""
        if wanted is not None and wanted not in self._by_rank:
            return wanted
        return next(rank for rank in range(len(self) + 1) if rank not in self._by_rank)

    def peers(self) -> tuple[Peer, ...]:
        """Return what everyone may know of the members."""
        return tuple(
            Peer(member.rank, member.join.name, member.last_sequence is not None) for member in self
        )
