"""`UpdateLog`: the latest accepted updates, for workers that return after a lost connection.

A returned worker is sent the updates that it has missed, if the log has all of them; else it needs
a snapshot.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from gradwire_protocol import ShapedMessage
from gradwire_protocol.limits import MIB

UPDATE_LOG_BYTES_MAX: Final = 64 * MIB
"""Thirty seconds of a hundred updates of 20 KB a second. It can take three times as much memory,
192 MiB: see `UpdateLog`."""

ENTRY_BYTES: Final = 2_048
"""Memory that an update takes besides its payload. Measured: 1.6 KB for 26 bytes."""


class UpdateLog:
    """Updates in the order of acceptance; the oldest are dropped first.

    Parameters
    ----------
    bytes_max : int
        Limit for all payloads, with `ENTRY_BYTES` for each. The log keeps the relayed messages
        themselves, not copies. Such a message has the rows that it came in, its payload in one
        piece and, where paths carry datagrams of other sizes, rows of another size: three times its
        payload at most.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.runs: Callable[[], int] = lambda: 1
        """Returns the number of runs that share `bytes_max`."""
        self._entries: deque[tuple[int, int, ShapedMessage]] = deque()
        self.nbytes = 0
        """Bytes of all payloads, with `ENTRY_BYTES` for each."""
        self._forgotten: dict[int, int] = {}
        """By rank: the sequence of the last update that is not in the log any more."""

    def append(self, rank: int, sequence: int, message: ShapedMessage) -> None:
        """Add the next update of a rank."""
        self._entries.append((rank, sequence, message))
        self.nbytes += message.total + ENTRY_BYTES
        limit = self.bytes_max // max(self.runs(), 1)
        while self.nbytes > limit:
            oldest, number, message = self._entries.popleft()
            self.nbytes -= message.total + ENTRY_BYTES
            self._forgotten[oldest] = number

    def skip(self, rank: int, sequence: int) -> None:
        """Note that the updates of a rank up to this one are not in the log."""
        self._forgotten[rank] = sequence

    def reaches_back_to(self, versions: Mapping[int, int], *, without: int) -> bool:
        """Return whether the log has all updates that a version vector lacks.

        Updates of the rank `without` do not count.
        """
        return all(
            sequence <= versions.get(rank, 0)
            for rank, sequence in self._forgotten.items()
            if rank != without
        )

    def since(
        self, versions: Mapping[int, int], *, without: int
    ) -> Iterator[tuple[int, int, ShapedMessage]]:
        """Yield rank, sequence and message of each update that a version vector lacks."""
        for rank, sequence, message in self._entries:
            if rank != without and sequence > versions.get(rank, 0):
                yield rank, sequence, message
