"""`Cursor`: how far a member has the log, and what is under way to it."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gradwire_protocol import ShapedMessage
from gradwire_protocol.limits import charge_of
from gradwire_protocol.messages.kinds import CONFLATED_STREAM, Kind
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.updates import Conflated
from gradwire_server.log.segments import Segment

PARTS_UNDER_WAY_MAX: Final = 16
"""Parts of a sum under way at once, 4 MiB at most: with a round trip of 100 ms, 40 MB a second."""


class Numbers:
    """Numbers the messages of sums, over all members: so these can share them."""

    def __init__(self) -> None:
        self._next = 0

    def shaped(self, part: Conflated, link: Link) -> ShapedMessage:
        """Return a part as a message, cut for the path of one member."""
        number = self._next
        self._next += 1
        size = link.connection.sender.fragment_bytes
        return ShapedMessage.of(CONFLATED_STREAM, number, Kind.CONFLATED, part.pack(), size)


@dataclass(slots=True)
class _UnderWay:
    """A segment that was sent."""

    start: int
    """Up to here the member was sent everything before."""
    segment: Segment
    charge: int = 0
    """Of its messages."""
    left: int = 0
    """How many of its messages were not delivered yet."""
    parts: Iterator[Conflated] | None = None
    """Those parts of a sum that were not sent yet."""


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
    """

    def __init__(self, rank: int, position: int, now: float) -> None:
        self.rank = rank
        self.sent = position
        """Up to here it was sent everything."""
        self.nbytes = 0
        """Charges of what was sent and is not acknowledged with all before it."""
        self.progress_at = now
        """When a message was delivered last, or nothing was lacking."""
        self.drop_reason: str | None = None
        """Why the member has to be expelled; None while it keeps up."""
        self._under_way: dict[int, _UnderWay] = {}
        """By the position at which a segment ends; in order."""
        self._messages: dict[tuple[int, int], int] = {}
        """By stream and number: the position at which its segment ends."""
        self._parts_under_way = 0
        """Messages of sums that were not delivered yet."""
        self._feeds: deque[_UnderWay] = deque()
        """Sums of which not all parts were sent, in the order in which they go."""
        self._last_number = -1
        """Of the sums' messages that were sent."""

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
    def sends_sum(self) -> bool:
        """Whether parts of a sum were not sent yet: nothing may follow before."""
        return bool(self._feeds)

    @property
    def positions(self) -> Iterator[int]:
        """Iterate over the positions at which segments have to end."""
        yield self.acknowledged
        yield from self._under_way
        yield self.sent

    def send_update(self, segment: Segment, link: Link) -> None:
        """Send an update as it came."""
        message = segment.message
        assert message is not None
        self._add(segment, message)
        link.relay_update(message)

    def send_sum(
        self,
        segment: Segment,
        parts: Iterator[Conflated],
        link: Link,
        numbers: Numbers,
        *,
        is_shared: bool,
    ) -> None:
        """Begin to send a sum, after those that are being sent.

        Parameters
        ----------
        parts : iterator
            Its messages.
        is_shared : bool
            Whether its only message, where there is but one, is the same for all members.
        """
        if is_shared and segment.is_whole and not self._feeds:
            message = segment.shared
            # A member's numbers have to rise, and others may have been sent this sum before.
            if message is None or message.number <= self._last_number:
                message = segment.shared = numbers.shaped(next(parts), link)
            self._add(segment, message)
            self._relay(message, link)
            return
        each = self._under_way[segment.stop] = _UnderWay(self.sent, segment, parts=parts)
        self.sent = segment.stop
        self._feeds.append(each)
        while self._feeds and self._parts_under_way < PARTS_UNDER_WAY_MAX:
            self._send_part(link, numbers)

    def on_delivered(
        self, stream: int, number: int, link: Link, numbers: Numbers, now: float
    ) -> Segment | None:
        """Note that a message was delivered; return its segment if that was the last one of it."""
        stop = self._messages.pop((stream, number), None)
        each = None if stop is None else self._under_way.get(stop)
        if each is None:
            return None
        self.progress_at = now
        each.left -= 1
        self._parts_under_way -= stream == CONFLATED_STREAM
        self._send_part(link, numbers)
        if each.left or each.parts is not None:
            return None
        while self._under_way:
            stop, first = next(iter(self._under_way.items()))
            if first.left or first.parts is not None:
                break
            self.nbytes -= first.charge
            del self._under_way[stop]
        return each.segment

    # Private.

    def _add(self, segment: Segment, message: ShapedMessage) -> None:
        """Note that a segment is sent with one message."""
        each = self._under_way[segment.stop] = _UnderWay(self.sent, segment)
        self.sent = segment.stop
        self._count(each, message)

    def _count(self, each: _UnderWay, message: ShapedMessage) -> None:
        charge = charge_of(message.total)
        each.charge += charge
        each.left += 1
        self._parts_under_way += message.stream == CONFLATED_STREAM
        self.nbytes += charge
        self._messages[message.stream, message.number] = each.segment.stop

    def _relay(self, message: ShapedMessage, link: Link) -> None:
        self._last_number = message.number
        link.relay_sum(message)

    def _send_part(self, link: Link, numbers: Numbers) -> None:
        """Send the next part of the first sum that has one."""
        while self._feeds:
            each = self._feeds[0]
            assert each.parts is not None
            part = next(each.parts, None)
            if part is not None:
                message = numbers.shaped(part, link)
                self._count(each, message)
                self._relay(message, link)
                return
            each.parts = None
            self._feeds.popleft()
