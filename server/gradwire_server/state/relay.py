"""The relay: every update accepted from one worker goes to every other worker exactly once.

An update is named by (rank, sequence), and is accepted after all earlier ones of its rank. All are
written down in the `log`, in the order in which they are accepted, and each member has a cursor in
it. After each pass over what has come in, every member that can take more is sent what it lacks:
one update as it came, or several as one sum.

What all have is stable: the smallest position that a member has acknowledged.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gradwire_codecs import Update
from gradwire_protocol import Connection
from gradwire_protocol.messages.admission import Place
from gradwire_protocol.messages.fields import raise_to
from gradwire_protocol.messages.kinds import WORKERS_MAX, EndCode
from gradwire_protocol.messages.updates import WAITING_SUMS_BYTES_MAX, EncodedUpdate, Stable
from gradwire_server.config import RELAY_LIMITS, RelayLimits
from gradwire_server.log.cursor import Cursor, Numbers
from gradwire_server.log.log import Log
from gradwire_server.log.segments import Segment
from gradwire_server.state.feeds import Feeds, LogFeed
from gradwire_server.state.roster import Member, Phase

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
        self.feeds = Feeds(self.log, self._numbers, has_rounds=has_rounds)
        """Relays that send it to members."""
        self._behind: dict[Member, Cursor] = {}
        """Those that could not take all there was in the last pass."""
        self._sum_bytes: Callable[[], int] = lambda: self.sum_bytes
        self._is_due = False

    @property
    def is_due(self) -> bool:
        """Whether `serve` may have something to do."""
        return self._is_due or self.feeds.is_due

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
        self,
        place: Place,
        versions: Mapping[int, int],
        segments: Sequence[Segment] = (),
        stable: Stable | None = None,
    ) -> None:
        """Start from a replica that contains these updates; see `Log.start_from`."""
        self.versions = dict(versions)
        # Contributions to rounds are not in the log; which of them are in results is stable with
        # these.
        stable = stable or Stable(place.position, versions)
        self.log.start_from(place, self._relayed(versions), segments, stable)

    def skip_to(self, rank: int, sequence: int) -> None:
        """Skip lost updates of a rank, up to this one."""
        self.versions[rank] = sequence
        self.log.skip_to(rank, sequence)

    @property
    def stable(self) -> Stable:
        """Up to where every live worker has all updates.

        Observers do not count, nor does a standby that has not received the snapshot.
        """
        return self.log.stable

    @property
    def unstable(self) -> int:
        """Number of accepted updates that are not stable."""
        stable = self.stable.versions
        return sum(sequence - stable.get(rank, 0) for rank, sequence in self.versions.items())

    def next_sequence(self, rank: int) -> int:
        """Return the sequence of the next update of a rank."""
        return self.versions.get(rank, 0) + 1

    def accept(
        self, rank: int, encoded: EncodedUpdate, now: float, update: Update | None = None
    ) -> None:
        """Accept the next update of a rank. Members are sent it in the next pass.

        Parameters
        ----------
        update : Update, optional
            The decoded update, if it may soon be part of a sum.
        """
        assert encoded.sequence == self.next_sequence(rank)
        self._note(self.log.accept(rank, encoded, update, now))

    def follow(self, segment: Segment) -> None:
        """Take over what another master has accepted."""
        self.log.append(segment)
        self._note(segment)

    # Members.

    def subscribe(
        self, member: Member, now: float, position: int | None = None, *, pauses: bool = False
    ) -> None:
        """Send a member the log after a position: that which it has, or what it is sent has.

        See `Log.subscribe`; by default it is the head.
        """

        def counts() -> bool:
            return not member.observes or (member.stands_by and member.phase is Phase.LIVE)

        cursor = self.log.subscribe(member.rank, now, position, counts=counts, pauses=pauses)
        self._members[member] = cursor
        self.feeds.enter(member, cursor, now)
        self._is_due = True

    def serve(self, now: float) -> None:
        """Send every member that can take more what it lacks."""
        self._is_due = self.feeds.is_due = False
        waiting = [
            (member, cursor)
            for member, cursor in self._members.items()
            if cursor.sent < self.log.head and not self.feeds.feeds(member)
        ]
        # Who is furthest first: the sum for the next one is made of that one.
        for member, cursor in sorted(waiting, key=lambda each: -each[1].sent):
            self._serve(member, cursor, now)
            if cursor.sent < self.log.head or cursor.is_sending:
                self._behind[member] = cursor
        for feed in self.feeds:
            self._serve_relay(feed, now)
        self.feeds.hand_over()
        for member in [each for each in self._behind if self.feeds.feeds(each)]:
            del self._behind[member]
        self.log.end_pass()
        self.log.compact()

    def on_delivered(self, member: Member, number: int, now: float) -> Segment | None:
        """Note that a message was delivered; return its segment if that was the last one of it."""
        cursor = self._members.get(member)
        if cursor is None:
            return None
        segment = cursor.on_delivered(number, member.link, self._numbers, now)
        self.feeds.on_delivered(member)
        self._go_on(member, cursor)
        if self.log.nbytes > self.log.limit:
            self._is_due = True
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
        self.feeds.forget(member)
        if cursor is not None:
            self.log.unsubscribe(cursor)
            self._is_due |= self.log.nbytes > self.log.limit

    # What members lack.

    def lacks(self, member: Member) -> int:
        """Return how many updates a member lacks."""
        cursor = self._members.get(member)
        if cursor is None:
            return 0
        return self.log.count_after(self.feeds.acknowledged(member, cursor), member.rank)

    def bytes_under_way(self, member: Member) -> int:
        """Return the charges of what is under way to a member."""
        cursor = self._members.get(member)
        return 0 if cursor is None else cursor.nbytes

    def waits_since(self, member: Member) -> float | None:
        """Return when the oldest update was accepted that a member lacks; None without any."""
        cursor = self._members.get(member)
        if cursor is None:
            return None
        return self.log.oldest_after(self.feeds.acknowledged(member, cursor), member.rank)

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
        behind = [*self._behind.values(), *(each.cursor for each in self._relays_behind)]
        return min((each.progress_at + slow_seconds for each in behind), default=None)

    def too_slow(self, slow_seconds: float, now: float) -> list[tuple[Member, str]]:
        """Return the members to expel, each with the reason; give up relays that are as slow."""
        reasons = []
        for member, cursor in self._behind.items():
            silent = now - cursor.progress_at
            if silent >= slow_seconds:
                reasons.append((member, _why_too_slow("worker", silent, slow_seconds)))
        for feed in self._relays_behind:
            silent = now - feed.cursor.progress_at
            if silent >= slow_seconds:
                reason = _why_too_slow("relay", silent, slow_seconds)
                feed.trunk.give_up(EndCode.TOO_SLOW, reason, now)
        return reasons

    def drop_slowest(self, now: float) -> tuple[Member, str] | None:
        """Return whom to expel because the log takes more memory than it may; None if it fits."""
        limit = self._limits.conflation_bytes_max
        if self._sum_bytes() > limit:
            self.log.compact(at_once=True)
        taken = self._sum_bytes()
        if taken <= limit or not self.sum_bytes:
            return None
        # One that a relay feeds does not hold up the log here; its relay does.
        held = {each: c for each, c in self._members.items() if not self.feeds.feeds(each)}
        slowest = min(held, key=lambda each: held[each].acknowledged, default=None)
        relay = min(self.feeds, key=lambda each: each.acknowledged, default=None)
        why = "and there is no room to keep them, though added up: of the "
        why += f"{limit} bytes for all slow workers {taken} are in use"
        if relay is not None and (
            slowest is None or relay.acknowledged < held[slowest].acknowledged
        ):
            relay.trunk.give_up(EndCode.TOO_SLOW, f"this relay lacks updates, {why}", now)
            return None
        return (
            None
            if slowest is None
            else (slowest, f"this worker lacks {self.lacks(slowest)} updates, {why}")
        )

    # Private.

    @property
    def _room(self) -> int:
        return min(self._limits.backlog_bytes_max, WAITING_SUMS_BYTES_MAX)

    def _relayed(self, versions: Mapping[int, int]) -> dict[int, int]:
        return {r: s for r, s in versions.items() if r >= WORKERS_MAX or not self._has_rounds}

    def _note(self, segment: Segment) -> None:
        self.versions.update(segment.after)
        raise_to(self.versions, segment.closes)
        self._is_due = True

    def _serve(self, member: Member, cursor: Cursor, now: float) -> None:
        """Send a member what it lacks, as far as it can take it."""
        if cursor.is_idle:
            cursor.progress_at = now
        while cursor.sent < self.log.head and self._can_take(member, cursor):
            segment = self._next_of(cursor)
            if segment is None:
                return
            cursor.send(segment, member.link, self._numbers)

    def _serve_relay(self, feed: LogFeed, now: float) -> None:
        """Send a relay what it lacks, as far as it can take it."""
        cursor, connection = feed.cursor, feed.link.connection
        if cursor.is_idle:
            cursor.progress_at = now
        while (
            feed.is_taken
            and cursor.sent < self.log.head
            and not cursor.is_sending
            and has_room(cursor, connection, self._room)
        ):
            segment = self._next_of(cursor)
            if segment is None:
                return
            cursor.send(segment, feed.link, self._numbers)

    @property
    def _relays_behind(self) -> list[LogFeed]:
        """The relays that could not take all there was."""
        return [each for each in self.feeds if each.cursor.sent < self.log.head]

    def _next_of(self, cursor: Cursor) -> Segment | None:
        """Return what is sent next after a cursor."""
        # In rounds, workers look ahead from each result.
        return self.log.next_of(
            cursor, singly_bytes=self._room - cursor.nbytes if self._has_rounds else 0
        )

    def _can_take(self, member: Member, cursor: Cursor) -> bool:
        if cursor.is_sending:
            return False
        if member.feed is not None and member.phase is Phase.SYNCING:
            return False  # a slow link should carry one of the two at a time
        return has_room(cursor, member.link.connection, self._room)

    def _go_on(self, member: Member, cursor: Cursor) -> None:
        """See to it that a member is sent more, now that it has taken something."""
        if member in self._behind:
            if cursor.sent < self.log.head:
                self._is_due = True
            elif not cursor.is_sending:
                del self._behind[member]


def has_room(cursor: Cursor, connection: Connection, room: int) -> bool:
    """Return whether one can be sent more of the log: little waits to leave, or is under way."""
    if connection.bytes_queued - connection.bytes_in_flight > UNSENT_BYTES_MAX:
        return cursor.is_idle
    return cursor.nbytes < room


def _why_too_slow(who: str, silent: float, slow_seconds: float) -> str:
    return (
        f"updates were added up for this {who}, of which it has taken nothing for {silent:.0f} s; "
        f"the limit is {slow_seconds:g} s"
    )
