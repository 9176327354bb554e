"""`ShapedMessage`: a message as the packets it travels in, each in the place it is sent from.

::

    row 0        | packet header | DATA header | payload ........... | tag |
    row 1        | packet header | DATA header | payload ........... | tag |
    last row     | packet header | DATA header | payload | pad | tag |

All rows lie one behind the other in one buffer, so that a run of them is one `sendmsg` which the
kernel cuts into datagrams. What came in is put where it will leave from, and is never copied again:
every destination gets the same bytes but for the session id, the packet number and the tag, which
are written into the rows before each sending. That is safe because the kernel has copied a train
when `sendmsg` returns, and cheap because the tag is linear: `protection` explains it.
"""

import struct
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.frames import DATA, DATA_HEADER, Data
from gradwire_protocol.limits import (
    DATA_HEADER_BYTES,
    PACKET_HEADER_BYTES,
    VECTOR_PACKETS_MIN,
)
from gradwire_protocol.packets import SINGLE, TRANSPORT
from gradwire_protocol.protection import CHECKSUM_BYTES, MASK, WEIGHTS, WORD_BYTES, Words
from gradwire_protocol.recycling import give_back, take

Payload: TypeAlias = bytes | bytearray | memoryview

HEADERS_BYTES: Final = PACKET_HEADER_BYTES + DATA_HEADER_BYTES

# Words of a row.
SESSION: Final = 1
NUMBER_LOW: Final = 2
NUMBER_HIGH: Final = 3
FRAME: Final = 4
INDEX: Final = 6
PAYLOAD: Final = HEADERS_BYTES // WORD_BYTES

SINGLE_DATA: Final = TRANSPORT | SINGLE << 8
"""The first word of a packet with one fragment and nothing else."""

_WEIGHT_SESSION, _WEIGHT_LOW, _WEIGHT_HIGH = (int(w) for w in WEIGHTS[SESSION:FRAME])
_FIRST_SUM: Final = int(WEIGHTS[0]) * SINGLE_DATA & MASK
_ADDRESSING: Final = struct.Struct("<IQ")
_WORD: Final = struct.Struct("<I")
_COUNTING: Final = np.arange(2**12, dtype=np.uint32)


def fragment_bytes_of(datagram_bytes: int) -> int:
    """Return what a fragment carries in datagrams of this size."""
    words = (datagram_bytes - HEADERS_BYTES - CHECKSUM_BYTES) // WORD_BYTES
    return words * WORD_BYTES


def packet_bytes(payload_bytes: int) -> int:
    """Return the size of the packet that carries a fragment and nothing else."""
    return HEADERS_BYTES + payload_bytes + -payload_bytes % WORD_BYTES + CHECKSUM_BYTES


