"""Sums: many updates as one, for a member that does not keep up.

On the lattice a sum of updates is exact. It is a vector as long as the model, however many updates
are in it, and is sent in parts; parts without a change are left out.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from gradwire_codecs import Replica, Update
from gradwire_codecs.format.header import MULTIPLE_MAX
from gradwire_codecs.format.update import pack_update
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.updates import PART_ELEMENTS, Conflated, Span

ELEMENT_BYTES: Final = 4

PARTS_UNDER_WAY_MAX: Final = 16
"""Parts under way at once, 4 MiB at most: with a round trip of 100 ms, 40 MB a second."""


class Sum:
    """Updates of several ranks, added up. Raises `MemoryError` where the vector does not fit."""

    def __init__(self, elements: int) -> None:
        self.before: dict[int, int] = {}
        """By rank: the sequence before the first update in the sum."""
        self.after: dict[int, int] = {}
        """By rank: the sequence of the last update in the sum."""
        self.clocks: dict[int, int] = {}
        """By rank: the step counter in the last update that has one."""
        self.closes: Mapping[int, int] = {}
        """In rounds, by rank: the last contributed update that is in the replica with this sum."""
        self.updates = 0
        """Number of updates in the sum."""
        self._total = Replica.zeros(elements)
        self._touched = np.zeros(-(-elements // PART_ELEMENTS), np.bool_)
        """By part: whether an update has changed it."""

    def add_update(
        self,
        rank: int,
        sequence: int,
        update: Update,
        clocks: Mapping[int, int] = MappingProxyType({}),
        closes: Mapping[int, int] | None = None,
    ) -> bool:
        """Add the next update of a rank.

        Returns False, and changes nothing, where an element would leave the range of 32 bits.
        """
        assert sequence == self.after.get(rank, sequence - 1) + 1
        if self._total.first_outside(update) is not None:
            return False
        self._total.apply(update)
        self._touched[update.index // PART_ELEMENTS] = True
        self.before.setdefault(rank, sequence - 1)
        self.after[rank] = sequence
        self.clocks.update(clocks)
        self.closes = closes or self.closes
        self.updates += 1
        return True

    def parts(self) -> Iterator[tuple[int, bytes]]:
        """Yield the first element and the encoded update of each part that is not zero."""
        values = self._total.values
        for part in np.flatnonzero(self._touched).tolist():
            start = PART_ELEMENTS * part
            block = values[start : start + PART_ELEMENTS]
            hit = np.flatnonzero(block)
            if hit.size:
                index, count = (hit + start).astype(np.uint32), block[hit]
                # Where all updates had the same threshold, this is it: it saves most of the bits.
                multiple = int(np.gcd.reduce(count))
                if multiple > MULTIPLE_MAX:
                    multiple = 1
                stop = start + len(block)
                yield start, pack_update(Update(start, stop, multiple, index, count // multiple))


class SumFeed:
    """Sends the parts of a sum, which must not change any more, a few at a time.

    Each part is encoded just before it is sent.
    """

    def __init__(self, total: Sum, link: Link) -> None:
        self.total = total
        self._link = link
        self._parts = total.parts()
        # A sum that is all zero still has to tell the versions.
        self._next: tuple[int, bytes] | None = next(self._parts, (0, b""))
        self._sent = 0
        self._under_way = 0
        while self._under_way < PARTS_UNDER_WAY_MAX and self._send():
            pass

    @property
    def nbytes(self) -> int:
        """Most bytes that the parts under way can take."""
        return self._under_way * Conflated.BYTES_MAX

    def on_delivered(self) -> bool:
        """Send the next part after one was delivered; return whether all were delivered."""
        self._under_way -= 1
        return not self._send() and not self._under_way

    def _send(self) -> bool:
        if self._next is None:
            return False
        start, body = self._next
        self._next = next(self._parts, None)
        self._sent += 1
        total, span = self.total, None
        if self._next is None:
            span = Span(
                total.before, total.after, total.updates, self._sent, total.clocks, total.closes
            )
        self._link.send_conflated(Conflated(start, body, span))
        self._under_way += 1
        return True
