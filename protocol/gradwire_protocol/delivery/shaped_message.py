"""`ShapedMessage`: a message as packets, in the buffer from which they are sent.

::

    row 0        | packet header | DATA header | payload ........... | tag |
    row 1        | packet header | DATA header | payload ........... | tag |
    last row     | packet header | DATA header | payload | pad | tag |

All rows lie one behind the other in one buffer, so one `sendmsg` sends a run of them, and the
kernel cuts it into datagrams. A received fragment is placed in the row from which it is relayed,
and is never copied again: every destination gets the same frames. Before each sending, suite 0
writes session id, packet number and tag into the rows. That is safe because the kernel has copied a
train when `sendmsg` returns, and cheap because the tag is linear: see `checksum`. Sealed suites
read the rows and write to another buffer: see `sealed`.
"""

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.limits import DATA_HEADER_BYTES, PACKET_HEADER_BYTES, TAG_BYTES
from gradwire_protocol.wire.frames import DATA, DATA_HEADER, Data
from gradwire_protocol.wire.packets import SINGLE, TRANSPORT, WORD_BYTES, Words

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

COUNTING: Final = np.arange(2**12, dtype=np.uint32)


def fragment_bytes_of(datagram_bytes: int) -> int:
    """Return the payload bytes of a fragment in datagrams of this size."""
    words = (datagram_bytes - HEADERS_BYTES - TAG_BYTES) // WORD_BYTES
    return words * WORD_BYTES


def packet_bytes(payload_bytes: int) -> int:
    """Return the size of a packet with one fragment and nothing else."""
    return HEADERS_BYTES + payload_bytes + -payload_bytes % WORD_BYTES + TAG_BYTES


class ShapedMessage:
    """The rows of one message.

    Parameters
    ----------
    stream, number, kind : int
        See `wire.frames`.
    total : int
        Length of the message in bytes.
    fragment_bytes : int
        Payload bytes of every row except the last.
    shape : int
        How often the message was cut before.
    """

    __slots__ = (
        "_framed",
        "_payload",
        "_reshaped",
        "count",
        "fragment_bytes",
        "kind",
        "last_bytes",
        "number",
        "rows",
        "shape",
        "stream",
        "stride",
        "sums",
        "total",
        "view",
        "words",
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
        buffer = np.empty(count * stride, np.uint8)
        self.rows = buffer.reshape(count, stride)
        self.words: Words = buffer.view("<u4").reshape(count, stride // WORD_BYTES)
        self.view = buffer.data
        self._framed = False
        self.sums: Words | None = None
        """Used by `checksum`: the part of each row's sum that all destinations share."""
        self._payload: Payload | None = None
        self._reshaped: ShapedMessage | None = None

    @classmethod
    def of(
        cls, stream: int, number: int, kind: int, payload: Payload, fragment_bytes: int
    ) -> "ShapedMessage":
        """Return a message with a copy of the payload."""
        data = np.frombuffer(payload, np.uint8)
        message = cls(stream, number, kind, len(data), fragment_bytes)
        message._fill(data)
        return message

    # Coming in.

    def place_fragment(self, data: Data) -> None:
        """Copy a fragment into its row."""
        at = data.index * self.stride + HEADERS_BYTES
        self.view[at : at + len(data.payload)] = data.payload

    def place_rows(self, first: int, packets: NDArray[np.uint8]) -> None:
        """Copy packets of consecutive fragments, one a row and none shorter, into their rows."""
        self.rows[first : first + len(packets)] = packets

    def payload_of(self, index: int) -> NDArray[np.uint8]:
        """Return a fragment's payload as a writable view; the last one may be shorter."""
        size = min(self.fragment_bytes, self.total - index * self.fragment_bytes)
        return self.rows[index, HEADERS_BYTES : HEADERS_BYTES + size]

    def fragment(self, index: int, payload: memoryview) -> Data:
        """Return the frame of a fragment with this payload."""
        return Data(
            self.stream,
            self.number,
            self.kind,
            self.total,
            self.fragment_bytes,
            index,
            payload,
            self.shape,
        )

    @property
    def payload(self) -> Payload:
        """The message without headers: a copy, unless it has only one fragment."""
        if self._payload is None:
            if self.count == 1:
                self._payload = self.view[HEADERS_BYTES : HEADERS_BYTES + self.total]
            else:
                columns = self.rows[:, HEADERS_BYTES : HEADERS_BYTES + self.fragment_bytes]
                self._payload = columns.reshape(-1).data[: self.total]
        return self._payload

    # Going out.

    def reshape(self, fragment_bytes: int, *, new_shape: bool) -> "ShapedMessage":
        """Return the message in smaller fragments.

        Parameters
        ----------
        new_shape : bool
            Whether to use the next shape, because fragments may have arrived in the current one.
        """
        shape = self.shape + 1 if new_shape else self.shape
        known = self._reshaped
        if known is None or (known.fragment_bytes, known.shape) != (fragment_bytes, shape):
            known = ShapedMessage(
                self.stream, self.number, self.kind, self.total, fragment_bytes, shape
            )
            known._fill(np.frombuffer(self.payload, np.uint8))
            self._reshaped = known
        return known

    def size_of(self, index: int) -> int:
        """Return the size of one packet."""
        return self.stride if index < self.count - 1 else self.last_bytes

    def bytes_between(self, first: int, stop: int) -> int:
        """Return the size of consecutive packets together."""
        return (stop - 1 - first) * self.stride + self.size_of(stop - 1)

    def run(self, first: int, stop: int) -> memoryview:
        """Return consecutive packets, one behind the other."""
        at = first * self.stride
        return self.view[at : at + self.bytes_between(first, stop)]

    def write_headers(self) -> Words:
        """Return the rows as words, with all headers except session ids and packet numbers.

        The headers and the padding are the same for every destination and are written only once.
        """
        if not self._framed:
            self._framed = True
            words = self.words
            words[:, 0] = SINGLE_DATA
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
            words[:, FRAME:PAYLOAD] = np.frombuffer(header, "<u4")
            words[:, INDEX] = COUNTING[: self.count]
            if self.fragment_bytes % WORD_BYTES:
                self.rows[:-1, HEADERS_BYTES + self.fragment_bytes : -TAG_BYTES] = 0
            end = HEADERS_BYTES + self.total - (self.count - 1) * self.fragment_bytes
            self.rows[-1, end : self.last_bytes] = 0
        return self.words

    def clear_tags(self) -> None:
        """Fill all tags with zeros."""
        self.rows[:, -TAG_BYTES:] = 0
        self.rows[-1, self.last_bytes - TAG_BYTES : self.last_bytes] = 0

    # Private.

    def _fill(self, payload: NDArray[np.uint8]) -> None:
        size = self.fragment_bytes
        whole = self.count - 1
        if whole:
            columns = self.rows[:whole, HEADERS_BYTES : HEADERS_BYTES + size]
            columns[:] = payload[: whole * size].reshape(whole, size)
        self.payload_of(whole)[:] = payload[whole * size :]
