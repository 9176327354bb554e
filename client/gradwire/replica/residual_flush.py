"""`ResidualFlush`: at the end the residual is sent as fast as the slowest worker takes it.

It says which range of it is next, and when. Encoding and sending is up to `Push`.
"""

from collections import deque
from typing import Final

from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.updates import UPDATE_BYTES_MAX

FLUSH_BYTES_MAX: Final = 8 * MIB
"""What all workers together have under way to the slowest one when each sends its whole residual
at the end: half of what the master queues for a worker before it adds up what comes then."""

ELEMENT_BYTES_MAX: Final = 8
"""What an element takes at most in an encoded update of more than a few."""


class ResidualFlush:
    """What is left to be sent of a residual.

    Parameters
    ----------
    elements : int
        Its length.
    workers : int
        How many flush at the same time.
    """

    def __init__(self, elements: int, workers: int) -> None:
        self._elements = elements
        self._bytes_max = FLUSH_BYTES_MAX // max(workers, 1)
        self._under_way: deque[tuple[int, int]] = deque()
        """Sequence and size of what was sent and some worker does not have."""
        self.left = elements
        """How many elements were not looked at yet."""

    @property
    def range(self) -> tuple[int, int]:
        """Where the range begins and ends that is next."""
        start = self._elements - self.left
        return start, min(start + max(self._piece_bytes // ELEMENT_BYTES_MAX, 1), self._elements)

    def note_sent(self, stop: int, sequence: int, size_bytes: int) -> None:
        """Note that everything before `stop` was sent, the last of it as update `sequence`."""
        self.left = self._elements - stop
        self._under_way.append((sequence, size_bytes))

    def may_go_on(self, stable: int) -> bool:
        """Return whether there is more, and the slowest worker has taken enough for it.

        Parameters
        ----------
        stable : int
            Sequence of the last update of ours that every worker has.
        """
        while self._under_way and self._under_way[0][0] <= stable:
            self._under_way.popleft()
        size = sum(size for _, size in self._under_way)
        return self.left > 0 and (not size or size + self._piece_bytes <= self._bytes_max)

    @property
    def _piece_bytes(self) -> int:
        """The most that one range takes when it is encoded."""
        return min(self._bytes_max // 2, UPDATE_BYTES_MAX)
