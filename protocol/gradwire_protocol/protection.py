"""Protection: what makes the bytes of a packet trustworthy. One class per suite.

Suite 0, `Checksum`, is the only one of version 1. A packet ends with 4 bytes of CRC-32 over its
header and frames, started from a value that both nonces of the handshake and the direction
determine. That finds every accident (truncation, damage, a stray datagram, a packet of an older
connection) and whoever cannot see the handshake has to guess 64 bits. It keeps nothing secret
and does not stop someone who can read the traffic.

A sealed suite takes the same place: it differs in `overhead` and in what `seal` and `open` do.
"""

import zlib
from typing import Final, Protocol

from gradwire_protocol.limits import PACKET_HEADER_BYTES, TAG_BYTES_MAX

CHECKSUM_BYTES: Final = 4

assert CHECKSUM_BYTES <= TAG_BYTES_MAX


class Protection(Protocol):
    """One direction of one connection."""

    @property
    def overhead(self) -> int:
        """Bytes that a packet is longer than its header and frames."""

    def seal(self, packet: bytearray) -> bytes:
        """Return the datagram for a header and its frames."""

    def open(self, datagram: memoryview) -> memoryview | None:
        """Return the frames of a datagram, or None where it is not authentic."""


class Checksum:
    """Suite 0.

    Parameters
    ----------
    secret : bytes
        What both sides and nobody else know of this direction.
    """

    __slots__ = ("_start", "overhead")

    def __init__(self, secret: bytes) -> None:
        self._start = zlib.crc32(secret)
        self.overhead = CHECKSUM_BYTES

    def seal(self, packet: bytearray) -> bytes:
        """Append the checksum."""
        return bytes(packet) + zlib.crc32(packet, self._start).to_bytes(CHECKSUM_BYTES, "little")

    def open(self, datagram: memoryview) -> memoryview | None:
        """Return what stands between header and checksum, if the checksum matches."""
        end = len(datagram) - CHECKSUM_BYTES
        if end < PACKET_HEADER_BYTES:
            return None
        if zlib.crc32(datagram[:end], self._start) != int.from_bytes(datagram[end:], "little"):
            return None
        return datagram[PACKET_HEADER_BYTES:end]


def checksums(initiator_nonce: bytes, responder_nonce: bytes) -> tuple[Checksum, Checksum]:
    """Return the protection of the directions initiator to responder, and back."""
    secret = initiator_nonce + responder_nonce
    return Checksum(secret + b"\0"), Checksum(secret + b"\1")
