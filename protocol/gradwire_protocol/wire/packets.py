"""Packets: the first bytes of everything gradwire puts on the network.

Integers are unsigned and little-endian; offsets and sizes are in bytes. The first byte is the type.
A datagram carries one packet. Over TCP packets follow each other, each after its length in two
bytes, 1 to `DATAGRAM_BYTES_MAX`; any other length ends the TCP connection.

::

    TRANSPORT 0x01: a packet of an established connection
    0       1      type
    1       1      flags            bit 0, SINGLE: the packet holds one DATA frame and up to 3 zeros
                                    of padding; the other bits are 0
    2       2      reserved         0
    4       4      session id       chosen by the receiver
    8       8      packet number    counts the packets of this direction, never reused
    16      ...    frames           see `frames`; sealed except in suite 0
    ...     0..3   padding          zeros, up to a whole 32-bit word; sealed too
    end-16  16     tag              see `protection`

    INIT 0x10: asks for a connection; exactly 1,200 bytes, so that no answer is larger
    0       1      type
    1       1      version          `VERSION`; every version keeps the type, this field and the
                                    session id in place
    2       1      suite            see `suites`
    3       1      cookie length    0 or 16: whether `cookie` is used
    4       4      session id       the initiator's, not 0
    8       16     key id           see `keys`; zeros in suite 0
    24      16     cookie           from a RETRY; zeros without
    40      32     public key       ephemeral, of X25519; random in suite 0
    72      88     greeting         sealed, see below
    160     16     tag              of the greeting
    176     1024   padding          zeros

    ACCEPT 0x11: answers an INIT; 96 bytes
    0       1      type
    1       1      version
    2       1      suite
    3       1      reserved         0
    4       4      session id       the initiator's, from the INIT
    8       32     public key       as in INIT
    40      40     reply            sealed, see below
    80      16     tag              of the reply

    RETRY 0x12: asks for the INIT again, with this cookie; 24 bytes, not authenticated
    0       1      type
    1       3      reserved         0
    4       4      session id       the initiator's
    8       16     cookie           see `cookies`

    VERSIONS 0x13: answers an INIT whose version is not known
    0       1      type
    1       1      n                number of versions, at least 1
    2       2      reserved         0
    4       4      session id       the initiator's
    8       n      versions         one byte each

    RESET 0x14: the session does not exist (any more); 24 bytes
    0       1      type
    1       3      reserved         0
    4       4      session id       that of the packet it answers
    8       16     token            from the reply in this session's handshake

    greeting, 88 bytes
    0       16     limits           u64 window, u32 largest datagram, u32 idle timeout (ms)
    16      8      time             Unix time in nanoseconds; grows from INIT to INIT of one key
    24      1      n                length of the name
    25      63     name             of the key, UTF-8, then zeros; empty in suite 0

    reply, 40 bytes
    0       4      session id       the responder's, not 0
    4       4      reserved         0
    8       16     limits           as in the greeting
    24      16     token            of a later RESET; zeros if none will be sent

The handshake seals greeting and reply: see `noise` for the sealed suites. It also hashes bytes 0 to
23 of the INIT, with a cookie length of 0, because the same INIT is sent again with a cookie. In
suite 0 nothing is sealed, and the tags are CRC-32s: see `checksum`.

Transport packets are read and written as 32-bit little-endian words, so that numpy can handle many
at a time.
"""

import struct
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.crypto.keys import KEY_ID_BYTES, NAME_BYTES_MAX
from gradwire_protocol.crypto.suites import Suite
from gradwire_protocol.errors import InvalidDatagramError
from gradwire_protocol.limits import (
    DATAGRAM_BYTES_MAX,
    DATAGRAM_BYTES_MIN,
    IDLE_TIMEOUT_SECONDS_MAX,
    PACKET_HEADER_BYTES,
    TAG_BYTES,
    WINDOW_BYTES_MIN,
)

WORD_BYTES: Final = 4
MASK: Final = 2**32 - 1

assert DATAGRAM_BYTES_MAX % WORD_BYTES == 0
assert TAG_BYTES % WORD_BYTES == 0

Words: TypeAlias = NDArray[np.uint32]
"""The words of one packet, or a row of words for each packet."""

VERSION: Final = 1

TRANSPORT: Final = 0x01
SINGLE: Final = 0x01
"""Flag of a TRANSPORT packet. Packets of one size with this flag are read many at a time."""

INIT: Final = 0x10
ACCEPT: Final = 0x11
RETRY: Final = 0x12
VERSIONS: Final = 0x13
RESET: Final = 0x14

TRANSPORT_HEADER: Final = struct.Struct("<BBHIQ")
_INIT: Final = struct.Struct("<BBBBI16s16s32s104s")
_ACCEPT: Final = struct.Struct("<BBBBI32s56s")
_LIMITS: Final = struct.Struct("<QII")
_GREETING: Final = struct.Struct("<16sQB63s")
_REPLY: Final = struct.Struct("<II16s16s")
_VERSIONS: Final = struct.Struct("<BBHI")
_RETRY_OR_RESET: Final = struct.Struct("<B3sI16s")

