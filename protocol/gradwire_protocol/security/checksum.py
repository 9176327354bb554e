"""Suite 0: detects damaged packets; nothing is secret.

The last word of a packet makes the sum of all its words, each times a weight for its place, equal
to a value that both nonces of the handshake and the direction determine. The three words before it
are zeros, because tags have 16 bytes. The weights are odd, so every change of a single word is
detected. They differ, so swapped words are detected too, unless the words differ only in their
highest bits; the checksum of UDP misses all swaps. Truncated packets, stray ones and packets of an
older connection pass once in 2^32 times. An attacker who cannot see the handshake has to guess 64
bits, but one who can read the traffic is not stopped.

The sum is linear, which makes relaying cheap: a fragment's part of the sum is the same for every
destination, and each destination only adds its three header words.

In the handshake the public keys are random bytes, and the tags are CRC-32s followed by zeros. The
tag of the INIT covers everything before it except the cookie. The tag of the ACCEPT also covers the
ACCEPT.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from gradwire_protocol.delivery.packet_rows import PacketRows
from gradwire_protocol.delivery.shaped_message import (
    COUNTING,
    FRAME,
    NUMBER_HIGH,
    NUMBER_LOW,
    SESSION,
    SINGLE_DATA,
    ShapedMessage,
)
from gradwire_protocol.errors import InvalidDatagramError
from gradwire_protocol.limits import (
    DATAGRAM_BYTES_MAX,
    PACKET_HEADER_BYTES,
    TAG_BYTES,
    VECTOR_PACKETS_MIN,
)
from gradwire_protocol.wire.packets import MASK, WORD_BYTES, Words

WEIGHTS: Final = np.arange(1, DATAGRAM_BYTES_MAX // 2, 2, dtype=np.uint32) * np.uint32(0x9E3779B1)
"""By place in the packet: the odd numbers times 2^32 over the golden ratio, modulo 2^32."""

_TAG: Final = struct.Struct("<I")
_HANDSHAKE_TAG: Final = struct.Struct("<I12x")
_ADDRESSING: Final = struct.Struct("<IQ")
_WEIGHT_SESSION, _WEIGHT_LOW, _WEIGHT_HIGH = (int(w) for w in WEIGHTS[SESSION:FRAME])
_FIRST_SUM: Final = int(WEIGHTS[0]) * SINGLE_DATA & MASK


class Checksum:
    """Sealing or opening of one direction.

    Parameters
    ----------
    secret : bytes
        Known to both sides and to no other host.
    """

    __slots__ = ("_start", "_start32")

    epoch: Final = 0
    too_many_forgeries: Final = False

    def __init__(self, secret: bytes) -> None:
        self._start = zlib.crc32(secret)  # the weighted sum of an authentic packet
        self._start32 = np.uint32(self._start)

    # Sealing.

    def seal(self, packet: bytearray) -> memoryview:
        """Append padding up to a whole word, and the tag."""
        packet += bytes(-len(packet) % WORD_BYTES)
        tag = (self._start - weighted_sum(packet)) & MASK
        packet += bytes(TAG_BYTES - WORD_BYTES)
        packet += _TAG.pack(tag)
        return memoryview(packet)

    def seal_run(
        self, message: ShapedMessage, first: int, stop: int, session_id: int, number: int
    ) -> memoryview:
        """Write headers and tags of consecutive rows in place."""
        sums = _sums_of(message)
        n = stop - first
        low, high = number & MASK, number >> 32
        if n < VECTOR_PACKETS_MIN or low + n > MASK:
            for index in range(first, stop):
                self._write_header_and_tag(message, index, session_id, number + index - first)
            return message.run(first, stop)
        words = message.words[first:stop]
        words[:, SESSION] = session_id
        lows = COUNTING[:n] + np.uint32(low)
        words[:, NUMBER_LOW] = lows
        words[:, NUMBER_HIGH] = high
        constant = (self._start - _WEIGHT_SESSION * session_id - _WEIGHT_HIGH * high) & MASK
        lows *= WEIGHTS[NUMBER_LOW]
        lows += sums[first:stop]
        np.subtract(np.uint32(constant), lows, out=lows)
        words[:, -1] = lows
        if stop == message.count:
            end = (stop - 1) * message.stride + message.last_bytes
            _TAG.pack_into(message.view, end - WORD_BYTES, int(lows[-1]))
        return message.run(first, stop)

    def seal_rows(
        self, message: ShapedMessage, indexes: Sequence[int], session_id: int, number: int
    ) -> list[memoryview]:
        """Write headers and tags of any rows in place."""
        for i, index in enumerate(indexes):
            self._write_header_and_tag(message, index, session_id, number + i)
        return [message.run(index, index + 1) for index in indexes]

    def _write_header_and_tag(
        self, message: ShapedMessage, index: int, session_id: int, number: int
    ) -> None:
        view, at = message.view, index * message.stride
        _ADDRESSING.pack_into(view, at + WORD_BYTES * SESSION, session_id, number)
        tag = (
            self._start
            - _sums_of(message).item(index)
            - _WEIGHT_SESSION * session_id
            - _WEIGHT_LOW * (number & MASK)
            - _WEIGHT_HIGH * (number >> 32)
        )
        _TAG.pack_into(view, at + message.size_of(index) - WORD_BYTES, tag & MASK)

    # Opening.

    def open(self, datagram: memoryview) -> memoryview | None:
        """Return the frames if the sum is right."""
        size = len(datagram)
        end = size - TAG_BYTES
        if end < PACKET_HEADER_BYTES or size % WORD_BYTES or size > DATAGRAM_BYTES_MAX:
            return None
        (tag,) = _TAG.unpack_from(datagram, size - WORD_BYTES)
        if (weighted_sum(datagram[: size - WORD_BYTES]) + tag - self._start) & MASK:
            return None
        return datagram[PACKET_HEADER_BYTES:end]

    def open_rows(self, packets: PacketRows) -> PacketRows | None:
        """Return the packets unchanged if all sums are right."""
        words = packets.words
        tag = words.shape[1] - 1
        sums: Words = np.einsum("ij,j->i", words[:, :tag], WEIGHTS[:tag])
        sums += words[:, tag]
        return packets if (sums == self._start32).all() else None

    def forget_previous_key(self) -> None:
        """Do nothing: there is only one key."""


class ChecksumHandshake:
    """One side of a handshake without proofs; `NoiseHandshake` has them."""

    __slots__ = ("_checksum", "_nonces")

    def __init__(self, prologue: bytes) -> None:
        self._checksum = zlib.crc32(prologue)
        self._nonces = b""

    @property
    def keys(self) -> tuple[bytes, bytes]:
        """Values that identify the directions initiator to responder, and back."""
        return self._nonces + b"\0", self._nonces + b"\1"

    def write_init(self, nonce: bytes, payload: bytes) -> tuple[bytes, bytes]:
        """Return the nonce and the payload with its tag."""
        self._checksum = zlib.crc32(nonce + payload, self._checksum)
        self._nonces += nonce
        return nonce, payload + _HANDSHAKE_TAG.pack(self._checksum)

    def read_init(self, nonce: bytes, tagged: bytes) -> bytes:
        """Return the payload.

        Raises
        ------
        InvalidDatagramError
            If the payload or anything before it was damaged on the way.
        """
        payload = tagged[:-TAG_BYTES]
        checksum = zlib.crc32(nonce + payload, self._checksum)
        if tagged[-TAG_BYTES:] != _HANDSHAKE_TAG.pack(checksum):
            raise InvalidDatagramError("the checksum of the handshake does not match")
        self._checksum = checksum
        self._nonces += nonce
        return payload

    # The answer is tagged and checked as the INIT is.
    write_accept = write_init
    read_accept = read_init


def weighted_sum(data: bytes | bytearray | memoryview) -> int:
    """Return the weighted sum of a packet's first words."""
    words = np.frombuffer(data, "<u4")
    return int(np.dot(words, WEIGHTS[: len(words)]))


def _sums_of(message: ShapedMessage) -> Words:
    """Return the part of each row's sum that all destinations share; it is computed once."""
    if message.sums is None:
        words = message.write_headers()
        message.clear_tags()
        tag = words.shape[1] - 1
        sums: Words = np.empty(message.count, np.uint32)
        whole = message.count - 1
        np.einsum("ij,j->i", words[:whole, FRAME:tag], WEIGHTS[FRAME:tag], out=sums[:whole])
        tag = message.last_bytes // WORD_BYTES - 1
        sums[whole] = np.dot(words[whole, FRAME:tag], WEIGHTS[FRAME:tag])
        sums += np.uint32(_FIRST_SUM)
        message.sums = sums
    return message.sums
