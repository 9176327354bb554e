"""`FanOut`: the log as a relay's parent sends it, and the children that it is sent on to.

It has the positions of the master, so a child that has lost its relay can go on anywhere. Nothing
is kept that cannot be had again: what all children have is dropped where memory is short, and a
child that is too slow for it is sent away, to come back.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.link import EntriesReceived, Link
from gradwire_protocol.messages.relays import Fed, Feed, Have
from gradwire_protocol.messages.updates import WAITING_SUMS_BYTES_MAX, EntriesAssembly
from gradwire_server.config import RelayLimits
from gradwire_server.log.cursor import Cursor, Numbers
from gradwire_server.log.log import Log
from gradwire_server.log.received import next_received
from gradwire_server.relaying.child import Child
from gradwire_server.state.relay import has_room

NO_RANK: Final = -1

HAVE_SECONDS: Final = 0.05
"""Least time between two times that a relay says what its workers have: one message is for many
updates, and workers hear what is stable at longer intervals."""


class FanOut:
    """One feed, and who is sent it.

    Parameters
    ----------
    feed : Feed
        What the parent has said of it.
    first : int
        Messages with a lower number are of a feed before this one.
    numbers : Numbers
        For messages to children; they rise from one feed to the next.
    limits : RelayLimits
    """

    def __init__(self, feed: Feed, first: int, numbers: Numbers, limits: RelayLimits) -> None:
        self.number = feed.number
        self.first = first
        self.log = Log(feed.elements, limits.log_bytes_max)
        self.log.start_from(feed.place, feed.versions)
        self.index = 0
        """The last FED that was acted on."""
        self.is_due = False
        """Whether there may be something to send."""
        self._said: Have | None = None
        self._said_at = 0.0
        self._has_news = True
        self._has_rounds = feed.has_rounds
        self._limits = limits
        self._numbers = numbers
        self._assembly = EntriesAssembly(feed.elements)
        self._queue: deque[tuple[Child | None, Fed]] = deque()
        """Children that are to be fed from a position which is not here yet."""
        self._cursors: dict[Child, tuple[Cursor, Link]] = {}

    def __len__(self) -> int:
        """Return how many children it is sent on to."""
        return len(self._cursors)

    @property
    def have(self) -> int:
        """Up to where all children have the log that are sent it from here."""
        return min(
            (cursor.acknowledged for cursor, _ in self._cursors.values()), default=self.log.head
        )

    def receive(self, received: EntriesReceived, now: float) -> int | None:
        """Take entries; return the number of the last message that was used, if one was.

        Raises `InvalidMessageError` if they do not fit.
        """
        if received.number < self.first:
            return None
        self._assembly.add(received.entries, received.number)
        last = None
        while (following := next_received(self.log, self._assembly, now)) is not None:
            segment, last = following
            self.log.append(segment)
            self.is_due = True
        return last

    def add(self, child: Child | None, fed: Fed) -> None:
        """Let a child be fed, when the log is here up to where it has it."""
        if fed.index != self.index + len(self._queue) + 1:
            raise InvalidMessageError(f"Fed {fed.index} after {self.index + len(self._queue)}")
        self._queue.append((child, fed))
        self.is_due = True

    def remove(self, child: Child) -> None:
        """Forget a child that is gone."""
        cursor = self._cursors.pop(child, None)
        if cursor is not None:
            self.log.unsubscribe(cursor[0])
            self.is_due = True

    def take_queued(self, now: float) -> list[Child]:
        """Begin to feed those of which the position is here; return those that cannot be fed."""
        unfed = []
        while self._queue and self._queue[0][1].position <= self.log.head:
            child, fed = self._queue.popleft()
            self.index = fed.index
            if child is None or child.is_over:
                continue
            if not self.log.divides_at(fed.position):
                unfed.append(child)
                continue
            self._numbers.skip_to(fed.number)
            rank = NO_RANK if fed.rank is None else fed.rank
            cursor = self.log.subscribe(rank, now, fed.position, told=fed.told)
            cursor.skip_to(fed.number)
            self._cursors[child] = cursor, Link(child.connection)
        return unfed

    def serve(self, now: float) -> None:
        """Send every child that can take more what it lacks."""
        self.is_due = False
        waiting = [each for each in self._cursors.values() if each[0].sent < self.log.head]
        for cursor, link in sorted(waiting, key=lambda each: -each[0].sent):
            if cursor.is_idle:
                cursor.progress_at = now
            room = min(self._limits.backlog_bytes_max, WAITING_SUMS_BYTES_MAX)
            while (
                cursor.sent < self.log.head
                and not cursor.is_sending
                and has_room(cursor, link.connection, room)
            ):
                singly_bytes = room - cursor.nbytes if self._has_rounds else 0
                segment = self.log.next_of(cursor, singly_bytes=singly_bytes)
                if segment is None:
                    break
                cursor.send(segment, link, self._numbers)
        self.log.end_pass()
        self.log.compact()

    def on_delivered(self, child: Child, number: int | None, now: float) -> bool:
        """Note that a child has taken a message; return whether it was sent from here.

        `number` is that in the stream of the log; None for any other message.
        """
        if child not in self._cursors:
            return False
        cursor, link = self._cursors[child]
        is_ours = number is not None and cursor.is_under_way(number)
        if is_ours:
            assert number is not None
            cursor.on_delivered(number, link, self._numbers, now)
        else:
            cursor.progress_at = now
        self.is_due |= is_ours or cursor.sent < self.log.head
        return is_ours

    def news(self, now: float) -> Have | None:
        """Return what to tell the parent of all children: at intervals, or if one is fed."""
        have = Have(self.number, self.have, self.index, self.first)
        said, self._has_news = self._said, have != self._said
        is_due = said is None or said.index != self.index or now >= self._said_at + HAVE_SECONDS
        if not self._has_news or not is_due:
            return None
        self._said, self._said_at, self._has_news = have, now, False
        return have

    def deadlines(self, slow_seconds: float) -> Iterator[float]:
        """Iterate over when there is news, and when one is too slow that takes nothing."""
        if self._has_news and self._said is not None:
            yield self._said_at + HAVE_SECONDS
        for cursor, _ in self._cursors.values():
            if not cursor.is_idle or cursor.sent < self.log.head:
                yield cursor.progress_at + slow_seconds

    def too_slow(self, slow_seconds: float, now: float) -> list[tuple[Child, str]]:
        """Return the children to send away, each with the reason."""
        found = []
        for child, (cursor, _) in self._cursors.items():
            silent = now - cursor.progress_at
            if silent >= slow_seconds and (not cursor.is_idle or cursor.sent < self.log.head):
                found.append((child, f"nothing of the log was taken for {silent:.0f} s"))
        if not found and self._is_too_large():
            self.log.compact(at_once=True)
            if self._is_too_large() and self._cursors:
                slowest = min(self._cursors, key=lambda each: self._cursors[each][0].acknowledged)
                limit = self._limits.conflation_bytes_max
                found.append((slowest, f"the log takes {limit} bytes more than it may for this"))
        return found

    def _is_too_large(self) -> bool:
        return self.log.nbytes - self.log.limit > self._limits.conflation_bytes_max
