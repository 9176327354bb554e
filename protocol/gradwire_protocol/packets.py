"""Packets: the first bytes of everything gradwire puts on the network.

Integers are unsigned and little-endian; offsets and sizes are in bytes. The first byte is the
type. A datagram carries one packet. Over TCP they come one behind the other, each behind its length
in two bytes, 1 to `DATAGRAM_BYTES_MAX`; anything else there ends the TCP connection.

::

    TRANSPORT 0x01: a packet of an established connection
    0       1      type
    1       1      flags            bit 0, SINGLE: one DATA frame fills the packet, but for up to
                                    3 zeros; the other bits are 0
    2       2      reserved         0
    4       4      session id       the receiver's, chosen by it; its low byte can name a shard
    8       8      packet number    counts the packets of this direction, never reused
    16      ...    frames           see `frames`
    ...     0..3   padding          zeros, up to a whole 32-bit word
    end-t   t      tag              see `protection`; t depends on the suite

    INIT 0x10: asks for a connection; exactly 1,200 bytes, so that no answer is larger
    0       1      type
    1       1      version          `VERSION`; the only field, with the type and the session id,
                                    that every version keeps in its place
    2       1      suite            see `protection`
    3       1      cookie length    0 or 16: whether `cookie` is used
    4       4      session id       the initiator's, not 0
    8       16     key id           which key; zeros in suite 0
    24      16     cookie           proves that the address is the sender's; zeros without
    40      32     nonce            random; an ephemeral public key in sealed suites
    72      16     limits           u64 window, u32 largest datagram, u32 idle timeout (ms)
    88      16     tag              suite 0: CRC-32 of bytes 0..87, then zeros
    104     1096   padding          zeros

    ACCEPT 0x11: answers an INIT; 80 bytes
    0       1      type
    1       1      version
    2       1      suite
    3       1      reserved         0
    4       4      session id       the initiator's, from the INIT
    8       4      session id       the responder's, not 0
    12      4      reserved         0
    16      32     nonce            as in INIT
    48      16     limits           as in INIT
    64      16     tag              suite 0: CRC-32 of bytes 0..87 of the INIT and 0..63 of this

    VERSIONS 0x13: answers an INIT whose version is not known
    0       1      type
    1       1      n                number of versions, at least 1
    2       2      reserved         0
    4       4      session id       the initiator's
    8       n      versions         one byte each

The types 0x12 (RETRY: come back with this cookie) and 0x14 (RESET: no such session) are kept for
the sealed suites; version 1 neither sends nor answers them.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from gradwire_protocol.errors import InvalidDatagramError
from gradwire_protocol.limits import (
    DATAGRAM_BYTES_MAX,
    DATAGRAM_BYTES_MIN,
    IDLE_TIMEOUT_SECONDS_MAX,
    PACKET_HEADER_BYTES,
    WINDOW_BYTES_MIN,
)

VERSION: Final = 1
SUITE_CHECKSUM: Final = 0
"""The suite of version 1: whole datagrams are recognized, nothing is secret (see `protection`)."""

TRANSPORT: Final = 0x01
SINGLE: Final = 0x01
"""Flag of a TRANSPORT packet. Packets with it and of one size are read many at a time."""

INIT: Final = 0x10
ACCEPT: Final = 0x11
VERSIONS: Final = 0x13

TRANSPORT_HEADER: Final = struct.Struct("<BBHIQ")
_INIT: Final = struct.Struct("<BBBBI16s16s32s")
_ACCEPT: Final = struct.Struct("<BBBBIII32s")
_LIMITS: Final = struct.Struct("<QII")
_TAG: Final = struct.Struct("<I12x")
_VERSIONS: Final = struct.Struct("<BBHI")

_INIT_SEALED_BYTES: Final = _INIT.size + _LIMITS.size
INIT_BYTES: Final = DATAGRAM_BYTES_MIN
ACCEPT_BYTES: Final = _ACCEPT.size + _LIMITS.size + _TAG.size
NONCE_BYTES: Final = 32

assert TRANSPORT_HEADER.size == PACKET_HEADER_BYTES
assert ACCEPT_BYTES < INIT_BYTES, "an answer never exceeds what asked for it"


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """What one side tells the other about itself when they connect."""

    window_bytes: int
    """Credit to begin with: message bytes that the other side may have under way."""

    datagram_bytes_max: int
    """Largest datagram it wants to receive."""

    idle_timeout_seconds: float
    """It closes the connection when it has heard nothing for so long; sent in milliseconds."""

    def pack(self) -> bytes:
        """Return the 16 bytes of the wire."""
        return _LIMITS.pack(
            self.window_bytes, self.datagram_bytes_max, round(self.idle_timeout_seconds * 1000)
        )

    @classmethod
    def parse(cls, data: bytes | memoryview) -> "TransportLimits":
        """Read the 16 bytes; refuse limits that no honest peer has."""
        window_bytes, datagram_bytes_max, idle_milliseconds = _LIMITS.unpack(data)
        if window_bytes < WINDOW_BYTES_MIN:
            raise InvalidDatagramError(f"window of {window_bytes} bytes, below {WINDOW_BYTES_MIN}")
        if not DATAGRAM_BYTES_MIN <= datagram_bytes_max <= DATAGRAM_BYTES_MAX:
            raise InvalidDatagramError(f"largest datagram of {datagram_bytes_max} bytes")
        if not 0 < idle_milliseconds <= IDLE_TIMEOUT_SECONDS_MAX * 1000:
            raise InvalidDatagramError(f"idle timeout of {idle_milliseconds} ms")
        return cls(window_bytes, datagram_bytes_max, idle_milliseconds / 1000)


@dataclass(frozen=True, slots=True)
class Init:
    """The first datagram of a connection."""

    session_id: int
    nonce: bytes
    limits: TransportLimits

    def pack(self) -> bytes:
        """Return the datagram."""
        body = _INIT.pack(INIT, VERSION, SUITE_CHECKSUM, 0, self.session_id, b"", b"", self.nonce)
        body += self.limits.pack()
        return (body + _TAG.pack(zlib.crc32(body))).ljust(INIT_BYTES, b"\0")

    @classmethod
    def parse(cls, datagram: bytes | memoryview) -> "Init":
        """Read an INIT of this version."""
        if len(datagram) != INIT_BYTES:
            raise InvalidDatagramError(f"INIT of {len(datagram)} bytes, not {INIT_BYTES}")
        _, _, suite, cookie_bytes, session_id, key_id, cookie, nonce = _INIT.unpack_from(datagram)
        end = _INIT_SEALED_BYTES
        _check_tag(datagram[end : end + _TAG.size], zlib.crc32(datagram[:end]))
        if suite != SUITE_CHECKSUM or cookie_bytes or any(key_id) or any(cookie):
            raise InvalidDatagramError(f"INIT with suite {suite}; this side knows 0")
        if not session_id:
            raise InvalidDatagramError("INIT with session id 0")
        return cls(session_id, nonce, TransportLimits.parse(datagram[_INIT.size : end]))


@dataclass(frozen=True, slots=True)
class Accept:
    """The answer to an `Init`."""

    initiator_session_id: int
    session_id: int
    nonce: bytes
    limits: TransportLimits

    def pack(self, init: bytes) -> bytes:
        """Return the datagram that answers the datagram `init`."""
        body = _ACCEPT.pack(
            ACCEPT,
            VERSION,
            SUITE_CHECKSUM,
            0,
            self.initiator_session_id,
            self.session_id,
            0,
            self.nonce,
        )
        body += self.limits.pack()
        return body + _TAG.pack(zlib.crc32(body, zlib.crc32(init[:_INIT_SEALED_BYTES])))

    @classmethod
    def parse(cls, datagram: bytes | memoryview, init: bytes) -> "Accept":
        """Read an ACCEPT that has to answer the datagram `init`."""
        if len(datagram) != ACCEPT_BYTES:
            raise InvalidDatagramError(f"ACCEPT of {len(datagram)} bytes, not {ACCEPT_BYTES}")
        _, version, suite, _, initiator_session_id, session_id, _, nonce = _ACCEPT.unpack_from(
            datagram
        )
        end = _ACCEPT.size + _LIMITS.size
        _check_tag(
            datagram[end:], zlib.crc32(datagram[:end], zlib.crc32(init[:_INIT_SEALED_BYTES]))
        )
        if version != VERSION or suite != SUITE_CHECKSUM or not session_id:
            raise InvalidDatagramError(f"ACCEPT of version {version}, suite {suite}")
        limits = TransportLimits.parse(datagram[_ACCEPT.size : end])
        return cls(initiator_session_id, session_id, nonce, limits)


def pack_versions(session_id: int) -> bytes:
    """Return the datagram that says which versions this side knows."""
    return _VERSIONS.pack(VERSIONS, 1, 0, session_id) + bytes([VERSION])


def parse_versions(datagram: bytes | memoryview) -> tuple[int, ...]:
    """Return the versions that the other side knows."""
    if len(datagram) < _VERSIONS.size + 1 or len(datagram) != _VERSIONS.size + datagram[1]:
        raise InvalidDatagramError(f"VERSIONS of {len(datagram)} bytes")
    versions = tuple(bytes(datagram[_VERSIONS.size :]))
    if VERSION in versions:
        raise InvalidDatagramError("VERSIONS that names our own version")
    return versions


def session_id_of(datagram: bytes | memoryview) -> int:
    """Return the session id, which every packet has at offset 4."""
    return int.from_bytes(datagram[4:8], "little")


def _check_tag(tag: bytes | memoryview, checksum: int) -> None:
    if tag != _TAG.pack(checksum):
        raise InvalidDatagramError("the checksum does not match")
