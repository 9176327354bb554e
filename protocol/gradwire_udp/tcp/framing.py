"""Framing: packets one behind the other in a stream of bytes, as TCP carries them.

::

    | length | packet ......... | length | packet ......... | ...
    0        2                  2 + length

The length is an unsigned little-endian integer of two bytes, 1 to `DATAGRAM_BYTES_MAX`. Anything
else is the end: from there on, nobody knows where a packet begins.

Packets of one size that follow each other are put together and taken apart by columns: what is
above handles forty packets at once in little more time than one.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.connection.train import Train
from gradwire_protocol.limits import DATAGRAM_BYTES_MAX

LENGTH_BYTES: Final = 2
FRAME_BYTES_MAX: Final = LENGTH_BYTES + DATAGRAM_BYTES_MAX

RUN_PACKETS_MAX: Final = 64
"""Packets handed over in one piece: as many as UDP brings at most with one read."""

SPARE_BYTES: Final = 64
"""Behind the packets of a run: who looks at them as rows of an array looks beyond the last one."""


class FramingError(ValueError):
    """What came is no packet with its length."""


def framed_bytes(train: Train) -> int:
    """Return the length of a train with the lengths of its packets."""
    return train.size + LENGTH_BYTES * train.count


def frame_into(train: Train, out: memoryview) -> int:
    """Write the packets of a train, each behind its length; return how many bytes that is."""
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
    """Where streams are read to, one after the other, and where their packets are put together.

    Parameters
    ----------
    size : int
        What one read brings at most.
    """

    def __init__(self, size: int) -> None:
        self.stream = memoryview(bytearray(FRAME_BYTES_MAX + size))
        self.stream_bytes: NDArray[np.uint8] = np.frombuffer(self.stream, np.uint8)
        self.packets = memoryview(bytearray(FRAME_BYTES_MAX + size + SPARE_BYTES))
        self.packets_bytes: NDArray[np.uint8] = np.frombuffer(self.packets, np.uint8)


class PacketStream:
    """Cuts one stream into packets.

    Between reads it keeps nothing but the beginning of the next packet, so many streams can share
    one large buffer.

    Parameters
    ----------
    buffer : ReadBuffer
    """

    __slots__ = ("_buffer", "_rest")

    def __init__(self, buffer: ReadBuffer) -> None:
        self._buffer = buffer
        self._rest = b""

    def read_target(self) -> memoryview:
        """Return where to read to; what comes is then given to `packets` before anything else."""
        stream, held = self._buffer.stream, len(self._rest)
        stream[:held] = self._rest
        return stream[held : held + len(stream) - FRAME_BYTES_MAX]

    def packets(self, size: int) -> Iterator[tuple[memoryview, int]]:
        """Take what was read to `read_target`.

        Parameters
        ----------
        size : int
            Bytes read.

        Yields
        ------
        view : memoryview
            Packets one behind the other; used up when the next are asked for.
        segment : int
            Bytes of every packet but the last, which may be shorter.

        Raises
        ------
        FramingError
            If something else comes than a packet.
        """
        stream = self._buffer.stream
        at, end = 0, len(self._rest) + size
        while end - at >= LENGTH_BYTES:
            segment = stream[at] | stream[at + 1] << 8
            if not 0 < segment <= DATAGRAM_BYTES_MAX:
                raise FramingError(f"a packet of {segment} bytes; it is 1 to {DATAGRAM_BYTES_MAX}")
            whole = (end - at) // (LENGTH_BYTES + segment)
            if not whole:
                break
            filled, at = self._collect_run(at, end, segment, min(whole, RUN_PACKETS_MAX))
            yield self._buffer.packets[:filled], segment
        self._rest = bytes(stream[at:end])

    def _collect_run(self, at: int, end: int, segment: int, most: int) -> tuple[int, int]:
        """Put packets of one size together, and a shorter one behind them.

        Returns
        -------
        filled : int
            Bytes of packets.
        at : int
            Where in the stream the next one begins.
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
        """Return how many of the next packets are as long as the first one."""
        ends = self._buffer.stream_bytes[at : at + most * stride].reshape(most, stride)
        lengths = ends[:, :LENGTH_BYTES]
        differs = (lengths != lengths[0]).any(axis=1)
        first = int(differs.argmax())
        return first or most