INIT_BYTES: Final = DATAGRAM_BYTES_MIN
ACCEPT_BYTES: Final = _ACCEPT.size
SUITE_AT: Final = 2
COOKIE_LENGTH_AT: Final = 3
KEY_ID_AT: Final = slice(8, 24)
COOKIE_AT: Final = slice(24, 40)
"""Positions in an INIT."""

RETRY_OR_RESET_BYTES: Final = _RETRY_OR_RESET.size
"""Size of a RETRY or a RESET."""
PUBLIC_KEY_BYTES: Final = 32
COOKIE_BYTES: Final = 16
TOKEN_BYTES: Final = 16
NO_KEY_ID: Final = bytes(KEY_ID_BYTES)
NO_TOKEN: Final = bytes(TOKEN_BYTES)

SUITES: Final = frozenset(int(suite) for suite in Suite)
_NO_COOKIE: Final = bytes(COOKIE_BYTES)

assert TRANSPORT_HEADER.size == PACKET_HEADER_BYTES
assert _GREETING.size + TAG_BYTES == 104
assert _REPLY.size + TAG_BYTES == 56
assert max(ACCEPT_BYTES, RETRY_OR_RESET_BYTES) < INIT_BYTES, (
    "an answer never exceeds what asked for it"
)


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """The limits that each side reports when they connect."""

    window_bytes: int
    """Initial credit: message bytes that the other side may have under way."""

    datagram_bytes_max: int
    """Largest datagram it accepts."""

    idle_timeout_seconds: float
    """It closes the connection after this much silence; sent in milliseconds."""

    def pack(self) -> bytes:
        """Return the 16 bytes of the wire."""
        return _LIMITS.pack(
            self.window_bytes, self.datagram_bytes_max, round(self.idle_timeout_seconds * 1000)
        )

    @classmethod
    def parse(cls, data: bytes | memoryview) -> "TransportLimits":
        """Parse the 16 bytes; refuse limits that no honest peer has."""
        window_bytes, datagram_bytes_max, idle_milliseconds = _LIMITS.unpack(data)
        if window_bytes < WINDOW_BYTES_MIN:
            raise InvalidDatagramError(
                f"window of {window_bytes} bytes; the least is {WINDOW_BYTES_MIN}"
            )
        if not DATAGRAM_BYTES_MIN <= datagram_bytes_max <= DATAGRAM_BYTES_MAX:
            raise InvalidDatagramError(
                f"largest datagram of {datagram_bytes_max} bytes; it is {DATAGRAM_BYTES_MIN} to "
                f"{DATAGRAM_BYTES_MAX}"
            )
        if not 0 < idle_milliseconds <= IDLE_TIMEOUT_SECONDS_MAX * 1000:
            raise InvalidDatagramError(
                f"idle timeout of {idle_milliseconds} ms; it is 1 to "
                f"{IDLE_TIMEOUT_SECONDS_MAX * 1000:g}"
            )
        return cls(window_bytes, datagram_bytes_max, idle_milliseconds / 1000)


@dataclass(frozen=True, slots=True)
class Greeting:
    """An initiator's limits, time and name."""

    limits: TransportLimits
    unix_time_ns: int = 0
    name: str = ""

    def pack(self) -> bytes:
        """Return the bytes of the wire, not sealed."""
        name = self.name.encode()
        return _GREETING.pack(self.limits.pack(), self.unix_time_ns, len(name), name)

    @classmethod
    def parse(cls, data: bytes) -> "Greeting":
        """Parse the 88 bytes of the wire, opened."""
        limits, unix_time_ns, size, name = _GREETING.unpack(data)
        if size > NAME_BYTES_MAX or any(name[size:]):
            raise InvalidDatagramError(
                f"name of {size} bytes; it has at most {NAME_BYTES_MAX}, and zeros behind it"
            )
        try:
            decoded = name[:size].decode()
        except UnicodeDecodeError:
            raise InvalidDatagramError("the name is not UTF-8") from None
        return cls(TransportLimits.parse(limits), unix_time_ns, decoded)


@dataclass(frozen=True, slots=True)
class Reply:
    """A responder's session id, limits and reset token."""

    session_id: int
    limits: TransportLimits
    reset_token: bytes = field(default=NO_TOKEN, repr=False)

    def pack(self) -> bytes:
        """Return the bytes of the wire, not sealed."""
        return _REPLY.pack(self.session_id, 0, self.limits.pack(), self.reset_token)

    @classmethod
    def parse(cls, data: bytes) -> "Reply":
        """Parse the 40 bytes of the wire, opened."""
        session_id, reserved, limits, reset_token = _REPLY.unpack(data)
        if not session_id or reserved:
            raise InvalidDatagramError(f"reply with session id {session_id}, reserved {reserved}")
        return cls(session_id, TransportLimits.parse(limits), reset_token)


