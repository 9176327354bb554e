"""`UpdateLog`: the updates accepted last, for workers that lost their connection for a while.

A returned worker is sent what it has missed, if that is still here; else it needs a snapshot.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

from gradwire_protocol import ShapedMessage
from gradwire_protocol.limits import MIB

UPDATE_LOG_BYTES_MAX: Final = 64 * MIB
"""Thirty seconds of a hundred updates of 20 KB a second. In memory it is three times as much, see
`UpdateLog`: 192 MiB."""

ENTRY_BYTES: Final = 2_048
"""What an update takes besides its payload, however small it is. Measured: 1.6 KB for 26 bytes."""


class UpdateLog:
    """Updates in the order they were accepted, the oldest giving way.

    Parameters
    ----------
    bytes_max : int
        Of the messages kept, each with `ENTRY_BYTES`. They are the ones that were relayed, not
        copies. Such a message has the rows that it came in, its payload in one piece, and, where
        paths differ in what they carry, rows of another size: three times its payload at most.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._entries: deque[tuple[int, int, ShapedMessage]] = deque()
        self._bytes = 0
        self._forgotten: dict[int, int] = {}
        """By rank: the sequence of the last update that is not kept any more."""

    @property
    def nbytes(self) -> int:
        """What is kept, by payload and `ENTRY_BYTES`."""
        return self._bytes

    def append(self, rank: int, sequence: int, message: ShapedMessage) -> None:
        """Keep an update; the next one of its origin."""
        self._entries.append((rank, sequence, message))
        self._bytes += message.total + ENTRY_BYTES
        while self._bytes > self.bytes_max:
            oldest, number, message = self._entries.popleft()
            self._bytes -= message.total + ENTRY_BYTES
            self._forgotten[oldest] = number

    def skip(self, rank: int, sequence: int) -> None:
        """Note an update that is not kept: no message says the same to everyone."""
        self._forgotten[rank] = sequence

    def reaches_back_to(self, versions: Mapping[int, int], *, without: int) -> bool:
        """Return whether everything that a version vector lacks is here, but for one rank."""
        return all(
            sequence <= versions.get(rank, 0)
            for rank, sequence in self._forgotten.items()
            if rank != without
        )

    def since(
        self, versions: Mapping[int, int], *, without: int
    ) -> Iterator[tuple[int, int, ShapedMessage]]:
        """Iterate over rank, sequence and message of what a version vector lacks."""
        for rank, sequence, message in self._entries:
            if rank != without and sequence > versions.get(rank, 0):
                yield rank, sequence, message
