"""Protection: what makes the bytes of a packet trustworthy. One class per suite.

Suite 0, `Checksum`, is the only one of version 1. A packet is a whole number of 32-bit words, and
its last word, the tag, makes the sum of all words, each times the weight of its place, a value that
both nonces of the handshake and the direction determine. The weights are odd, so every change of a
single word is found, and they differ, so words that changed places are too, unless they are alike
but for their highest bits; the checksum of UDP misses those. Truncation, stray datagrams and
packets of an older connection go unnoticed once in 2^32 times, and whoever cannot see the handshake
has to guess 64 bits. It keeps nothing secret and does not stop someone who can read the traffic.

The sum is linear, which is what makes relaying cheap: the part of it that belongs to a fragment is
the same for every destination, and a destination adds its three words of header (see `shaped`).

A sealed suite takes the same place: it differs in `overhead` and in what `seal` and `open` do.
"""

import struct
import zlib
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.limits import DATAGRAM_BYTES_MAX, PACKET_HEADER_BYTES, TAG_BYTES_MAX

CHECKSUM_BYTES: Final = 4
WORD_BYTES: Final = 4
MASK: Final = 2**32 - 1

assert CHECKSUM_BYTES <= TAG_BYTES_MAX
assert DATAGRAM_BYTES_MAX % WORD_BYTES == 0

Words: TypeAlias = NDArray[np.uint32]
"""Little-endian words: of one packet, or one row for each of several."""

WEIGHTS: Final = np.arange(1, DATAGRAM_BYTES_MAX // 2, 2, dtype=np.uint32) * np.uint32(0x9E3779B1)
"""By place in the packet: the odd numbers times 2^32 over the golden ratio, modulo 2^32."""

_TAG: Final = struct.Struct("<I")


class Protection(Protocol):
    """One direction of one connection."""

    @property
    def overhead(self) -> int:
        """Bytes that a packet is longer than its header and frames."""

    @property
    def start(self) -> int:
        """What the weighted sum of an authentic packet is, tag included."""

    def seal(self, packet: bytearray) -> bytearray:
        """Return the datagram for a header and its frames."""

    def open(self, datagram: memoryview) -> memoryview | None:
        """Return the frames of a datagram, or None where it is not authentic."""

    def open_rows(self, words: Words) -> NDArray[np.bool_]:
        """Return which of several datagrams of one size are authentic."""


class Checksum:
    """Suite 0.

    Parameters
    ----------
    secret : bytes
        What both sides and nobody else know of this direction.
    """

    __slots__ = ("_start32", "overhead", "start")

    def __init__(self, secret: bytes) -> None:
        self.start = zlib.crc32(secret)
        self._start32 = np.uint32(self.start)
        self.overhead = CHECKSUM_BYTES

    def seal(self, packet: bytearray) -> bytearray:
        """Append padding up to a whole word, and the checksum."""
        packet += bytes(-len(packet) % WORD_BYTES)
        packet += _TAG.pack((self.start - weighted_sum(packet)) & MASK)
        return packet

    def open(self, datagram: memoryview) -> memoryview | None:
        """Return what stands between header and checksum, if the checksum matches."""
        end = len(datagram) - CHECKSUM_BYTES
        if end < PACKET_HEADER_BYTES or end % WORD_BYTES or len(datagram) > DATAGRAM_BYTES_MAX:
            return None
        (tag,) = _TAG.unpack_from(datagram, end)
        if (weighted_sum(datagram[:end]) + tag - self.start) & MASK:
            return None
        return datagram[PACKET_HEADER_BYTES:end]

    def open_rows(self, words: Words) -> NDArray[np.bool_]:
        """Return which of several datagrams, a row of words each, are authentic."""
        tag = words.shape[1] - 1
        sums: Words = np.einsum("ij,j->i", words[:, :tag], WEIGHTS[:tag])
        sums += words[:, tag]
        authentic: NDArray[np.bool_] = sums == self._start32
        return authentic


def weighted_sum(data: bytes | bytearray | memoryview) -> int:
    """Return the sum of a packet's first words, each times the weight of its place."""
    words = np.frombuffer(data, "<u4")
    return int(np.dot(words, WEIGHTS[: len(words)]))


def checksums(initiator_nonce: bytes, responder_nonce: bytes) -> tuple[Checksum, Checksum]:
    """Return the protection of the directions initiator to responder, and back."""
    secret = initiator_nonce + responder_nonce
    return Checksum(secret + b"\0"), Checksum(secret + b"\1")