class ShapedMessage:
    """Rows of one message.

    Parameters
    ----------
    stream, number, kind : int
        Its name and what it is.
    total : int
        Its length in bytes.
    fragment_bytes : int
        What every row but the last carries.
    shape : int
        How often it was cut before.
    """

    __slots__ = (
        "_buffer",
        "_payload",
        "_reshaped",
        "_sums",
        "_view",
        "_words",
        "count",
        "fragment_bytes",
        "kind",
        "last_bytes",
        "number",
        "rows",
        "shape",
        "stream",
        "stride",
        "total",
    )

    def __init__(
        self, stream: int, number: int, kind: int, total: int, fragment_bytes: int, shape: int = 0
    ) -> None:
        self.stream = stream
        self.number = number
        self.kind = kind
        self.total = total
        self.fragment_bytes = fragment_bytes
        self.shape = shape
        self.count = count = -(-total // fragment_bytes)
        self.last_bytes = packet_bytes(total - (count - 1) * fragment_bytes)
        """Size of the last row's packet."""
        self.stride = stride = packet_bytes(fragment_bytes) if count > 1 else self.last_bytes
        self._buffer = take(count * stride)
        buffer = self._buffer[: count * stride]
        self.rows = buffer.reshape(count, stride)
        self._words: Words = buffer.view("<u4").reshape(count, stride // WORD_BYTES)
        self._view = buffer.data
        self._sums: Words | None = None
        self._payload: Payload | None = None
        self._reshaped: ShapedMessage | None = None

    def __del__(self) -> None:
        """Let another message have the buffer, unless somebody still looks at it."""
        buffer = self._buffer
        del self._buffer, self.rows, self._words, self._view, self._payload
        if give_back is not None:  # as it is where the interpreter is ending
            give_back(buffer, 1)

    @classmethod
    def of(
        cls, stream: int, number: int, kind: int, payload: Payload, fragment_bytes: int
    ) -> "ShapedMessage":
        """Return a payload, copied, in the shape it is to be sent in."""
        data = np.frombuffer(payload, np.uint8)
        message = cls(stream, number, kind, len(data), fragment_bytes)
        message._fill(data)
        return message

    # Coming in.

    def place(self, data: Data) -> None:
        """Put one fragment into its row."""
        at = data.index * self.stride + HEADERS_BYTES
        self._view[at : at + len(data.payload)] = data.payload

    def place_rows(self, first: int, packets: NDArray[np.uint8]) -> None:
        """Put packets of consecutive fragments, a row each and none shorter, into theirs."""
        self.rows[first : first + len(packets)] = packets

    def payload_of(self, index: int) -> NDArray[np.uint8]:
        """Return the place of a fragment's payload; that of the last one may be shorter."""
        size = min(self.fragment_bytes, self.total - index * self.fragment_bytes)
        return self.rows[index, HEADERS_BYTES : HEADERS_BYTES + size]

    @property
    def payload(self) -> Payload:
        """The message as its sender handed it over: a copy, unless it is one fragment."""
        if self._payload is None:
            if self.count == 1:
                self._payload = self._view[HEADERS_BYTES : HEADERS_BYTES + self.total]
            else:
                columns = self.rows[:, HEADERS_BYTES : HEADERS_BYTES + self.fragment_bytes]
                self._payload = columns.reshape(-1).data[: self.total]
        return self._payload

    # Going out.

    def reshaped(self, fragment_bytes: int, *, anew: bool) -> "ShapedMessage":
        """Return the message in smaller fragments.

        Parameters
        ----------
        fragment_bytes : int
        anew : bool
            Whether a part of it may have arrived in the shape it has now.
        """
        shape = self.shape + 1 if anew else self.shape
        known = self._reshaped
        if known is None or (known.fragment_bytes, known.shape) != (fragment_bytes, shape):
            known = ShapedMessage(
                self.stream, self.number, self.kind, self.total, fragment_bytes, shape
            )
            known._fill(np.frombuffer(self.payload, np.uint8))
            self._reshaped = known
        return known

    def size_of(self, index: int) -> int:
        """Return the bytes of one packet."""
        return self.stride if index < self.count - 1 else self.last_bytes

    def bytes_between(self, first: int, stop: int) -> int:
        """Return the bytes of consecutive packets."""
        return (stop - 1 - first) * self.stride + self.size_of(stop - 1)

    def run(self, first: int, stop: int) -> memoryview:
        """Return consecutive packets, one behind the other."""
        at = first * self.stride
        return self._view[at : at + self.bytes_between(first, stop)]

    def address(self, first: int, stop: int, session_id: int, number: int, start: int) -> None:
        """Make consecutive rows packets of one connection.

        Parameters
        ----------
        first, stop : int
        session_id : int
            The receiver's.
        number : int
            Packet number of the first one; the others follow.
        start : int
            What the weighted sum of every packet has to be.
        """
        sums = self._prepared()
        n = stop - first
        low, high = number & MASK, number >> 32
        if n < VECTOR_PACKETS_MIN or low + n > MASK:
            for index in range(first, stop):
                self._address_one(index, session_id, number + index - first, start, sums)
            return
        words = self._words[first:stop]
        words[:, SESSION] = session_id
        lows = _COUNTING[:n] + np.uint32(low)
        words[:, NUMBER_LOW] = lows
        words[:, NUMBER_HIGH] = high
        constant = (start - _WEIGHT_SESSION * session_id - _WEIGHT_HIGH * high) & MASK
        lows *= WEIGHTS[NUMBER_LOW]
        lows += sums[first:stop]
        np.subtract(np.uint32(constant), lows, out=lows)
        words[:, -1] = lows
        if stop == self.count:
            end = (stop - 1) * self.stride + self.last_bytes
            _WORD.pack_into(self._view, end - CHECKSUM_BYTES, int(lows[-1]))

    # Private.

    def _fill(self, payload: NDArray[np.uint8]) -> None:
        size = self.fragment_bytes
        whole = self.count - 1
        if whole:
            columns = self.rows[:whole, HEADERS_BYTES : HEADERS_BYTES + size]
            columns[:] = payload[: whole * size].reshape(whole, size)
        self.payload_of(whole)[:] = payload[whole * size :]

    def _prepared(self) -> Words:
        """Write what all destinations share, once; return the part of the sums that they share."""
        if self._sums is not None:
            return self._sums
        words = self._words
        header = DATA_HEADER.pack(
            DATA,
            self.shape << 4,
            self.fragment_bytes,
            self.number,
            0,
            self.total,
            self.stream,
            self.kind,
        )
        words[:, 0] = SINGLE_DATA
        words[:, FRAME:PAYLOAD] = np.frombuffer(header, "<u4")
        words[:, INDEX] = _COUNTING[: self.count]
        self._clear_padding()
        tag = words.shape[1] - 1
        sums: Words = np.empty(self.count, np.uint32)
        whole = self.count - 1
        np.einsum("ij,j->i", words[:whole, FRAME:tag], WEIGHTS[FRAME:tag], out=sums[:whole])
        tag = self.last_bytes // WORD_BYTES - 1
        sums[whole] = np.dot(words[whole, FRAME:tag], WEIGHTS[FRAME:tag])
        sums += np.uint32(_FIRST_SUM)
        self._sums = sums
        return sums

    def _clear_padding(self) -> None:
        if self.fragment_bytes % WORD_BYTES:
            self.rows[:-1, HEADERS_BYTES + self.fragment_bytes : -CHECKSUM_BYTES] = 0
        end = HEADERS_BYTES + self.total - (self.count - 1) * self.fragment_bytes
        self.rows[-1, end : self.last_bytes] = 0

    def _address_one(
        self, index: int, session_id: int, number: int, start: int, sums: Words
    ) -> None:
        view, at = self._view, index * self.stride
        _ADDRESSING.pack_into(view, at + WORD_BYTES * SESSION, session_id, number)
        tag = (
            start
            - sums.item(index)
            - _WEIGHT_SESSION * session_id
            - _WEIGHT_LOW * (number & MASK)
            - _WEIGHT_HIGH * (number >> 32)
        )
        _WORD.pack_into(view, at + self.size_of(index) - CHECKSUM_BYTES, tag & MASK)
