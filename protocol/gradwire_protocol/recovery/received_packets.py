"""`ReceivedPackets`: the packet numbers received, and when to acknowledge them.

One structure detects duplicates and replays and yields the ranges of an ACK. When an ACK was itself
acknowledged, later ACKs omit its numbers. They stay known here, so that a late duplicate is still
detected.
"""

from gradwire_protocol.limits import (
    ACK_DELAY_SECONDS_MAX,
    ACK_EVERY,
    ACK_RANGES_MAX,
    RECEIVED_RANGES_MAX,
)
from gradwire_protocol.wire.frames import Ack
from gradwire_protocol.wire.ranges import RangeSet


class ReceivedPackets:
    """Packet numbers received on one connection."""

    __slots__ = (
        "_eliciting",
        "_floor",
        "_known_below",
        "_largest_at",
        "_marked",
        "_numbers",
        "deadline",
    )

    def __init__(self) -> None:
        self._numbers = RangeSet()
        self._floor = 0
        self._known_below = 0
        self._largest_at = 0.0
        self._marked = 0
        self._eliciting = 0
        self.deadline: float | None = None
        """Latest time to send an ACK; None while none is owed."""

    @property
    def largest(self) -> int:
        """The highest packet number received; -1 before the first."""
        return self._numbers.last_stop - 1

    def is_new(self, first: int, stop: int) -> bool:
        """Return whether all these numbers are new; numbers too old to tell are not."""
        return first >= self._floor and self._numbers.isdisjoint(first, stop)

    def can_record_run(self, first: int, stop: int) -> bool:
        """Return whether recording these numbers together has the same result as one by one.

        If so, all of them are new. The results can differ when the oldest range is about to be
        forgotten: numbers behind the newest fill a gap, and the first of them alone may add a
        range.
        """
        if first > self.largest:
            return True
        return len(self._numbers) < RECEIVED_RANGES_MAX and self.is_new(first, stop)

    def record_packets(
        self,
        first: int,
        stop: int,
        *,
        eliciting: bool,
        completing: bool = False,
        marked: bool = False,
        now: float,
    ) -> None:
        """Record authentic packets with consecutive numbers, after `is_new` has returned true.

        Parameters
        ----------
        eliciting : bool
            Whether they ask for an acknowledgement.
        completing : bool
            Whether one completed a message, so that its sender waits only for the acknowledgement.
        marked : bool
            Whether they carry the mark of a router with a queue.
        """
        in_order = first == self.largest + 1
        if stop > self.largest + 1:
            self._largest_at = now
        self._numbers.add_range(first, stop)
        if len(self._numbers) > RECEIVED_RANGES_MAX:
            self._numbers.drop_lowest()
            self._floor = next(iter(self._numbers))[0]
        if not eliciting:
            return
        self._eliciting += stop - first
        if marked:
            self._marked += stop - first
        if not in_order or completing or marked or self._eliciting >= ACK_EVERY:
            self.deadline = now
        elif self.deadline is None:
            self.deadline = now + ACK_DELAY_SECONDS_MAX

    def on_ack_delivered(self, largest: int) -> None:
        """Record that the peer has received an ACK up to `largest`."""
        self._known_below = max(self._known_below, largest + 1)

    def make_ack(self, *, credit: int, now: float) -> Ack:
        """Return the ACK that is owed.

        The caller has to check that an ACK is owed, which is when there is a `deadline`.
        """
        ranges: list[tuple[int, int]] = []
        for start, stop in self._numbers.descending():
            if ranges and (stop <= self._known_below or len(ranges) > ACK_RANGES_MAX):
                break
            ranges.append((start, stop - 1))
        self._eliciting = 0
        self.deadline = None
        return Ack(ranges, max(now - self._largest_at, 0.0), credit, self._marked)
