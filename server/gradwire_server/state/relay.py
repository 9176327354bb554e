"""The relay: every update accepted from one worker goes to every other worker exactly once.

An update is accepted when all earlier ones of its origin were; it is named by (rank, sequence),
and the version vector says which were accepted. It is passed on as it came, without being decoded
and encoded again, in the stream of its origin; to who is slow, as part of a sum (see `conflation`).
When every worker it went to has acknowledged it, and every earlier one, it is stable.

What is stable follows from what is under way to each member, so keeping track of it takes no more
memory than that.
"""

from collections.abc import Iterable, Mapping

from gradwire_codecs import Update, decode
from gradwire_protocol import ShapedMessage
from gradwire_protocol.limits import charge_of
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.config import RELAY_LIMITS, RelayLimits
from gradwire_server.state.conflation import Conflation
from gradwire_server.state.roster import Member, Phase
from gradwire_server.updates.update_log import UpdateLog


class Relay:
    """What was accepted, and who has it.

    Parameters
    ----------
    elements : int
        Parameters of the run.
    """

    def __init__(self, elements: int, limits: RelayLimits = RELAY_LIMITS) -> None:
        self.log = UpdateLog(limits.log_bytes_max)
        """The updates accepted last."""
        self.conflation = Conflation(
            elements, limits.backlog_bytes_max, limits.conflation_bytes_max
        )
        self.versions: dict[int, int] = {}
        """By rank: the sequence of the last update accepted."""
        self._stable: dict[int, int] = {}
        """What was stable when somebody came back who lacks some of it: it is so for ever."""
        self._members: dict[Member, None] = {}
        """Members that were sent something and are still connected."""

    def go_on_from(self, versions: Mapping[int, int]) -> None:
        """Begin with a replica that contains updates already; none of them is in the log."""
        self.versions = dict(versions)
        self._stable = dict(versions)
        for rank, sequence in versions.items():
            self.log.skip(rank, sequence)

    def skip_to(self, rank: int, sequence: int) -> None:
        """Leave out updates that nobody has any more, up to this one."""
        self.versions[rank] = self._stable[rank] = sequence
        self.log.skip(rank, sequence)

    @property
    def stable(self) -> dict[int, int]:
        """By rank: the sequence up to which every live worker has all updates.

        Whether an observer has one, nobody waits for, nor whether a standby has that lacks the
        snapshot.
        """
        reached = dict(self.versions)
        for member in self._members:
            if not member.observes or (member.stands_by and member.phase is Phase.LIVE):
                for rank, sequence in member.backlog.reached():
                    reached[rank] = min(reached[rank], sequence)
        return {rank: max(self._stable.get(rank, 0), at) for rank, at in reached.items()}

    @property
    def unstable(self) -> int:
        """How many accepted updates some live worker does not have yet."""
        stable = self.stable
        return sum(sequence - stable[rank] for rank, sequence in self.versions.items())

    def next_of(self, rank: int) -> int:
        """Return the sequence of the next update to accept of a rank."""
        return self.versions.get(rank, 0) + 1

    def keep_update(self, rank: int, sequence: int, message: ShapedMessage) -> None:
        """Accept an update that nobody is sent now; the next one of its origin."""
        self._note(rank, sequence)
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
        clock: int = 0,
    ) -> None:
        """Pass an update on.

        Parameters
        ----------
        rank, sequence : int
            Its name; the next one of its origin.
        message : ShapedMessage
            As it came. Shared by all destinations, not copied; freed when the last one has it.
        update : Update
            The same decoded, for those that get it in a sum.
        destinations : iterable of Member
            Everyone but its origin.
        clock : int
            What it says of its origin's steps, for those that get it in a sum.
        """
        self.keep_update(rank, sequence, message)
        charge = charge_of(message.total)
        for member in destinations:
            if self._queues(member, rank, sequence, charge, update, now, clock):
                member.link.relay_update(message)

    def accept_clipped(
        self,
        member: Member,
        encoded: EncodedUpdate,
        update: Update,
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
        encoded, correction : EncodedUpdate
            What the others get and what the origin gets, of the same sequence.
        update : Update
            What the others get, decoded.
        destinations : iterable of Member
            Everyone but the origin.
        """
        packed, rank, sequence = encoded.pack(), member.rank, encoded.sequence
        self._note(rank, sequence)
        self.log.skip(rank, sequence)
        for other in [*destinations, member]:
            payload = correction.pack() if other is member else packed
            charge = charge_of(len(payload))
            if self._queues(other, rank, sequence, charge, update, now, encoded.clock):
                other.link.send_update(rank, sequence, payload)

    def can_catch_up(self, versions: Mapping[int, int], *, without: int) -> bool:
        """Return whether `catch_up` can send what a version vector lacks, but for one rank."""
        if not self.log.reaches_back_to(versions, without=without):
            return False
        lacking = self.log.since(versions, without=without)
        return self.conflation.can_take(charge_of(message.total) for _, _, message in lacking)

    def can_queue(self, versions: Mapping[int, int], *, without: int) -> bool:
        """Return whether `catch_up` can send every single update that a version vector lacks."""
        if not self.log.reaches_back_to(versions, without=without):
            return False
        lacking = self.log.since(versions, without=without)
        return self.conflation.can_queue(charge_of(message.total) for _, _, message in lacking)

    def catch_up(self, member: Member, versions: Mapping[int, int], now: float) -> None:
        """Send who is back what a version vector lacks of others' updates.

        Parameters
        ----------
        versions : mapping
            What it has.
        """
        self._stable = self.stable
        for rank, sequence, message in self.log.since(versions, without=member.rank):
            charge = charge_of(message.total)
            if self.conflation.has_room(member.backlog, charge):
                self._queue(member, rank, sequence, charge, now)
                member.link.relay_update(message)
            else:
                encoded = EncodedUpdate.parse(message.payload)
                update = decode(encoded.body, self.conflation.elements)
                self._add(member, rank, sequence, update, now, encoded.clock)

    def on_delivered(self, member: Member, rank: int, sequence: int, now: float) -> float | None:
        """Note that a member has an update; return when it was accepted, unless it observes."""
        accepted_at = member.backlog.remove(rank, sequence)
        member.backlog.taken_at = now
        if member.backlog.gathering is not None:
            self.conflation.proceed(member)
        return None if member.observes else accepted_at

    def on_part_delivered(self, member: Member, now: float) -> int | None:
        """Note that a member has a part of a sum; return how many updates, if it has all of it."""
        member.backlog.taken_at = now
        updates = self.conflation.on_delivered(member)
        self.conflation.proceed(member)
        return updates

    def on_block_delivered(self, member: Member, now: float) -> None:
        """Note that a member has a block of its snapshot, perhaps the last one."""
        member.backlog.taken_at = now
        self.conflation.proceed(member)

    def remove(self, member: Member) -> None:
        """Wait no longer for a worker that is gone."""
        self._members.pop(member, None)
        self.conflation.forget(member)

    def _note(self, rank: int, sequence: int) -> None:
        """Note that an update is accepted."""
        assert sequence == self.next_of(rank)
        self.versions[rank] = sequence

    def _queues(
        self,
        member: Member,
        rank: int,
        sequence: int,
        charge: int,
        update: Update,
        now: float,
        clock: int,
    ) -> bool:
        """Return whether a member is to be sent an update; else it gets it in a sum.

        A correction is never part of one: no version would tell that it is there.
        """
        if rank == member.rank or self.conflation.has_room(member.backlog, charge):
            self._queue(member, rank, sequence, charge, now)
            return True
        if member.stands_by:
            # It keeps single updates for workers that come to it, and has no use for sums.
            member.backlog.hopeless = f"{member.backlog.nbytes} bytes are under way to the standby"
            return False
        self._add(member, rank, sequence, update, now, clock)
        return False

    def _queue(self, member: Member, rank: int, sequence: int, charge: int, now: float) -> None:
        self._members[member] = None
        member.backlog.append(rank, sequence, charge, now)

    def _add(
        self, member: Member, rank: int, sequence: int, update: Update, now: float, clock: int
    ) -> None:
        self._members[member] = None
        self.conflation.add_update(member, rank, sequence, update, now, clock=clock)
