"""`PacketRows`: several packets of one size that came together, as rows of 32-bit words.

Their headers are read by comparing each row with the one before: where fragments of one message
follow each other, packet number and index grow by one and everything else is equal.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.delivery.shaped_message import (
    FRAME,
    HEADERS_BYTES,
    INDEX,
    NUMBER_LOW,
    PAYLOAD,
    SESSION,
    SINGLE_DATA,
)
from gradwire_protocol.limits import PACKET_HEADER_BYTES, TAG_BYTES
from gradwire_protocol.wire.frames import DATA, DATA_HEADER, PARITY, Data, check_data
from gradwire_protocol.wire.words import MASK, WORD_BYTES, Words

_STEP: Final = np.zeros(PAYLOAD, np.uint32)
_STEP[NUMBER_LOW] = _STEP[INDEX] = 1


class PacketRows:
    """Packets of one size, one behind the other; what stands behind the header may be sealed still.

    Parameters
    ----------
    view : memoryview
        Their bytes.
    size : int
        Of each, a multiple of 4, at least `MINIMUM_BYTES`.
    """

    __slots__ = ("_view", "count", "rows", "size", "words")

    def __init__(self, view: memoryview, size: int) -> None:
        self._view = view
        self.size = size
        self.count = len(view) // size
        data = np.frombuffer(view, np.uint8)
        self.rows: NDArray[np.uint8] = data.reshape(self.count, size)
        self.words: Words = data.view("<u4").reshape(self.count, size // WORD_BYTES)

    @classmethod
    def from_rows(cls, view: memoryview, rows: NDArray[np.uint8], words: Words) -> "PacketRows":
        """Return packets that were cut into rows and words before."""
        packets = cls.__new__(cls)
        packets._view = view
        packets.count, packets.size = rows.shape
        packets.rows = rows
        packets.words = words
        return packets

    def datagram(self, row: int) -> memoryview:
        """Return one of them."""
        return self._view[row * self.size : (row + 1) * self.size]

    def session_id(self) -> int:
        """Return the session id of all, or 0 where they differ in what stands before the number."""
        # Comparing bytes takes a quarter of the time that comparing arrays does.
        before: bytes = self.words[:, :NUMBER_LOW].tobytes()
        first = before[: NUMBER_LOW * WORD_BYTES]
        if before != first * self.count:
            return 0
        return int.from_bytes(first[SESSION * WORD_BYTES :], "little")

    def frames(self, row: int) -> memoryview:
        """Return what stands between header and tag of one of them."""
        at = row * self.size
        return self._view[at + PACKET_HEADER_BYTES : at + self.size - TAG_BYTES]

    def number(self, row: int) -> int:
        """Return a packet number."""
        at = row * self.size + WORD_BYTES * NUMBER_LOW
        return int.from_bytes(self._view[at : at + 8], "little")

    def data(self, row: int) -> Data:
        """Return the header of the fragment in a row, which `runs` has found to be one."""
        _, flags, fragment_bytes, number, index, total, stream, kind = DATA_HEADER.unpack_from(
            self._view, row * self.size + PACKET_HEADER_BYTES
        )
        check_data(flags, fragment_bytes, index, total)
        return Data(stream, number, kind, total, fragment_bytes, index, self._view[:0], flags >> 4)

    def whole_fragments(self, data: Data) -> int:
        """Return how many fragments of a message fill packets of this size to the last byte."""
        if data.fragment_bytes + HEADERS_BYTES + TAG_BYTES != self.size:
            return 0
        return data.total // data.fragment_bytes

    def runs(self) -> Iterator[tuple[int, int]]:
        """Cut the rows where they are no consecutive fragments: first row, and the one behind.

        A row that holds anything else is a run of its own.
        """
        headers = self.words[:, :PAYLOAD]
        follows = headers[1:] - headers[:-1] == _STEP
        cuts: list[int] = []
        if not follows.all():
            cuts = (np.flatnonzero(~follows.all(axis=1)) + 1).tolist()
        for first, stop in zip([0, *cuts], [*cuts, self.count], strict=True):
            if self._is_fragment(first) and self._counts_up(first, stop):
                yield first, stop
            else:
                yield from ((row, row + 1) for row in range(first, stop))

    def _is_fragment(self, row: int) -> bool:
        words = self.words
        if words[row, 0] != SINGLE_DATA:
            return False
        frame = int(words[row, FRAME])
        return frame & 0xFF == DATA and not frame >> 8 & PARITY

    def _counts_up(self, first: int, stop: int) -> bool:
        # The higher word of the packet number does not change in a run, so the lower one must not
        # begin anew.
        return int(self.words[first, NUMBER_LOW]) + stop - first <= MASK + 1


MINIMUM_BYTES: Final = HEADERS_BYTES + TAG_BYTES
