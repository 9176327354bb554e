"""`RunRecovery`: a master that was started anew gets its run back from the workers.

It has nothing: no replica, no versions, no roster. But every worker has a replica, knows what is in
it, and keeps what it has sent and what it was sent until everyone has it. So the master waits until
all are back, or for some seconds, and chooses one, the heir, whose replica it will take.

Before that it recalls the updates that others lack of that replica, or that it lacks itself:
whoever keeps them sends them again, their origin or anybody else. With these the others go on with
the replicas that they have, each being sent what it lacks. What a worker has sent last, and nobody
else has, it sends again by itself.

::

    gathering ──▶ recalling ──▶ replica on its way ──▶ the run goes on

So an update is lost only where nobody who is back keeps it and the heir does not have it; and the
heir is who lacks the least of what nobody keeps.

A master that has a checkpoint of the run, or was its standby, has a replica itself. Where that
lacks no more than any worker's, it is what the run goes on with, and nobody has to send one.

Here is what was said and what follows from it; `recall` asks and answers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gradwire_protocol import InOrder
from gradwire_protocol.messages.admission import Resume
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_server.state.roster import Member
from gradwire_server.updates.update_log import UPDATE_LOG_BYTES_MAX

RECALLED_BYTES_MAX: Final = UPDATE_LOG_BYTES_MAX
"""Of updates that some lack of the replica: the log would forget more at once. What the replica
lacks comes on top, of ranks that are gone, and is bounded by what workers keep."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The worker that was asked for updates of a rank, and which of them have come."""

    member: Member
    last: int
    arriving: InOrder[UpdateReceived]


@dataclass(slots=True)
class Recalled:
    """Updates of one rank that are recalled."""

    base: int
    """The sequence before the first of them."""
    to: int
    """The last one that is wanted."""
    updates: list[UpdateReceived] = field(default_factory=list)
    asked: Asked | None = None
    """None when nobody has to send any more."""

    @property
    def reached(self) -> int:
        """The last one that has come."""
        return self.base + len(self.updates)


