"""`RunRecovery`: a restarted master recovers its run from the workers.

The master has no replica, no log, no roster. But what every worker has is the log up to some
position, and workers keep the last part of it, until all have it. So the master waits until all
workers have returned, or for some seconds, and chooses the most advanced one, the heir. It sends
its replica, and what it keeps of the log that others lack. Then the run continues in a log that
begins there, and the others are sent what they lack of it, as if they had been slow. A worker sends
its latest updates, which are not in that log, again without being asked.

::

    gathering ──▶ log and replica on their way ──▶ the run continues

So nothing is lost that any returned worker has. A worker that has something else, because a master
in between has gone on without it, is sent the blocks of the replica that differ.

A master that has a checkpoint of the run, or was its standby, has a replica itself. If no worker is
more advanced, the run continues with it, and no worker has to send one.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gradwire_protocol.messages.admission import LogName, Place, Resume, incarnation_of
from gradwire_protocol.messages.updates import EntriesAssembly, Stable
from gradwire_server.log.segments import Segment
from gradwire_server.state.roster import Member


@dataclass(slots=True, eq=False)
class RunRecovery:
    """The workers that have returned, and what the heir has sent."""

    seconds: float
    """Timeout of each stage."""
    deadline: float
    """While gathering, when the master stops waiting for workers; later, the timeout of a stage."""
    returned: dict[Member, Resume] = field(default_factory=dict)
    """The returned workers, each with what it said in its JOIN."""
    needs_last_results: bool = False
    """Whether the heir sends all that it keeps, though all have it: the next step follows from the
    last results."""
    own: Place | None = None
    """That of the master's own replica, from a checkpoint or from its time as standby."""
    gathering: bool = True
    """Whether the master waits for more workers."""
    heir: Member | None = None
    """The worker whose replica is taken; None before the choice, and for the master's own."""
    log: LogName = field(default_factory=LogName)
    """In which the run continues; set with the heir."""
    after: int = 0
    """The position after which the heir is to send the log."""
    segments: list[Segment] = field(default_factory=list)
    """The last part of the log, as far as the heir has sent it."""
    assembly: EntriesAssembly = field(default_factory=lambda: EntriesAssembly(0))
    """What cannot be stored yet."""
    versions: dict[int, int] = field(default_factory=dict)
    """By rank: the last update in `segments`."""
    contents: dict[int, int] | None = None
    """Versions of its replica, once the heir has sent them."""
    times_lost: int = 0
    """How often all workers that had the run were lost."""
    lost: set[Member] = field(default_factory=set)
    """Workers whose own replica has updates that are lost."""

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

        The choice is the most advanced one in the last log; where masters have gone on from one
        place without knowing of each other, in the one that most workers have followed. Who was
        told of a log, and has nothing yet that the one before lacks, is no further for it.
        """
        self.gathering = False
        self._forget_sent()
        followers = Counter(resume.place.earliest_log for resume in self.returned.values())

        def rating(place: Place) -> tuple[int, int, int]:
            log = place.earliest_log
            return incarnation_of(log), followers[log], place.position

        heir = max(self.returned, key=lambda each: rating(self.place(each)), default=None)
        if self.own is not None and (heir is None or rating(self.own) >= rating(self.place(heir))):
            heir = None
        self.heir = heir
        if heir is not None:
            self.after = self._last_after(heir)
        return heir

    @property
    def start(self) -> Place:
        """The place of the replica that is taken."""
        if self.heir is not None:
            return self.place(self.heir)
        assert self.own is not None
        return self.own

    @property
    def reached(self) -> int:
        """The position up to which the heir has sent the log."""
        return self.segments[-1].stop if self.segments else self.after

    @property
    def has_log(self) -> bool:
        """Whether all is here that the heir was to send of the log."""
        return self.reached == self.start.position

    def place(self, member: Member) -> Place:
        """Return up to where a worker has the log."""
        return self.returned[member].place

    def retain(self, members: Iterable[Member]) -> None:
        """Forget returned workers that are not among these members any more."""
        left = set(members)
        self.returned = {each: said for each, said in self.returned.items() if each in left}

    def restart(self, now: float) -> None:
        """Start over, and wait for workers again."""
        self.deadline = now + self.seconds
        self.returned.clear()
        self.gathering = True
        self.heir = None
        self._forget_sent()

    @property
    def _followers(self) -> list[Resume]:
        """Those who have the log of the heir, the least advanced one first."""
        log = self.start.log
        followers = [
            each
            for each in self.returned.values()
            if each.place.log.shares(log, each.place.position)
        ]
        return sorted(followers, key=lambda each: each.place.position)

    def _last_after(self, heir: Member) -> int:
        """Return the position after which some worker, or the next step, needs the log."""
        start, kept_after = self.start.position, self.returned[heir].kept_after
        last = 0 if self.needs_last_results else self._followers[0].place.position
        return min(max(last, kept_after), start)

    @property
    def stable(self) -> Stable:
        """What all have who are sent the log from their place on."""
        [last, *_] = [each for each in self._followers if each.place.position >= self.after]
        return Stable(last.place.position, last.versions)

    def _forget_sent(self) -> None:
        self.contents = None
        self.segments.clear()
        self.assembly = EntriesAssembly(self.assembly.elements)
        self.versions.clear()
