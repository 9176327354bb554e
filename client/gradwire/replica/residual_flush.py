"""`ResidualFlush`: at the end the residual is sent as fast as the slowest worker takes it.

It says which range of elements is next, and when. `Push` encodes and sends.
"""

from collections import deque
from typing import Final

from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.updates import UPDATE_BYTES_MAX

FLUSH_BYTES_MAX: Final = 8 * MIB
"""Bytes that all workers together have on their way to the slowest one when each sends its whole
residual at the end: half of what the master has under way to a worker."""

ELEMENT_BYTES_MAX: Final = 8
"""Most bytes that an element takes in an encoded update of more than a few elements."""


class ResidualFlush:
    """The part of a residual that is still to be sent.

    Parameters
    ----------
    elements : int
        Length of the residual.
    workers : int
        How many flush at the same time.
    """

    def __init__(self, elements: int, workers: int) -> None:
        self._elements = elements
        self._bytes_max = FLUSH_BYTES_MAX // max(workers, 1)
        self._under_way: deque[tuple[int, int]] = deque()
        """Sequence and bytes of each sent update that some worker lacks."""
        self.left = elements
        """How many elements were not looked at yet."""

    @property
    def range(self) -> tuple[int, int]:
        """Start and stop of the next range of elements."""
        start = self._elements - self.left
        return start, min(start + max(self._piece_bytes // ELEMENT_BYTES_MAX, 1), self._elements)

    def note_sent(self, stop: int, sequence: int, size_bytes: int) -> None:
        """Note that all before `stop` was sent, its last part as update `sequence`."""
        self.left = self._elements - stop
        self._under_way.append((sequence, size_bytes))

    def may_go_on(self, stable: int) -> bool:
        """Return whether there is more, and the slowest worker has taken enough for it.

        `stable` is the sequence of our last update that every worker has.
        """
        while self._under_way and self._under_way[0][0] <= stable:
            self._under_way.popleft()
        size = sum(size for _, size in self._under_way)
        return self.left > 0 and (not size or size + self._piece_bytes <= self._bytes_max)

    @property
    def _piece_bytes(self) -> int:
        """Most bytes that one encoded range takes."""
        return min(self._bytes_max // 2, UPDATE_BYTES_MAX)
