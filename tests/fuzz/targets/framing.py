"""Framing of TCP: bytes say in which pieces the stream arrives, the rest is the stream.

However it is cut, the packets are those that a reader of the whole stream finds, the error is where
that one finds it; and framing the packets again gives the stream.
"""

from collections.abc import Iterable
from typing import Final

from fuzz.reading import Reader
from gradwire_protocol.connection.train import Train
from gradwire_protocol.limits import DATAGRAM_BYTES_MAX
from gradwire_udp.tcp.framing import (
    LENGTH_BYTES,
    FramingError,
    PacketStream,
    ReadBuffer,
    frame_into,
    framed_bytes,
)

BYTES_MAX: Final = 4_096
READ_BYTES_MAX: Final = 512
CUTS: Final = 8
"""Lengths of the first reads, in a byte each; the others are as long as they can be."""

_BUFFER: Final = ReadBuffer(READ_BYTES_MAX)


def check(data: bytes) -> None:
    """Read a stream."""
    reader = Reader(data)
    cuts = [2 * reader.integer(1) + 1 for _ in range(CUTS)]
    stream = reader.rest()
    expected, whole = whole_packets(stream)
    packets, complete = packets_in(stream, cuts)
    assert complete == whole, f"an error {'' if whole else 'not '}where there is none"
    assert packets == expected, "other packets"
    check_framed_again(packets)


def whole_packets(stream: bytes) -> tuple[list[bytes], bool]:
    """Return the packets of a stream one by one, and whether nothing else came."""
    packets: list[bytes] = []
    at = 0
    while len(stream) - at >= LENGTH_BYTES:
        size = int.from_bytes(stream[at : at + LENGTH_BYTES], "little")
        if not 0 < size <= DATAGRAM_BYTES_MAX:
            return packets, False
        at += LENGTH_BYTES
        if len(stream) - at < size:
            break
        packets.append(stream[at : at + size])
        at += size
    return packets, True


def packets_in(stream: bytes, cuts: list[int]) -> tuple[list[bytes], bool]:
    """Return the packets of a stream that comes in pieces, and whether nothing else came."""
    packets: list[bytes] = []
    cutter = PacketStream(_BUFFER)
    sizes = iter(cuts)
    at = 0
    try:
        while at < len(stream):
            came = stream[at : at + min(next(sizes, READ_BYTES_MAX), READ_BYTES_MAX)]
            cutter.read_target()[: len(came)] = came
            at += len(came)
            for view, segment in cutter.packets(len(came)):
                packets += [bytes(view[i : i + segment]) for i in range(0, len(view), segment)]
    except FramingError:
        return packets, False
    return packets, True


def check_framed_again(packets: list[bytes]) -> None:
    """Frame packets, each as a train of its own, and those of one size together."""
    framed = b"".join(_framed([packet]) for packet in packets)
    assert whole_packets(framed) == (packets, True)
    alike = [packet for packet in packets if len(packet) == len(packets[0])]
    if alike:
        assert whole_packets(_framed(alike)) == (alike, True)


def _framed(packets: list[bytes]) -> bytes:
    joined = memoryview(b"".join(packets))
    train = Train([joined], len(packets[0]), len(joined), "peer")
    out = bytearray(framed_bytes(train))
    assert frame_into(train, memoryview(out)) == len(out)
    return bytes(out)


def seeds() -> Iterable[bytes]:
    """Return streams in pieces: packets of one size, of many sizes, cut short, and none at all."""
    cuts = bytes([0, 1, 7, 40, 255, 3, 0, 9])
    alike = b"".join(_framed([bytes([i]) * 40]) for i in range(12))
    mixed = b"".join(_framed([b"p" * size]) for size in (40, 40, 40, 12, 1, 300, 299, 2))
    for stream in (alike, mixed, mixed[:-1], alike + b"\0\0", b"\xff\xff", b""):
        yield cuts + stream
