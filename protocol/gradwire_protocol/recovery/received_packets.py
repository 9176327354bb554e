"""`ReceivedPackets`: which packet numbers came in, and when to say so.

One structure finds duplicates, keeps replays out and yields the ranges of an ACK. Numbers that
the peer knows we have are dropped from the ACK (their ACK was itself acknowledged), but stay
known here, so that a late duplicate is still one.
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
        "_deadline",
        "_eliciting",
        "_floor",
        "_known_below",
        "_largest_at",
        "_marked",
        "_numbers",
    )

    def __init__(self) -> None:
        self._numbers = RangeSet()
        self._floor = 0
        self._known_below = 0
        self._largest_at = 0.0
        self._marked = 0
        self._eliciting = 0
        self._deadline: float | None = None

    @property
    def largest(self) -> int:
        """The highest packet number received; -1 before the first."""
        return self._numbers.last_stop - 1

    @property
    def deadline(self) -> float | None:
        """When an ACK has to be sent at the latest; None while none is owed."""
        return self._deadline

    @property
    def marked(self) -> int:
        """Packets that came with the mark "congestion experienced"."""
        return self._marked

    def is_new(self, first: int, stop: int) -> bool:
        """Return whether none of these numbers came before, or is too old to tell."""
        return first >= self._floor and self._numbers.isdisjoint(first, stop)

    def can_record_run(self, first: int, stop: int) -> bool:
        """Return whether it is the same to `add` these numbers at once or one by one.

        All of them are new then. Where the oldest range is about to be forgotten it is not: numbers
        behind the newest fill a gap, and the first ones alone may be one range more.
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
        """Note authentic packets with consecutive numbers that `is_new` has let pass.

        Parameters
        ----------
        first, stop : int
            Their packet numbers.
        eliciting : bool
            Whether they ask for an acknowledgement.
        completing : bool
            Whether one completed a message: its sender waits for nothing but the acknowledgement.
        marked : bool
            Whether a router on the way had a queue.
        now : float
            When they came.
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
            self._deadline = now
        elif self._deadline is None:
            self._deadline = now + ACK_DELAY_SECONDS_MAX

    def on_ack_delivered(self, largest: int) -> None:
        """Note that the peer has received an ACK that reached up to `largest`."""
        self._known_below = max(self._known_below, largest + 1)

    def make_ack(self, *, credit: int, now: float) -> Ack:
        """Return what to acknowledge, and owe nothing from then on.

        To be called while an ACK is owed, that is, while there is a `deadline`.
        """
        ranges: list[tuple[int, int]] = []
        for start, stop in self._numbers.descending():
            if ranges and (stop <= self._known_below or len(ranges) > ACK_RANGES_MAX):
                break
            ranges.append((start, stop - 1))
        self._eliciting = 0
        self._deadline = None
        return Ack(ranges, max(now - self._largest_at, 0.0), credit, self._marked)
