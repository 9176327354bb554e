"""The relay: every update accepted from one worker goes to every other worker exactly once.

An update is named by (rank, sequence), and is accepted after all earlier ones of its rank; the
version vector says which were accepted. All are written down in the `log`, in the order in which
they are accepted, and each member has a cursor in it. After each pass over what has come in, every
member that can take more is sent what it lacks: one update as it came, or several as one sum.

What all have is stable: the smallest position that a member has acknowledged.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from gradwire_codecs import Update
from gradwire_protocol import ShapedMessage
from gradwire_protocol.limits import charge_of
from gradwire_protocol.messages.fields import raise_to
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.updates import WAITING_SUMS_BYTES_MAX, Conflated, EncodedUpdate
from gradwire_server.config import RELAY_LIMITS, RelayLimits
from gradwire_server.log.cursor import Cursor, Numbers
from gradwire_server.log.log import Log
from gradwire_server.log.segments import ENTRY_BYTES, Segment
from gradwire_server.state.roster import Member, Phase

QUIET_SECONDS: Final = 0.001
"""If so long ago the last update was passed on, the next one is at once: nothing comes together."""

UNSENT_BYTES_MAX: Final = 64_000
"""While more bytes wait to leave for a member, it is sent no further updates: they become one sum
meanwhile. As much as one system call sends."""


class Relay:
    """The accepted updates, and which member has which."""

    def __init__(
        self, elements: int, limits: RelayLimits = RELAY_LIMITS, *, has_rounds: bool = False
    ) -> None:
        self.log = Log(elements, limits.log_bytes_max)
        self.versions: dict[int, int] = {}
        """By rank: the sequence of the last accepted update."""
        self._limits = limits
        self._has_rounds = has_rounds
        self._numbers = Numbers()
        self._members: dict[Member, Cursor] = {}
        """Members that are sent updates."""
        self._behind: dict[Member, Cursor] = {}
        """Those that could not take all there was in the last pass."""
        self._sum_bytes: Callable[[], int] = lambda: self.sum_bytes
        self.is_due = False
        """Whether `serve` may have something to do."""
        self._served_at = -math.inf

    def share(self, runs: Callable[[], int], sum_bytes: Callable[[], int]) -> None:
        """Share the limits with other runs.

        Parameters
        ----------
        runs : callable
            Returns how many runs share the limit of the log; each has an equal part.
        sum_bytes : callable
            Returns the memory that the logs of all of them take beyond that.
        """
        self.log.runs = runs
        self._sum_bytes = sum_bytes

    def start_from(
        self, versions: Mapping[int, int], stable: Mapping[int, int] | None = None
    ) -> None:
        """Start from a replica that contains these updates; none of them is in the log.

        `stable` has those ranks of which fewer are stable.
        """
        self.versions = dict(versions)
        self.log.start_from(self._relayed(versions), {**versions, **(stable or {})})

    def skip_to(self, rank: int, sequence: int) -> None:
        """Skip lost updates of a rank, up to this one."""
        self.versions[rank] = sequence
        self.log.skip_to(rank, sequence)

    @property
    def stable(self) -> dict[int, int]:
        """By rank: the sequence up to which every live worker has all updates.

        Observers do not count, nor does a standby that has not received the snapshot.
        """
        return self.log.stable

    @property
    def unstable(self) -> int:
        """Number of accepted updates that are not stable."""
        stable = self.stable
        return sum(sequence - stable.get(rank, 0) for rank, sequence in self.versions.items())

    def next_sequence(self, rank: int) -> int:
        """Return the sequence of the next update of a rank."""
        return self.versions.get(rank, 0) + 1

    def accept(
        self,
        rank: int,
        encoded: EncodedUpdate,
        message: ShapedMessage,
        now: float,
        update: Update | None = None,
    ) -> None:
        """Accept the next update of a rank. Members are sent it in the next pass.

        Parameters
        ----------
        message : ShapedMessage
            The update as it came. All members share it; the last delivery frees it.
        update : Update, optional
            The decoded update, if it may soon be part of a sum.
        """
        assert encoded.sequence == self.next_sequence(rank)
        self.versions[rank] = encoded.sequence
        if encoded.closes:
            raise_to(self.versions, encoded.closes)
        self.log.append(rank, encoded, message, update, now)
        self.is_due = True

    # Members.

    def subscribe(self, member: Member, now: float) -> None:
        """Send a member all updates from now on; it has or is sent what they are applied to."""
        self._subscribe(member, now, self.log.head)

    def can_catch_up(
        self, versions: Mapping[int, int], *, without: int, kept_from: int = 1
    ) -> bool:
        """Return whether `catch_up` can send all updates that a version vector lacks.

        See `Log.lacking`.
        """
        return self.log.lacking(versions, without=without, kept_from=kept_from) is not None

    def catch_up(
        self, member: Member, versions: Mapping[int, int], now: float, *, kept_from: int = 1
    ) -> None:
        """Send a returning member the updates of other ranks that its version vector lacks.

        It can subtract its own from `kept_from` on.
        """
        found = self.log.lacking(versions, without=member.rank, kept_from=kept_from)
        assert found is not None
        position, lacking = found
        self.log.stable  # noqa: B018  # what it lacks stays stable, if it was
        cursor = self._subscribe(member, now, position)
        is_all = lacking == self.log.others_after(position, member.rank)
        if is_all and not self.log.has_earlier_after(position, member.rank, kept_from):
            return  # it is served like all
        if sum(charge_of(each.nbytes - ENTRY_BYTES) for each in lacking) > self._room:
            lacking = self.log.merged(lacking)
        reached = dict(versions)
        for segment in lacking:
            self._send(member, cursor, segment, dict(reached))
            reached.update(segment.after)  # the next one waits for this one
        cursor.sent = self.log.head

    def serve(self, now: float) -> None:
        """Send every member that can take more what it lacks."""
        self.is_due, self._served_at = False, now
        waiting = [each for each in self._members.items() if each[1].sent < self.log.head]
        # Who is furthest first: the sum for the next one is made of that one.
        for member, cursor in sorted(waiting, key=lambda each: -each[1].sent):
            self._serve(member, cursor, now)
            if cursor.sent < self.log.head or cursor.sends_sum:
                self._behind[member] = cursor
        self.log.end_pass()
        self.log.compact()

    def is_quiet(self, now: float) -> bool:
        """Return whether nothing was passed on for a moment."""
        return now >= self._served_at + QUIET_SECONDS

    def on_delivered(self, member: Member, stream: int, number: int, now: float) -> Segment | None:
        """Note that a message was delivered; return its segment if that was the last one of it."""
        cursor = self._members.get(member)
        if cursor is None:
            return None
        segment = cursor.on_delivered(stream, number, member.link, self._numbers, now)
        self._go_on(member, cursor)
        if self.log.nbytes > self.log.limit:
            self.is_due = True
        return segment

    def on_progress(self, member: Member, now: float) -> None:
        """Note that another message was delivered to a member."""
        cursor = self._members.get(member)
        if cursor is not None:
            cursor.progress_at = now
            self._go_on(member, cursor)

    def remove(self, member: Member) -> None:
        """Forget a member that has left: no update waits for it to be stable."""
        cursor = self._members.pop(member, None)
        self._behind.pop(member, None)
        if cursor is not None:
            self.log.unsubscribe(cursor)
            self.is_due |= self.log.nbytes > self.log.limit

    # What members lack.

    def lacks(self, member: Member) -> int:
        """Return how many updates a member lacks."""
        cursor = self._members.get(member)
        return 0 if cursor is None else self.log.count_after(cursor)

    def bytes_under_way(self, member: Member) -> int:
        """Return the charges of what is under way to a member."""
        cursor = self._members.get(member)
        return 0 if cursor is None else cursor.nbytes

    def waits_since(self, member: Member) -> float | None:
        """Return when the oldest update was accepted that a member lacks; None without any."""
        cursor = self._members.get(member)
        return None if cursor is None else self.log.oldest_after(cursor)

    @property
    def behind(self) -> list[Member]:
        """The members that could not take all there was."""
        return list(self._behind)

    @property
    def sum_bytes(self) -> int:
        """Memory of the log beyond its limit, for members that are behind."""
        return max(self.log.nbytes - self.log.limit, 0)

    def stalls_at(self, slow_seconds: float) -> float | None:
        """Return when a member that is behind, and takes nothing, has to be expelled."""
        if not self._behind:
            return None
        return min(cursor.progress_at for cursor in self._behind.values()) + slow_seconds

    def too_slow(self, slow_seconds: float, now: float) -> list[tuple[Member, str]]:
        """Return the members to expel, each with the reason."""
        reasons = []
        for member, cursor in self._behind.items():
            silent = now - cursor.progress_at
            if cursor.drop_reason is not None:
                reasons.append((member, cursor.drop_reason))
            elif silent >= slow_seconds:
                reason = (
                    f"updates were added up for this worker, of which it has taken nothing for "
                    f"{silent:.0f} s; the limit is {slow_seconds:g} s"
                )
                reasons.append((member, reason))
        return reasons

    def drop_slowest(self) -> tuple[Member, str] | None:
        """Return whom to expel because the log takes more memory than it may; None if it fits."""
        limit = self._limits.conflation_bytes_max
        if self._sum_bytes() > limit:
            self.log.compact(at_once=True)
        taken = self._sum_bytes()
        if taken <= limit or not self.sum_bytes or not self._members:
            return None
        slowest = min(self._members, key=lambda each: self._members[each].acknowledged)
        return slowest, (
            f"this worker lacks {self.lacks(slowest)} updates, and there is no room to keep them, "
            f"though added up: of the {limit} bytes for all slow workers {taken} are in use"
        )

    # Private.

    @property
    def _room(self) -> int:
        return min(self._limits.backlog_bytes_max, WAITING_SUMS_BYTES_MAX)

    def _relayed(self, versions: Mapping[int, int]) -> dict[int, int]:
        return {r: s for r, s in versions.items() if r >= WORKERS_MAX or not self._has_rounds}

    def _subscribe(self, member: Member, now: float, position: int) -> Cursor:
        def counts() -> bool:
            return not member.observes or (member.stands_by and member.phase is Phase.LIVE)

        cursor = self.log.subscribe(member.rank, now, position, counts=counts)
        self._members[member] = cursor
        self.is_due = True
        return cursor

    def _serve(self, member: Member, cursor: Cursor, now: float) -> None:
        """Send a member what it lacks, as far as it can take it."""
        if cursor.is_idle:
            cursor.progress_at = now
        while cursor.sent < self.log.head and self._can_take(member, cursor):
            singly_bytes: float = 0
            if member.stands_by:
                singly_bytes = math.inf  # it has to be able to serve workers
            elif self._has_rounds:
                singly_bytes = self._room - cursor.nbytes  # workers look ahead from each
            segment = self.log.next_of(cursor, singly_bytes=singly_bytes)
            if segment is None:
                return
            if member.stands_by and segment.message is None:
                cursor.drop_reason = f"{cursor.nbytes} bytes are under way to the standby"
                return
            self._send(member, cursor, segment)

    def _can_take(self, member: Member, cursor: Cursor) -> bool:
        if cursor.drop_reason is not None or cursor.sends_sum:
            return False
        if member.stands_by:
            return cursor.nbytes < self._room
        if member.feed is not None and member.phase is Phase.SYNCING:
            return False  # a slow link should carry one of the two at a time
        connection = member.link.connection
        if connection.bytes_queued - connection.bytes_in_flight > UNSENT_BYTES_MAX:
            return cursor.is_idle
        return cursor.nbytes < self._room

    def _send(
        self,
        member: Member,
        cursor: Cursor,
        segment: Segment,
        before: Mapping[int, int] | None = None,
    ) -> None:
        """Send a segment; `before` has what its receiver has, where that is no place in the log."""
        if segment.message is not None:
            cursor.send_update(segment, member.link)
        else:
            parts = self._parts(segment, before)
            is_shared = before is None
            cursor.send_sum(segment, parts, member.link, self._numbers, is_shared=is_shared)

    def _parts(self, segment: Segment, before: Mapping[int, int] | None) -> Iterator[Conflated]:
        """Yield the parts of a sum; nothing is done for it before the first is asked for."""
        if before is None:
            before = self.log.versions_before(segment)
        yield from segment.parts({**before, **segment.before})

    def _go_on(self, member: Member, cursor: Cursor) -> None:
        """See to it that a member is sent more, now that it has taken something."""
        if member in self._behind:
            if cursor.sent < self.log.head:
                self.is_due = True
            elif not cursor.sends_sum:
                del self._behind[member]