@dataclass(frozen=True, slots=True)
class Init:
    """The first datagram of a connection, its greeting still sealed."""

    suite: Suite
    session_id: int
    key_id: bytes
    public_key: bytes
    sealed: bytes
    """The greeting and its tag."""
    cookie: bytes = b""

    def pack(self) -> bytes:
        """Return the datagram."""
        return _INIT.pack(
            INIT, VERSION, self.suite, len(self.cookie), self.session_id, self.key_id, self.cookie,
            self.public_key, self.sealed,
        ).ljust(INIT_BYTES, b"\0")  # fmt: skip

    @classmethod
    def parse(cls, datagram: bytes | memoryview) -> "Init":
        """Parse an INIT of this version; the handshake checks that it is authentic."""
        if len(datagram) != INIT_BYTES:
            raise InvalidDatagramError(f"INIT of {len(datagram)} bytes, not {INIT_BYTES}")
        _, _, suite, cookie_bytes, session_id, key_id, cookie, public_key, sealed = (
            _INIT.unpack_from(datagram)
        )
        if suite not in SUITES:
            raise InvalidDatagramError(f"INIT with suite {suite}")
        if cookie_bytes not in (0, COOKIE_BYTES) or (not cookie_bytes and cookie != _NO_COOKIE):
            raise InvalidDatagramError(f"INIT with a cookie of {cookie_bytes} bytes")
        if not session_id:
            raise InvalidDatagramError("INIT with session id 0")
        return cls(
            Suite(suite), session_id, key_id, public_key, sealed, cookie if cookie_bytes else b""
        )

    @property
    def prologue(self) -> bytes:
        """The part that the handshake hashes besides public key and greeting: no cookie."""
        head = (INIT, VERSION, self.suite, 0, self.session_id, self.key_id)
        return _PROLOGUE.pack(*head)

    def without_cookie(self) -> "Init":
        """Return the INIT as first sent."""
        return replace(self, cookie=b"") if self.cookie else self


_PROLOGUE: Final = struct.Struct("<BBBBI16s")


@dataclass(frozen=True, slots=True)
class Accept:
    """The answer to an `Init`, its reply still sealed."""

    suite: Suite
    session_id: int
    """The initiator's."""
    public_key: bytes
    sealed: bytes

    def pack(self) -> bytes:
        """Return the datagram."""
        return _ACCEPT.pack(
            ACCEPT, VERSION, self.suite, 0, self.session_id, self.public_key, self.sealed
        )

    @classmethod
    def parse(cls, datagram: bytes | memoryview) -> "Accept":
        """Parse an ACCEPT; the handshake checks that it is authentic."""
        if len(datagram) != ACCEPT_BYTES:
            raise InvalidDatagramError(f"ACCEPT of {len(datagram)} bytes, not {ACCEPT_BYTES}")
        _, version, suite, reserved, session_id, public_key, sealed = _ACCEPT.unpack(datagram)
        if version != VERSION or suite not in SUITES or reserved:
            raise InvalidDatagramError(f"ACCEPT of version {version}, suite {suite}")
        return cls(Suite(suite), session_id, public_key, sealed)


def pack_retry(session_id: int, cookie: bytes) -> bytes:
    """Return a RETRY, which asks an initiator to repeat its INIT with a cookie."""
    return _RETRY_OR_RESET.pack(RETRY, b"", session_id, cookie)


def pack_reset(session_id: int, token: bytes) -> bytes:
    """Return a RESET, which says that there is no session with this id."""
    return _RETRY_OR_RESET.pack(RESET, b"", session_id, token)


def parse_retry_or_reset(datagram: bytes | memoryview) -> bytes:
    """Return the cookie of a RETRY or the token of a RESET."""
    if len(datagram) != RETRY_OR_RESET_BYTES:
        raise InvalidDatagramError(
            f"RETRY or RESET of {len(datagram)} bytes, not {RETRY_OR_RESET_BYTES}"
        )
    _, reserved, _, content = _RETRY_OR_RESET.unpack(datagram)
    if any(reserved):
        raise InvalidDatagramError("a reserved field of the RETRY or RESET is not 0")
    return bytes(content)


def pack_versions(session_id: int) -> bytes:
    """Return a VERSIONS, which lists the versions this side knows."""
    return _VERSIONS.pack(VERSIONS, 1, 0, session_id) + bytes([VERSION])


def parse_versions(datagram: bytes | memoryview) -> tuple[int, ...]:
    """Return the versions that the other side knows."""
    if len(datagram) < _VERSIONS.size + 1 or len(datagram) != _VERSIONS.size + datagram[1]:
        raise InvalidDatagramError(f"VERSIONS of {len(datagram)} bytes")
    versions = tuple(bytes(datagram[_VERSIONS.size :]))
    if VERSION in versions:
        raise InvalidDatagramError(f"VERSIONS names our own version {VERSION}")
    return versions


def session_id_of(datagram: bytes | memoryview) -> int:
    """Return the session id, which every packet holds at offset 4."""
    return int.from_bytes(datagram[4:8], "little")