@dataclass(slots=True, eq=False)
class RunRecovery:
    """The workers that have returned, and what each is asked for."""

    seconds: float
    """How long each thing is waited for."""
    deadline: float
    """Until when others are waited for; then, until when the next thing has to come."""
    returned: dict[Member, Resume] = field(default_factory=dict)
    """The workers that have returned, and what they have."""
    own_versions: Mapping[int, int] | None = None
    """The updates in what the master has of the run itself: a checkpoint, or a standby's copy."""
    gathering: bool = True
    """Whether others are waited for."""
    heir: Member | None = None
    """Whose replica is taken; None before that is known, and where it is our own."""
    contents: dict[int, int] | None = None
    """The updates in that replica, when the heir has said so with it."""
    recalled: dict[int, Recalled] = field(default_factory=dict)
    """By rank: the updates that are recalled."""
    bytes_recalled: int = 0
    holed: dict[int, int] = field(default_factory=dict)
    """By rank: the last update before some that are lost, which others may have."""

    @property
    def is_complete(self) -> bool:
        """Whether everyone is back of whom anyone who is back knows."""
        known = max((resume.workers for resume in self.returned.values()), default=0)
        return 0 < known <= len(self.returned)

    def choose(self) -> Member | None:
        """Choose whose replica is to be taken, of those who are back; None for our own.

        The one that lacks the least of what nobody keeps; of those our own, or else the most
        advanced.
        """
        self.gathering = False
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

    def keep_only(self, members: Iterable[Member]) -> None:
        """Forget who is gone again."""
        left = set(members)
        for member in [each for each in self.returned if each not in left]:
            del self.returned[member]

    def gather_again(self, now: float) -> None:
        """Begin from nothing."""
        self.deadline = now + self.seconds
        self.returned.clear()
        self.gathering = True
        self.heir = self.contents = None
        self.recalled.clear()
        self.bytes_recalled = 0
        self.holed.clear()

    # Updates that are sent again.

    def plan(self) -> None:
        """Work out what to recall, when it is known whose replica is taken."""
        owners = {member.rank: member for member in self.returned}
        for rank in sorted({rank for member in self.returned for rank in self._ranks_of(member)}):
            contained, owner = self.contained(rank), owners.get(rank)
            others = [self.last(each, rank) for each in self.returned if each is not owner]
            if owner is None:
                to = max(others, default=contained)
            elif owner is self.heir:
                to = contained
            else:
                # What nobody else has, it sends by itself. What others have must not depend on
                # its still being there then.
                to = max([self.kept_from(owner, rank) - 1, *others])
            # What is in a replica of our own, is in our update log, too, as far as it reaches.
            wanted = contained if self.heir is None else min([*others, contained])
            base = self._base(rank, wanted, contained)
            self.recalled[rank] = Recalled(base, max(to, contained))

    def ask(self, rank: int) -> Asked | None:
        """Choose whom to ask for the next updates of a rank, if there is anything to ask for."""
        recalled = self.recalled[rank]
        reached = recalled.reached
        able = [each for each in self.returned if self.kept_from(each, rank) <= reached + 1]
        member = max(able, key=lambda each: self.last(each, rank), default=None)
        recalled.asked = None
        if member is not None:
            last = min(self.last(member, rank), recalled.to)
            if last > reached:
                recalled.asked = Asked(member, last, InOrder(reached + 1))
        return recalled.asked

    def put_update(self, received: UpdateReceived) -> None:
        """Keep the next update of a rank.

        Where it is too much, what came before of that rank is dropped and it as well: who lacks it
        is given the replica, which contains it.
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
        """Whether anything was asked for, which nobody can be asked for again."""
        return any(each.updates or each.asked for each in self.recalled.values())

    @property
    def owing(self) -> list[Member]:
        """Who still has to send updates again."""
        asked = [recalled.asked for recalled in self.recalled.values()]
        return [each.member for each in asked if each is not None]

    # What somebody has said.

    def contained(self, rank: int) -> int:
        """Return the last update of a rank in the replica that is taken."""
        if self.heir is not None:
            return self.last(self.heir, rank)
        assert self.own_versions is not None
        return self.own_versions.get(rank, 0)

    def last(self, member: Member, rank: int) -> int:
        """Return the last update of a rank that somebody has."""
        resume = self.returned[member]
        return resume.sequence if rank == member.rank else resume.versions.get(rank, 0)

    def kept_from(self, member: Member, rank: int) -> int:
        """Return the first update of a rank that somebody keeps, and all after it that it has."""
        last = self.last(member, rank)
        return min(self.returned[member].kept.get(rank, last + 1), last + 1)

    # Private.

    def _contents_of(self, member: Member) -> Mapping[int, int]:
        resume = self.returned[member]
        return {**resume.versions, member.rank: resume.sequence}

    def _ranks_of(self, member: Member) -> Iterable[int]:
        return (*self.returned[member].versions, member.rank)

    def _floors(self) -> dict[int, int]:
        """Return by rank which update a replica must have, so that nothing behind it is lost."""
        spans: dict[int, list[tuple[int, int]]] = {}
        for member in self.returned:
            for rank in self._ranks_of(member):
                span = self.last(member, rank), self.kept_from(member, rank)
                spans.setdefault(rank, []).append(span)
        for rank, last in (self.own_versions or {}).items():
            spans.setdefault(rank, []).append((last, last + 1))
        return {rank: _reach_back(each, max(each)[0]) for rank, each in spans.items()}

    def _base(self, rank: int, wanted: int, contained: int) -> int:
        """Return the first sequence from the one wanted from which somebody keeps all updates."""
        spans = [(self.last(each, rank), self.kept_from(each, rank)) for each in self.returned]
        return max(_reach_back(spans, contained), wanted)


def _reach_back(spans: Iterable[tuple[int, int]], last: int) -> int:
    """Return how far back updates are kept, without a gap before `last`.

    Parameters
    ----------
    spans : iterable of (int, int)
        For each who keeps some: the last one, and the first one.
    last : int
        A sequence.

    Returns
    -------
    int
        The sequence before the first of them.
    """
    base = last
    for end, first in sorted(spans, reverse=True):
        if end >= base:
            base = min(base, first - 1)
    return base
