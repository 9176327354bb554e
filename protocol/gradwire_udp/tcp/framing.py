"""Framing: packets one after the other in a stream of bytes, as TCP carries them.

::

    | length | packet ......... | length | packet ......... | ...
    0        2                  2 + length

The length is an unsigned little-endian integer of two bytes, 1 to `DATAGRAM_BYTES_MAX`. Any other
length ends the connection: it is not known where the next packet begins.

Consecutive packets of one size are framed and unframed together, as an array with a row for each:
the layers above handle forty packets at once in little more time than one.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.connection.train import Train
from gradwire_protocol.limits import DATAGRAM_BYTES_MAX

LENGTH_BYTES: Final = 2
FRAME_BYTES_MAX: Final = LENGTH_BYTES + DATAGRAM_BYTES_MAX

HTTP_LENGTH: Final = int.from_bytes(b"HT", "little")
"""How long a packet would be if the answer of an HTTP server began it; that is too long."""

HTTP_ANSWER: Final = (
    "the answer of an HTTP server: a master has one for its metrics, at another port (--http) than "
    "the one for workers (--listen)"
)

RUN_PACKETS_MAX: Final = 64
"""Packets that are handed over together: as many as one read over UDP returns at most."""

SPARE_BYTES: Final = 64
"""Room after the packets of a run: viewed as rows of an array, they reach beyond the last one."""


class FramingError(ValueError):
    """The stream holds something else than packets with their lengths."""


def framed_bytes(train: Train) -> int:
    """Return the bytes of a train with the lengths of its packets."""
    return train.size + LENGTH_BYTES * train.count


def frame_into(train: Train, out: memoryview) -> int:
    """Write the packets of a train, each after its length; return the bytes written."""
    buffers, segment = train.buffers, train.segment
    data = np.frombuffer(buffers[0] if len(buffers) == 1 else b"".join(buffers), np.uint8)
    whole, last = divmod(train.size, segment)
    stride = LENGTH_BYTES + segment
    end = whole * stride
    target = np.frombuffer(out, np.uint8)
    rows = target[:end].reshape(whole, stride)
    rows[:, 0] = segment & 0xFF
    rows[:, 1] = segment >> 8
    rows[:, LENGTH_BYTES:] = data[: whole * segment].reshape(whole, segment)
    if last:
        out[end : end + LENGTH_BYTES] = last.to_bytes(LENGTH_BYTES, "little")
        end += LENGTH_BYTES
        target[end : end + last] = data[whole * segment :]
        end += last
    return end


class ReadBuffer:
    """Memory for reading one stream at a time, and for its packets; a read returns up to `size`."""

    def __init__(self, size: int) -> None:
        self.stream = memoryview(bytearray(FRAME_BYTES_MAX + size))
        self.stream_bytes: NDArray[np.uint8] = np.frombuffer(self.stream, np.uint8)
        self.packets = memoryview(bytearray(FRAME_BYTES_MAX + size + SPARE_BYTES))
        self.packets_bytes: NDArray[np.uint8] = np.frombuffer(self.packets, np.uint8)


class PacketStream:
    """Cuts one stream into packets.

    Between reads it stores only the beginning of the next packet, so many streams can share one
    large buffer.
    """

    __slots__ = ("_buffer", "_rest")

    def __init__(self, buffer: ReadBuffer) -> None:
        self._buffer = buffer
        self._rest = b""

    def read_target(self) -> memoryview:
        """Return the memory to read to; `packets` has to be called next, for the bytes read."""
        stream, held = self._buffer.stream, len(self._rest)
        stream[:held] = self._rest
        return stream[held : held + len(stream) - FRAME_BYTES_MAX]

    def packets(self, size: int) -> Iterator[tuple[memoryview, int]]:
        """Cut the `size` bytes that were read to `read_target` into packets.

        Yields
        ------
        view : memoryview
            Packets one after the other; valid until the next item.
        segment : int
            Bytes of every packet but the last, which may be shorter.

        Raises
        ------
        FramingError
            If a length is out of range.
        """
        stream = self._buffer.stream
        at, end = 0, len(self._rest) + size
        while end - at >= LENGTH_BYTES:
            segment = stream[at] | stream[at + 1] << 8
            if not 0 < segment <= DATAGRAM_BYTES_MAX:
                raise FramingError(
                    HTTP_ANSWER
                    if segment == HTTP_LENGTH
                    else f"a packet of {segment} bytes; it has to be 1 to {DATAGRAM_BYTES_MAX}"
                )
            whole = (end - at) // (LENGTH_BYTES + segment)
            if not whole:
                break
            filled, at = self._collect_run(at, end, segment, min(whole, RUN_PACKETS_MAX))
            yield self._buffer.packets[:filled], segment
        self._rest = bytes(stream[at:end])

    def _collect_run(self, at: int, end: int, segment: int, most: int) -> tuple[int, int]:
        """Join up to `most` packets of one size, and a shorter one after them, in the buffer.

        Return their bytes, and where in the stream the next packet begins.
        """
        stream, packets = self._buffer.stream, self._buffer.packets
        stride = LENGTH_BYTES + segment
        count = 1 if most == 1 else self._equal_lengths(at, stride, most)
        if count == 1:
            packets[:segment] = stream[at + LENGTH_BYTES : at + stride]
        else:
            rows = self._buffer.stream_bytes[at : at + count * stride].reshape(count, stride)
            filled_rows = self._buffer.packets_bytes[: count * segment].reshape(count, segment)
            filled_rows[:] = rows[:, LENGTH_BYTES:]
        filled = count * segment
        at += count * stride
        last = stream[at] | stream[at + 1] << 8 if end - at >= LENGTH_BYTES else 0
        after = at + LENGTH_BYTES + last
        if 0 < last < segment and after <= end:
            packets[filled : filled + last] = stream[at + LENGTH_BYTES : after]
            return filled + last, after
        return filled, at

    def _equal_lengths(self, at: int, stride: int, most: int) -> int:
        """Return how many of the next `most` packets have the length of the first."""
        ends = self._buffer.stream_bytes[at : at + most * stride].reshape(most, stride)
        lengths = ends[:, :LENGTH_BYTES]
        differs = (lengths != lengths[0]).any(axis=1)
        first = int(differs.argmax())
        return first or most
