"""`SentPackets`: the fate of every packet sent, in columns indexed by packet number.

The columns begin at the oldest unresolved packet and slide along with it. Whole trains are
recorded, acknowledged and lost by operations on slices, and no packet costs an object. Only the few
packets with more than one fragment, or with information needed when they arrive, have
`PacketContents` as well.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.limits import ACK_RECORDS_MAX, SENT_PACKETS_MAX

Numbers: TypeAlias = NDArray[np.int64]

CAPACITY_MIN: Final = 256

REMEMBERED_MAX: Final = 3 * SENT_PACKETS_MAX // 2
"""Packets remembered at most. Trains stop at `SENT_PACKETS_MAX`, but answers to the peer continue.
Beyond this limit the oldest packets are forgotten, because a peer that never acknowledges must not
make the columns grow."""

NO_MESSAGE: Final = -1


class Fate:
    """The fate of a packet."""

    IN_FLIGHT: Final = 1
    ACKED: Final = 2
    LOST: Final = 3
    """The packet may still arrive late."""
    SKIPPED: Final = 4
    """The number was never sent: a peer that acknowledges it is lying."""
    UNASKED: Final = 5
    """The packet asked for no acknowledgement and is not in flight."""


@dataclass(slots=True)
class PacketContents:
    """The contents of a packet that carried more than one fragment."""

    ack_largest: int | None = None
    """Highest packet number in its ACK frame."""
    credit: bool = False
    """Whether it carried a CREDIT frame."""
    probe_bytes: int = 0
    """Its size, if it probes whether the path carries that size."""
    fragments: list[tuple[int, int]] = field(default_factory=list)
    """Key of the message, and index in it."""


@dataclass(frozen=True, slots=True)
class SentTrain:
    """The data shared by all packets of a train."""

    sent_at: float
    departure: object
    """The controller's state, returned with the acknowledgement."""


