"""`RunRecovery`: a restarted master recovers its run from the workers.

The master has no replica, no versions, no roster. But every worker has a replica, knows which
updates are in it, and keeps updates, its own and those of others, until all workers have them. So
the master waits until all workers have returned, or for some seconds, and chooses one, the heir,
whose replica the run will continue with.

Before it takes that replica, the master recalls the updates that other workers lack of it, and
those that the replica itself lacks: any worker that keeps them sends them again. Then the other
workers continue with their own replicas, and are sent the updates that these lack. A worker sends
its latest updates, which no other one has, again without being asked.

::

    gathering ──▶ recalling ──▶ replica on its way ──▶ the run continues

So an update is lost only if no returned worker keeps it and the heir does not have it. The heir is
the worker that lacks the fewest of the updates that no worker keeps.

A master that has a checkpoint of the run, or was its standby, has a replica itself. If that lacks
no more updates than any worker's, the run continues with it, and no worker has to send one.

This module works out what to ask for; `recall` sends the requests and receives the updates.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gradwire_protocol import InOrder
from gradwire_protocol.messages.admission import Resume
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_server.config import UPDATE_LOG_BYTES_MAX
from gradwire_server.state.roster import Member

RECALLED_BYTES_MAX: Final = UPDATE_LOG_BYTES_MAX
"""Limit for recalled updates that the replica contains: the update log would drop more at once.
Updates that the replica lacks come on top; what workers keep bounds these."""


@dataclass(frozen=True, slots=True)
class RecallRequest:
    """A request to a worker for updates of a rank."""

    member: Member
    last: int
    arriving: InOrder[UpdateReceived]


@dataclass(slots=True)
class RecalledUpdates:
    """The recalled updates of one rank."""

    base: int
    """The sequence before the first recalled update."""
    to: int
    """The sequence of the last one to recall."""
    updates: list[UpdateReceived] = field(default_factory=list)
    asked: RecallRequest | None = None
    """The request under way; None when no worker is to send more."""

    @property
    def reached(self) -> int:
        """The sequence of the last one that has come."""
        return self.base + len(self.updates)


@dataclass(slots=True, eq=False)
class RunRecovery:
    """The workers that have returned, and the updates that are recalled from them."""

    seconds: float
    """Timeout of each stage."""
    deadline: float
    """While gathering, when the master stops waiting for workers; later, the timeout of a stage."""
    returned: dict[Member, Resume] = field(default_factory=dict)
    """The returned workers, each with what it said in its JOIN."""
    has_rounds: bool = False
    """Whether only the results of rounds are recalled: workers contribute again what is in none."""
    needs_last_result: bool = False
    """Whether the last result is recalled, though all have it: the next step follows from it."""
    own_versions: Mapping[int, int] | None = None
    """Versions of the master's own replica, from a checkpoint or from its time as standby."""
    gathering: bool = True
    """Whether the master waits for more workers."""
    heir: Member | None = None
    """The worker whose replica is taken; None before the choice, and for the master's own."""
    contents: dict[int, int] | None = None
    """Versions of that replica, once the heir has sent them."""
    recalled: dict[int, RecalledUpdates] = field(default_factory=dict)
    """By rank."""
    bytes_recalled: int = 0
    times_lost: int = 0
    """How often all workers that had the run were lost."""
    gaps: dict[int, int] = field(default_factory=dict)
    """By rank: the last update before a gap of lost updates, some of which replicas may contain."""

    @property
    def is_complete(self) -> bool:
        """Whether every worker known to a returned worker has returned."""
        known = max((resume.workers for resume in self.returned.values()), default=0)
        return 0 < known <= len(self.returned)

    @property
    def known(self) -> set[int]:
        """Ranks of the workers that a returned worker knows of."""
        return set[int]().union(*(resume.known for resume in self.returned.values()))

    def pop_displaced(self) -> list[Member]:
        """Forget and return the workers of whose rank another one has more updates.

        Nobody knew of such a worker when an earlier master gave its rank to another one.
        """
        displaced = [
            member
            for member, resume in self.returned.items()
            if any(
                other.versions.get(member.rank, 0) > resume.sequence
                for other in self.returned.values()
            )
        ]
        for member in displaced:
            del self.returned[member]
        return displaced

    def choose(self) -> Member | None:
        """Choose the returned worker whose replica is taken; None for the master's own.

        The choice is the replica that lacks the fewest updates that no worker keeps. Among equals
        it is the master's own, or else the most advanced one.
        """
        self.gathering = False
        self.contents = None
        self.recalled.clear()
        floors = self._floors()

        def lost(versions: Mapping[int, int]) -> int:
            return sum(max(floor - versions.get(rank, 0), 0) for rank, floor in floors.items())

        def rating(member: Member) -> tuple[int, int]:
            versions = self._contents_of(member)
            return -lost(versions), sum(versions.values())

        heir = max(self.returned, key=rating, default=None)
        own = self.own_versions
        takes_own = own is not None and (heir is None or lost(own) <= lost(self._contents_of(heir)))
        self.heir = None if takes_own else heir
        return self.heir

    def retain(self, members: Iterable[Member]) -> None:
        """Forget returned workers that are not among these members any more."""
        left = set(members)
        self.returned = {each: said for each, said in self.returned.items() if each in left}

    def restart(self, now: float) -> None:
        """Start over, and wait for workers again."""
        self.deadline = now + self.seconds
        self.returned.clear()
        self.gathering = True
        self.heir = self.contents = None
        self.recalled.clear()
        self.bytes_recalled = 0
        self.gaps.clear()

    # RecalledUpdates updates.

    def plan(self) -> None:
        """Work out which updates to recall, once the heir is chosen."""
        owners = {member.rank: member for member in self.returned}
        for rank in sorted({rank for member in self.returned for rank in self._ranks_of(member)}):
            contained, owner = self.contained(rank), owners.get(rank)
            others = [self.last(each, rank) for each in self.returned if each is not owner]
            if owner is None:
                to = max(others, default=contained)
            elif owner is self.heir:
                to = contained
            else:
                # Updates that no other worker has, the owner sends later without being asked. Those
                # that others have are recalled now: by then the owner may be gone.
                to = max([self.kept_from(owner, rank) - 1, *others])
            # The update log has the latest updates of the master's own replica.
            wanted = contained if self.heir is None else min([*others, contained])
            if self.needs_last_result and self.heir is not None:
                wanted = 0
            base = self._base(rank, wanted, contained)
            self.recalled[rank] = RecalledUpdates(base, max(to, contained))

    def next_request(self, rank: int) -> RecallRequest | None:
        """Return the next request for updates of a rank; None if no worker can send more."""
        recalled = self.recalled[rank]
        reached = recalled.reached
        able = [each for each in self.returned if self.kept_from(each, rank) <= reached + 1]
        member = max(able, key=lambda each: self.last(each, rank), default=None)
        recalled.asked = None
        if member is not None:
            last = min(self.last(member, rank), recalled.to)
            if last > reached:
                recalled.asked = RecallRequest(member, last, InOrder(reached + 1))
        return recalled.asked

    def put_update(self, received: UpdateReceived) -> None:
        """Store the next update of a rank.

        Above the limit, it and the ones before it of that rank are dropped: workers that lack them
        are sent the replica, which contains them.
        """
        recalled = self.recalled[received.rank]
        sequence, size = received.update.sequence, received.message.total
        is_contained = sequence <= self.contained(received.rank)
        if is_contained and self.bytes_recalled + size > RECALLED_BYTES_MAX:
            self.bytes_recalled -= sum(each.message.total for each in recalled.updates)
            recalled.base, recalled.updates = sequence, []
        else:
            recalled.updates.append(received)
            self.bytes_recalled += size

    @property
    def has_asked(self) -> bool:
        """Whether a request was sent; no update can be requested twice."""
        return any(each.updates or each.asked for each in self.recalled.values())

    @property
    def pending_members(self) -> list[Member]:
        """The workers that still have to send requested updates."""
        return [each.asked.member for each in self.recalled.values() if each.asked is not None]

    # What workers have.

    def contained(self, rank: int) -> int:
        """Return the sequence of the last update of a rank in the replica that is taken."""
        if self.heir is not None:
            return self.last(self.heir, rank)
        assert self.own_versions is not None
        return self.own_versions.get(rank, 0)

    def last(self, member: Member, rank: int) -> int:
        """Return the sequence of the last update of a rank in a worker's replica."""
        return self.returned[member].last(rank)

    def kept_from(self, member: Member, rank: int) -> int:
        """Return the sequence of the first update of a rank that a worker keeps."""
        return self.returned[member].kept_from(rank)

    # Private.

    def _contents_of(self, member: Member) -> Mapping[int, int]:
        return {rank: self.last(member, rank) for rank in self._ranks_of(member)}

    def _ranks_of(self, member: Member) -> Iterable[int]:
        """Return the ranks whose updates were relayed, as far as a worker knows them."""
        ranks = (*self.returned[member].versions, member.rank)
        return [rank for rank in ranks if rank >= WORKERS_MAX or not self.has_rounds]

    def _floors(self) -> dict[int, int]:
        """Return, by rank, the last update that a replica must contain for none to be lost."""
        spans: dict[int, list[tuple[int, int]]] = {}
        for member in self.returned:
            for rank in self._ranks_of(member):
                span = self.last(member, rank), self.kept_from(member, rank)
                spans.setdefault(rank, []).append(span)
        for rank, last in (self.own_versions or {}).items():
            if rank < WORKERS_MAX and self.has_rounds:
                continue
            spans.setdefault(rank, []).append((last, last + 1))
        return {rank: _reach_back(each, max(each)[0]) for rank, each in spans.items()}

    def _base(self, rank: int, wanted: int, contained: int) -> int:
        """Return the lowest sequence from `wanted` on after which all to `contained` are kept."""
        spans = [(self.last(each, rank), self.kept_from(each, rank)) for each in self.returned]
        return max(_reach_back(spans, contained), wanted)


def _reach_back(spans: Iterable[tuple[int, int]], last: int) -> int:
    """Return the sequence before the first update from which all up to `last` are kept.

    A span is the sequences of the last and of the first update that a worker keeps.
    """
    base = last
    for end, first in sorted(spans, reverse=True):
        if end >= base:
            base = min(base, first - 1)
    return base
