"""The relay: every update accepted from one worker goes to every other worker exactly once.

An update is named by (rank, sequence), and is accepted after all earlier ones of its rank; the
version vector says which were accepted. The relay passes it on unchanged, in the stream of its
origin, or to a slow member as part of a sum (see `conflation`). When every worker it went to has
acknowledged it and all earlier ones, it is stable.

Which updates are stable follows from the backlogs of the members, so tracking it takes no memory of
its own.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from gradwire_codecs import Update, decode
from gradwire_protocol import ShapedMessage
from gradwire_protocol.limits import charge_of
from gradwire_protocol.messages.fields import raise_to
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.config import RELAY_LIMITS, RelayLimits
from gradwire_server.state.conflation import Conflation
from gradwire_server.state.roster import Member, Phase
from gradwire_server.updates.update_log import UpdateLog


class Relay:
    """The accepted updates, and which member has which."""

    def __init__(
        self, elements: int, limits: RelayLimits = RELAY_LIMITS, *, has_rounds: bool = False
    ) -> None:
        self.log = UpdateLog(limits.log_bytes_max)
        """The latest accepted updates."""
        self.conflation = Conflation(
            elements, limits.backlog_bytes_max, limits.conflation_bytes_max
        )
        self.versions: dict[int, int] = {}
        """By rank: the sequence of the last accepted update."""
        self._stable: dict[int, int] = {}
        """A lower bound: an update stays stable when a worker that lacks it returns."""
        self._members: dict[Member, None] = {}
        """Connected members that were sent an update, as an ordered set."""
        self._has_rounds = has_rounds
        self._closed: deque[tuple[int, int, Mapping[int, int]]] = deque()
        """Rank and sequence of the last update of each round's result, and what it contains."""

    def share(self, runs: Callable[[], int], sum_bytes: Callable[[], int]) -> None:
        """Share the limits with other runs.

        Parameters
        ----------
        runs : callable
            Returns how many runs share the limit of the log; each has an equal part.
        sum_bytes : callable
            Returns the memory of the sums of all of them.
        """
        self.log.runs = runs
        self.conflation.total_bytes = sum_bytes

    def start_from(
        self, versions: Mapping[int, int], stable: Mapping[int, int] | None = None
    ) -> None:
        """Start from a replica that contains these updates; none of them is in the log.

        `stable` has those ranks of which fewer are stable.
        """
        self.versions = dict(versions)
        self._stable = {**versions, **(stable or {})}
        for rank, sequence in versions.items():
            if rank >= WORKERS_MAX or not self._has_rounds:  # contributions are in no log
                self.log.skip(rank, sequence)

    def skip_to(self, rank: int, sequence: int) -> None:
        """Skip lost updates of a rank, up to this one."""
        self.versions[rank] = self._stable[rank] = sequence
        self.log.skip(rank, sequence)

    @property
    def stable(self) -> dict[int, int]:
        """By rank: the sequence up to which every live worker has all updates.

        Observers do not count, nor does a standby that has not received the snapshot.
        """
        reached = self.reached
        stable = {rank: max(self._stable.get(rank, 0), at) for rank, at in reached.items()}
        if not self._has_rounds:
            return stable
        contained = {rank: s for rank, s in self._stable.items() if rank < WORKERS_MAX}
        for rank, sequence, closes in self._closed:
            if stable.get(rank, 0) >= sequence:
                raise_to(contained, closes)
        return contained | stable

    @property
    def reached(self) -> dict[int, int]:
        """By rank: what every live worker has now, which is less when one comes that lacks some.

        In a run with rounds, of results only.
        """
        reached = dict(self.versions)
        if self._has_rounds:
            reached = {rank: s for rank, s in reached.items() if rank >= WORKERS_MAX}
        for member in self._members:
            if not member.observes or (member.stands_by and member.phase is Phase.LIVE):
                for rank, sequence in member.backlog.received_up_to():
                    reached[rank] = min(reached[rank], sequence)
            if member.behind is not None:
                reached = {r: min(s, member.behind.get(r, 0)) for r, s in reached.items()}
        return reached

    @property
    def unstable(self) -> int:
        """Number of accepted updates that are not stable."""
        stable = self.stable
        return sum(sequence - stable.get(rank, 0) for rank, sequence in self.versions.items())

    def next_sequence(self, rank: int) -> int:
        """Return the sequence of the next update of a rank."""
        return self.versions.get(rank, 0) + 1

    def log_update(self, rank: int, sequence: int, message: ShapedMessage) -> None:
        """Accept the next update of a rank without sending it."""
        self._advance(rank, sequence)
        self.log.append(rank, sequence, message)

    def accept(
        self,
        rank: int,
        sequence: int,
        message: ShapedMessage,
        update: Update,
        destinations: Iterable[Member],
        now: float,
        *,
        clocks: Mapping[int, int] = MappingProxyType({}),
        closes: Mapping[int, int] | None = None,
    ) -> None:
        """Accept an update and pass it on.

        Parameters
        ----------
        message : ShapedMessage
            The update as it came. All destinations share it; the last delivery frees it.
        update : Update
            The decoded update, for sums.
        destinations : iterable of Member
            All members but the origin.
        clocks : mapping
            The step counters in the update by rank, for sums.
        closes : mapping, optional
            In the last update of a round's result, by rank: the last contribution in it.
        """
        self.log_update(rank, sequence, message)
        charge = charge_of(message.total)
        for member in destinations:
            if self._queues(member, rank, sequence, charge, update, now, clocks, closes):
                member.link.relay_update(message)
        if closes:  # not before it is queued: else it would count as stable
            self.note_closed(rank, sequence, closes)

    def accept_clipped(
        self,
        member: Member,
        encoded: EncodedUpdate,
        update: Update,
        correction: EncodedUpdate,
        destinations: Iterable[Member],
        now: float,
    ) -> None:
        """Accept a clipped update, pass it on, and send its origin the correction.

        It is stable only when the origin has the correction.

        Parameters
        ----------
        member : Member
            The origin.
        encoded, correction : EncodedUpdate
            The clipped update for the others, and the correction for the origin, of one sequence.
        update : Update
            The clipped update, decoded.
        destinations : iterable of Member
            All members but the origin.
        """
        packed, rank, sequence = encoded.pack(), member.rank, encoded.sequence
        self._advance(rank, sequence)
        self.log.skip(rank, sequence)
        for other in [*destinations, member]:
            payload = correction.pack() if other is member else packed
            charge = charge_of(len(payload))
            clocks = encoded.clocks_of(rank)
            if self._queues(other, rank, sequence, charge, update, now, clocks):
                other.link.send_update(rank, sequence, payload)

    def note_closed(self, rank: int, sequence: int, closes: Mapping[int, int]) -> None:
        """Note what the result of a round contains that ends with this update."""
        self._stable = self.stable
        while self._closed and self._stable.get(self._closed[0][0], 0) >= self._closed[0][1]:
            self._closed.popleft()
        self._closed.append((rank, sequence, dict(closes)))
        raise_to(self.versions, closes)

    def can_catch_up(self, versions: Mapping[int, int], *, without: int) -> bool:
        """Return whether `catch_up` can send all updates that a version vector lacks.

        Updates of the rank `without` do not count.
        """
        if not self.log.reaches_back_to(versions, without=without):
            return False
        lacking = self.log.since(versions, without=without)
        return self.conflation.can_take(charge_of(message.total) for _, _, message in lacking)

    def can_queue(self, versions: Mapping[int, int], *, without: int) -> bool:
        """Return whether `catch_up` can send them all as single updates, not in a sum."""
        if not self.log.reaches_back_to(versions, without=without):
            return False
        lacking = self.log.since(versions, without=without)
        return self.conflation.can_queue(charge_of(message.total) for _, _, message in lacking)

    def catch_up(self, member: Member, versions: Mapping[int, int], now: float) -> None:
        """Send a returning member the updates of other ranks that its version vector lacks."""
        self._stable = self.stable
        for rank, sequence, message in self.log.since(versions, without=member.rank):
            charge = charge_of(message.total)
            if member.relayed is not None or self.conflation.has_room(member.backlog, charge):
                self._queue(member, rank, sequence, charge, now)
                member.link.relay_update(message)
            else:
                encoded = EncodedUpdate.parse(message.payload)
                update = decode(encoded.body, self.conflation.elements)
                clocks = encoded.clocks_of(rank)
                self._add(member, rank, sequence, update, now, clocks, encoded.closes)

    def on_delivered(self, member: Member, rank: int, sequence: int, now: float) -> float | None:
        """Note that an update was delivered; return when it was accepted.

        None for observers, whose delay does not count.
        """
        accepted_at = member.backlog.remove(rank, sequence)
        member.backlog.progress_at = now
        if member.backlog.open_sum is not None:
            self.conflation.send_if_due(member)
        return None if member.observes else accepted_at

    def on_part_delivered(self, member: Member, now: float) -> int | None:
        """Note that a part of a sum was delivered; with the last, return its number of updates."""
        member.backlog.progress_at = now
        updates = self.conflation.on_delivered(member)
        self.conflation.send_if_due(member)
        return updates

    def on_block_delivered(self, member: Member, now: float) -> None:
        """Note that a block of a snapshot was delivered."""
        member.backlog.progress_at = now
        self.conflation.send_if_due(member)

    def remove(self, member: Member) -> None:
        """Forget a member that has left: no update waits for it to be stable."""
        self._members.pop(member, None)
        self.conflation.forget(member)

    def _advance(self, rank: int, sequence: int) -> None:
        assert sequence == self.next_sequence(rank)
        self.versions[rank] = sequence

    def _queues(
        self,
        member: Member,
        rank: int,
        sequence: int,
        charge: int,
        update: Update,
        now: float,
        clocks: Mapping[int, int],
        closes: Mapping[int, int] | None = None,
    ) -> bool:
        """Queue an update for a member, or add it to its sum; return whether to send it now.

        A correction is never added to a sum: no version would tell that it is in there.
        """
        if rank == member.rank or self.conflation.has_room(member.backlog, charge):
            self._queue(member, rank, sequence, charge, now)
            return True
        if member.stands_by:
            # A standby must be able to send workers single updates, so it cannot use sums; nor can
            # a relay, whose peers have come at different times.
            member.backlog.drop_reason = f"{member.backlog.nbytes} bytes are under way to it"
            return False
        self._add(member, rank, sequence, update, now, clocks, closes)
        return False

    def _queue(self, member: Member, rank: int, sequence: int, charge: int, now: float) -> None:
        self._members[member] = None
        member.backlog.append(rank, sequence, charge, now)

    def _add(
        self,
        member: Member,
        rank: int,
        sequence: int,
        update: Update,
        now: float,
        clocks: Mapping[int, int],
        closes: Mapping[int, int] | None,
    ) -> None:
        self._members[member] = None
        self.conflation.add_update(
            member, rank, sequence, update, now, clocks=clocks, closes=closes
        )