class SentPackets:
    """Packets of one connection, from the oldest unresolved one to the newest."""

    __slots__ = (
        "_base",
        "_capacity",
        "_fate",
        "_fate_bytes",
        "_fragment",
        "_message",
        "_sent_at",
        "_size",
        "_train_start",
        "_trains",
        "_unasked",
        "bytes_in_flight",
        "contents",
        "lost_packets",
        "next_number",
        "oldest",
        "packets_in_flight",
    )

    def __init__(self) -> None:
        self.next_number = 0
        self.oldest = 0
        """All packets below this number are resolved."""
        self.bytes_in_flight = 0
        self.packets_in_flight = 0
        self.lost_packets = 0
        """Packets counted as lost that may still arrive late."""
        self.contents: dict[int, PacketContents] = {}
        self._base = 0
        self._capacity = 0
        self._trains: dict[int, SentTrain] = {}
        self._unasked: deque[int] = deque()
        """The newest packets with `contents` that asked for no acknowledgement."""
        self._allocate(CAPACITY_MIN)

    # Recording.

    @property
    def has_room(self) -> bool:
        """Whether another train may be sent."""
        return self.next_number - self.oldest < SENT_PACKETS_MAX

    def record_train(
        self,
        fragments: Sequence[int] | NDArray[np.uint32],
        message: int,
        size: int,
        last_size: int,
        train: SentTrain,
    ) -> None:
        """Record a train with one fragment of a message in each packet."""
        count = len(fragments)
        number = self.next_number
        at = self._reserve(count)
        stop = at + count
        self._fate_bytes[at:stop] = bytes([Fate.IN_FLIGHT]) * count
        self._sent_at[at:stop] = train.sent_at
        self._size[at:stop] = size
        self._size[stop - 1] = last_size
        self._message[at:stop] = message
        self._fragment[at:stop] = fragments
        self._train_start[at:stop] = number
        self._trains[number] = train
        self.bytes_in_flight += size * (count - 1) + last_size
        self.packets_in_flight += count

    def record_packet(
        self, size: int, train: SentTrain, contents: PacketContents | None, *, eliciting: bool
    ) -> None:
        """Record any other packet."""
        number = self.next_number
        at = self._reserve(1)
        self._fate_bytes[at] = Fate.IN_FLIGHT if eliciting else Fate.UNASKED
        self._sent_at[at] = train.sent_at
        self._size[at] = size
        self._message[at] = NO_MESSAGE
        self._train_start[at] = number
        if contents is not None:
            self.contents[number] = contents
        if eliciting:
            self._trains[number] = train
            self.bytes_in_flight += size
            self.packets_in_flight += 1
        elif contents is not None:
            self._unasked.append(number)
            if len(self._unasked) > ACK_RECORDS_MAX:
                self.contents.pop(self._unasked.popleft(), None)

    def skip_number(self) -> None:
        """Skip a packet number."""
        number = self.next_number
        at = self._reserve(1)
        self._fate_bytes[at] = Fate.SKIPPED
        self._train_start[at] = number

    # Asking.

    def fates(self, first: int, stop: int) -> NDArray[np.uint8]:
        """Return the fates of consecutive packets as a writable view."""
        return self._fate[first - self._base : stop - self._base]

    def count(self, fate: int, first: int, stop: int) -> int:
        """Return how many of consecutive packets have a fate."""
        return self._fate_bytes.count(fate, first - self._base, stop - self._base)

    def has_in_flight(self, first: int, stop: int) -> bool:
        """Return whether any of consecutive packets is in flight."""
        return self._fate_bytes.find(Fate.IN_FLIGHT, first - self._base, stop - self._base) >= 0

    def sent_at(self, number: int) -> float:
        """Return when a packet left."""
        return float(self._sent_at[number - self._base])

    def sent_times(self, first: int, stop: int) -> NDArray[np.float64]:
        """Return when consecutive packets left."""
        return self._sent_at[first - self._base : stop - self._base]

    def sizes(self, numbers: slice | Numbers) -> NDArray[np.uint16]:
        """Return the sizes of packets in bytes."""
        return self._size[self._places(numbers)]

    def fragments(self, numbers: slice | Numbers) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the message key and the fragment index of every packet."""
        places = self._places(numbers)
        return self._message[places], self._fragment[places]

    def train_of(self, number: int) -> SentTrain:
        """Return the train data of an unresolved packet."""
        return self._trains[int(self._train_start[number - self._base])]

    def advance(self, forget_before: float) -> None:
        """Move `oldest` to the first packet in flight, or lost but sent after `forget_before`."""
        low = stop = self.next_number
        if self.packets_in_flight:
            low = self._base + self._fate_bytes.index(Fate.IN_FLIGHT, self.oldest - self._base)
        if self.lost_packets:
            lost = np.flatnonzero(self.fates(self.oldest, stop) == Fate.LOST)
            recent = lost[self.sent_times(self.oldest, stop)[lost] > forget_before]
            self.lost_packets = len(recent)
            if len(recent):
                low = min(low, self.oldest + int(recent[0]))
        if low > self.oldest:
            self._forget_below(low)

    # Private.

    def _forget_below(self, low: int) -> None:
        self.oldest = low
        keep = int(self._train_start[low - self._base]) if low < self.next_number else low
        for number in list(self._trains):
            if number >= keep:
                break
            del self._trains[number]
        # Contents of lost packets, and ACKs that may still be acknowledged, are kept for a while.
        while len(self.contents) > ACK_RECORDS_MAX and (oldest := next(iter(self.contents))) < low:
            del self.contents[oldest]

    def _forget_oldest(self, count: int) -> None:
        stop = self.oldest + count
        fates = self.fates(self.oldest, stop)
        flying = fates == Fate.IN_FLIGHT
        self.packets_in_flight -= int(np.count_nonzero(flying))
        self.bytes_in_flight -= int(self.sizes(slice(self.oldest, stop))[flying].sum())
        self.lost_packets -= int(np.count_nonzero(fates == Fate.LOST))
        self._forget_below(stop)

    def _places(self, numbers: slice | Numbers) -> slice | Numbers:
        if isinstance(numbers, slice):
            return slice(numbers.start - self._base, numbers.stop - self._base)
        return numbers - self._base

    def _reserve(self, count: int) -> int:
        """Reserve the next `count` packet numbers; return their place in the columns."""
        at = self.next_number - self._base
        if at + count > self._capacity:
            at = self._make_room(count)
        self.next_number += count
        return at

    def _make_room(self, count: int) -> int:
        if self.next_number - self.oldest > REMEMBERED_MAX:
            self._forget_oldest(self.next_number - self.oldest - SENT_PACKETS_MAX)
        live = self.next_number - self.oldest
        capacity = self._capacity
        while 2 * (live + count) > capacity:
            capacity *= 2
        start = self.oldest - self._base
        old = [column[start : start + live] for column in self._columns()]
        if capacity > self._capacity:
            self._allocate(capacity)
        for column, values in zip(self._columns(), old, strict=True):
            column[:live] = values
        self._base = self.oldest
        return live

    def _columns(self) -> list[NDArray[Any]]:
        return [self._fate, self._sent_at, self._size, self._message, self._fragment,
                self._train_start]  # fmt: skip

    def _allocate(self, capacity: int) -> None:
        self._capacity = capacity
        # The same memory twice: bytes count and find the few packets of an ACK in a tenth of the
        # time that numpy takes.
        self._fate_bytes = bytearray(capacity)
        self._fate = np.frombuffer(self._fate_bytes, np.uint8)
        self._sent_at = np.empty(capacity, np.float64)
        self._size = np.empty(capacity, np.uint16)
        self._message = np.empty(capacity, np.int32)
        self._fragment = np.empty(capacity, np.int32)
        self._train_start = np.empty(capacity, np.int64)
