"""The relay: every update accepted from one worker goes to every other worker exactly once.

An update is accepted when all earlier ones of its origin were; it is named by (rank, sequence),
and the version vector says which were accepted. It is passed on as it came, without being decoded
and encoded again, in the stream of its origin. When every worker it went to has acknowledged it,
and every earlier one, it is stable.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gradwire_protocol import InOrder, ShapedMessage
from gradwire_protocol.messages import EncodedUpdate
from gradwire_server.roster import Member
from gradwire_server.update_log import UPDATE_LOG_BYTES_MAX, UpdateLog


@dataclass(slots=True)
class _Origin:
    """The updates of one rank."""

    pending: dict[int, int] = field(default_factory=dict)
    """By sequence: how many workers do not have it yet."""
    arrived: InOrder[None] = field(default_factory=lambda: InOrder(1))
    """Those that all have, put in order: what is below the next one expected is stable."""


class Relay:
    """What was accepted, and who has it.

    Parameters
    ----------
    log_bytes_max : int
        What is kept of it for workers that come back.
    """

    def __init__(self, log_bytes_max: int = UPDATE_LOG_BYTES_MAX) -> None:
        self.log = UpdateLog(log_bytes_max)
        """The updates accepted last."""
        self.versions: dict[int, int] = {}
        """By rank: the sequence of the last update accepted."""
        self._origins: dict[int, _Origin] = {}

    def go_on_from(self, versions: Mapping[int, int]) -> None:
        """Begin with a replica that contains updates already; none of them is in the log."""
        self.versions = dict(versions)
        for rank, sequence in versions.items():
            self._origins[rank] = _Origin(arrived=InOrder(sequence + 1))
            self.log.skip(rank, sequence)

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
        self.log.put(rank, sequence, message)
        for member in self._expect(rank, sequence, destinations, now):
            member.link.relay_update(message)

    def accept_clipped(
        self,
        member: Member,
        update: EncodedUpdate,
        correction: EncodedUpdate,
        destinations: Iterable[Member],
        now: float,
    ) -> None:
        """Pass on what is left of an update, and tell its origin what is not.

        It is stable when the origin, too, has what it was sent.

        Parameters
        ----------
        member : Member
            The origin.
        update, correction : EncodedUpdate
            What the others get and what the origin gets, of the same sequence.
        destinations : iterable of Member
            Everyone but the origin.
        now : float
        """
        packed, rank, sequence = update.pack(), member.rank, update.sequence
        self.log.skip(rank, sequence)
        for other in self._expect(rank, sequence, [*destinations, member], now):
            payload = correction.pack() if other is member else packed
            other.link.send_update(rank, sequence, payload)

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

    def _expect(
        self, rank: int, sequence: int, destinations: Iterable[Member], now: float
    ) -> list[Member]:
        """Note that these are about to be sent an update; return them.

        Whether an observer has it, nobody waits for.
        """
        assert sequence == self.next_of(rank)
        self.versions[rank] = sequence
        origin = self._origins.setdefault(rank, _Origin())
        members = list(destinations)
        waited_for = [member for member in members if not member.observes]
        for member in waited_for:
            member.unacknowledged[rank, sequence] = now
        origin.pending[sequence] = len(waited_for)
        if not waited_for:
            self._arrived(origin, sequence)
        return members

    def _count_down(self, rank: int, sequence: int) -> None:
        origin = self._origins[rank]
        origin.pending[sequence] -= 1
        if not origin.pending[sequence]:
            self._arrived(origin, sequence)

    def _arrived(self, origin: _Origin, sequence: int) -> None:
        del origin.pending[sequence]
        origin.arrived.push(sequence, None)
