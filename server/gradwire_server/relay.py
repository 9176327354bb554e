"""The relay: every update accepted from one worker goes to every other worker exactly once.

An update is accepted when all earlier ones of its origin were; it is named by (rank, sequence),
and the version vector says which were accepted. It is passed on as it came, without being decoded
and encoded again, in the stream of its origin. When every worker it went to has acknowledged it,
and every earlier one, it is stable.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gradwire_protocol import InOrder, ShapedMessage
from gradwire_server.roster import Member


@dataclass(slots=True)
class _Origin:
    """The updates of one rank."""

    pending: dict[int, int] = field(default_factory=dict)
    """By sequence: how many workers do not have it yet."""
    arrived: InOrder[None] = field(default_factory=lambda: InOrder(1))
    """Those that all have, put in order: what is below the next one expected is stable."""


class Relay:
    """What was accepted, and who has it."""

    def __init__(self) -> None:
        self.versions: dict[int, int] = {}
        """By rank: the sequence of the last update accepted."""
        self._origins: dict[int, _Origin] = {}

    @property
    def stable(self) -> dict[int, int]:
        """By rank: the sequence up to which every live worker has all updates."""
        return {rank: origin.arrived.expected - 1 for rank, origin in self._origins.items()}

    @property
    def unstable(self) -> int:
        """How many accepted updates some live worker does not have yet."""
        stable = self.stable
        return sum(sequence - stable[rank] for rank, sequence in self.versions.items())

    def next_of(self, rank: int) -> int:
        """Return the sequence of the next update to accept of a rank."""
        return self.versions.get(rank, 0) + 1

    def accept(
        self,
        rank: int,
        sequence: int,
        message: ShapedMessage,
        destinations: Iterable[Member],
        now: float,
    ) -> None:
        """Pass an update on.

        Parameters
        ----------
        rank, sequence : int
            Its name; the next one of its origin.
        message : ShapedMessage
            As it came. Shared by all destinations, not copied; freed when the last one has it.
        destinations : iterable of Member
            Everyone but its origin.
        now : float
        """
        assert sequence == self.next_of(rank)
        self.versions[rank] = sequence
        origin = self._origins.setdefault(rank, _Origin())
        count = 0
        for member in destinations:
            member.unacknowledged[rank, sequence] = now
            member.link.relay_update(message)
            count += 1
        origin.pending[sequence] = count
        if not count:
            self._arrived(origin, sequence)

    def on_delivered(self, member: Member, rank: int, sequence: int) -> float | None:
        """Note that a worker has an update; return when it was accepted."""
        accepted_at = member.unacknowledged.pop((rank, sequence), None)
        if accepted_at is not None:
            self._count_down(rank, sequence)
        return accepted_at

    def remove(self, member: Member) -> None:
        """Wait no longer for a worker that is gone."""
        for rank, sequence in member.unacknowledged:
            self._count_down(rank, sequence)
        member.unacknowledged.clear()

    def _count_down(self, rank: int, sequence: int) -> None:
        origin = self._origins[rank]
        origin.pending[sequence] -= 1
        if not origin.pending[sequence]:
            self._arrived(origin, sequence)

    def _arrived(self, origin: _Origin, sequence: int) -> None:
        del origin.pending[sequence]
        origin.arrived.push(sequence, None)
