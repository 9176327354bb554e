"""`Recovery`: a master that was started anew gets its run back from the workers.

It has nothing: no replica, no versions, no roster. But every worker has a replica, knows what is in
it, and keeps what it has sent until everyone has it. So the master waits until all are back, or for
some seconds, takes the replica of one, and lets the others in with what they have: each sends again
what that replica lacks of its own updates.

Updates of a worker that is gone have nobody to send them again. So the replica is taken that has
the most of those; where one worker is gone, it has all that any other one has.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gradwire_protocol.messages import Resume
from gradwire_server.roster import Member


@dataclass(slots=True)
class Recovery:
    """Who is back, and what comes from whom."""

    deadline: float
    """Until when others are waited for."""
    returned: dict[Member, Resume] = field(default_factory=dict)
    """Who is back, and what they have."""
    gathering: bool = True
    """Whether others are waited for, and nobody was asked for a replica yet."""
    contents: dict[int, int] | None = None
    """The updates in the replica that comes, as its worker says."""

    @property
    def is_complete(self) -> bool:
        """Whether everyone is back of whom anyone who is back knows."""
        known = max((resume.workers for resume in self.returned.values()), default=0)
        return 0 < known <= len(self.returned)

    def most_advanced(self) -> Member | None:
        """Return whose replica is to be taken; None where nobody is back."""
        present = {member.rank for member in self.returned}

        def advance(member: Member) -> tuple[int, int]:
            resume = self.returned[member]
            of_absent = sum(n for rank, n in resume.versions.items() if rank not in present)
            return of_absent, sum(resume.versions.values()) + resume.sequence

        return max(self.returned, key=advance, default=None)

    def keep_only(self, members: Iterable[Member]) -> None:
        """Forget who is gone again."""
        left = set(members)
        for member in [each for each in self.returned if each not in left]:
            del self.returned[member]

    def may_keep_replica(self, member: Member) -> bool:
        """Return whether a worker's replica becomes equal by what live workers send again.

        It must not lack anything, and have nothing more of workers that are gone.
        """
        resume, contents = self.returned[member], self.contents or {}
        present = {each.rank for each in self.returned}
        return all(
            resume.versions.get(rank, 0) >= sequence
            for rank, sequence in contents.items()
            if rank != member.rank
        ) and all(
            rank in present or sequence == contents.get(rank, 0)
            for rank, sequence in resume.versions.items()
        )
