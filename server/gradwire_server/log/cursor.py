"""`Cursor`: how far a member has the log, and what is under way to it."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gradwire_protocol import ShapedMessage
from gradwire_protocol.limits import charge_of
from gradwire_protocol.messages.kinds import LOG_STREAM, Kind
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.updates import Entries
from gradwire_server.log.segments import Segment

PARTS_UNDER_WAY_MAX: Final = 16
"""Parts of a sum under way at once, 4 MiB at most: with a round trip of 100 ms, 40 MB a second."""


class Numbers:
    """Numbers the messages of a log, over all members: so these can share them."""

    def __init__(self) -> None:
        self._next = 0

    def skip_to(self, number: int) -> None:
        """Use no number below this one any more: a member was sent messages from elsewhere."""
        self._next = max(self._next, number)

    @property
    def next(self) -> int:
        """The next one."""
        return self._next

    def shaped(self, entries: Entries, link: Link) -> ShapedMessage:
        """Return entries as a message, cut for the path of one member."""
        number = self._next
        self._next += 1
        size = link.connection.sender.fragment_bytes
        return ShapedMessage.of(LOG_STREAM, number, Kind.ENTRIES, entries.pack(), size)


@dataclass(slots=True)
class _UnderWay:
    """A segment that was sent."""

    start: int
    """Up to here the member was sent everything before."""
    told: int
    """Where the message before it ended."""
    segment: Segment
    charge: int = 0
    """Of its messages."""
    left: int = 0
    """How many of its messages were not delivered yet."""
    next_part: int = 0
    """The first part that was not sent yet."""

    @property
    def is_sent(self) -> bool:
        """Whether all parts were sent."""
        return self.next_part == self.segment.parts


class Cursor:
    """How far a member has the log.

    Parameters
    ----------
    rank : int
        Whose updates are not sent to it by themselves.
    position : int
        Up to where it has everything.
    now : float
        Time in seconds.
    pause : int
        A position that it has to reach exactly.
    told : int, optional
        Where the last message to it ended, if it was sent the log before.
    """

    def __init__(
        self, rank: int, position: int, now: float, pause: int = 0, told: int | None = None
    ) -> None:
        self.rank = rank
        self.sent = position
        """Up to here it lacks nothing that was not sent."""
        self.pause = pause
        self._told = position if told is None else told
        """Where the last message ended: after that, there are only updates of its own."""
        self.nbytes = 0
        """Charges of what was sent and is not acknowledged with all before it."""
        self.progress_at = now
        """When a message was delivered last, or nothing was lacking."""
        self._under_way: dict[int, _UnderWay] = {}
        """By the position at which a segment ends; in order."""
        self._messages: dict[int, int] = {}
        """By number: the position at which its segment ends."""
        self._parts_under_way = 0
        """Messages that were not delivered yet."""
        self._feeds: deque[_UnderWay] = deque()
        """Segments of which not all parts were sent, in the order in which they go."""
        self._last_number = -1
        """Of the messages that were sent."""

    @property
    def acknowledged(self) -> int:
        """Up to here it has everything."""
        for each in self._under_way.values():
            return each.start
        return self.sent

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._under_way

    @property
    def is_sending(self) -> bool:
        """Whether parts of a segment were not sent yet: nothing may follow before."""
        return bool(self._feeds)

    def skip_to(self, number: int) -> None:
        """Send no message with a number below this one, also none that others were sent."""
        self._last_number = max(self._last_number, number - 1)

    def is_under_way(self, number: int) -> bool:
        """Return whether a message was sent, and is not delivered."""
        return number in self._messages

    @property
    def told(self) -> int:
        """Where the last message ended that was sent."""
        return self._told

    @property
    def positions(self) -> Iterator[int]:
        """Iterate over the positions at which segments have to end."""
        for stop, each in self._under_way.items():
            yield each.start  # a member is here when it has what was sent before
            yield stop
        yield self.sent
        if self.acknowledged < self.pause:
            yield self.pause

    def send(self, segment: Segment, link: Link, numbers: Numbers) -> None:
        """Send a segment, in one message or, after those that are being sent, in several."""
        each = _UnderWay(self.sent, self._told, segment)
        self._under_way[segment.stop] = each
        self.sent = self._told = segment.stop
        if segment.parts == 1 and not self._feeds:
            self._send(each, link, numbers)
            return
        self._feeds.append(each)
        while self._feeds and self._parts_under_way < PARTS_UNDER_WAY_MAX:
            self._send_part(link, numbers)

    def on_delivered(self, number: int, link: Link, numbers: Numbers, now: float) -> Segment | None:
        """Note that a message was delivered; return its segment if that was the last one of it."""
        stop = self._messages.pop(number, None)
        each = None if stop is None else self._under_way.get(stop)
        if each is None:
            return None
        self.progress_at = now
        each.left -= 1
        self._parts_under_way -= 1
        self._send_part(link, numbers)
        if each.left or not each.is_sent:
            return None
        while self._under_way:
            stop, first = next(iter(self._under_way.items()))
            if first.left or not first.is_sent:
                break
            self.nbytes -= first.charge
            del self._under_way[stop]
        return each.segment

    # Private.

    def _send(self, each: _UnderWay, link: Link, numbers: Numbers) -> None:
        """Send the next part of a segment."""
        message = self._message(each, link, numbers)
        each.next_part += 1
        charge = charge_of(message.total)
        each.charge += charge
        each.left += 1
        self._parts_under_way += 1
        self.nbytes += charge
        self._messages[message.number] = each.segment.stop
        self._last_number = message.number
        link.send_entries(message)

    def _message(self, each: _UnderWay, link: Link, numbers: Numbers) -> ShapedMessage:
        """Return the next part of a segment, that which others were sent if it may be."""
        segment, part = each.segment, each.next_part
        # The last one says after what it comes.
        is_shared = part < segment.parts - 1 or each.told == segment.start
        message = segment.shared.get(part) if is_shared else None
        # A member's numbers have to rise, and others may have been sent this before.
        if message is None or message.number <= self._last_number:
            message = numbers.shaped(segment.message(part, each.told), link)
            if is_shared:
                segment.shared[part] = message
        return message

    def _send_part(self, link: Link, numbers: Numbers) -> None:
        """Send the next part of the first segment that has one."""
        if self._feeds:
            self._send(self._feeds[0], link, numbers)
            if self._feeds[0].is_sent:
                self._feeds.popleft()
