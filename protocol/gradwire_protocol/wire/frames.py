"""Frames: the contents of the packets of a connection, one after the other.

Integers are unsigned and little-endian; the first byte is the type.

::

    PADDING 0x00    zeros up to the end of the packet

    DATA 0x01       20 bytes and the payload: a fragment of a message
    1       1      flags            bits 4 to 7: the shape, see below; the others are 0
    2       2      fragment bytes   p: payload of every fragment of this message except the last
    4       4      number           of the message in its stream
    8       4      index            i: the payload begins at byte i p of the message
    12      4      total            length of the message, at most `limits.MESSAGE_BYTES_MAX`
    16      2      stream           see `messages`
    18      2      kind             what the message is; opaque to the transport
    20      ...    payload          p bytes, or what is left of the message

                    All fragments of a message have one p. If the path can no longer carry it, the
                    sender cuts the message again from fragment 0 on and uses the next shape, 0 to
                    15; the receiver then forgets the fragments of earlier shapes.

    ACK 0x02        28 + 4 n bytes; at most one in a packet
    1       1      n                further ranges, at most `limits.ACK_RANGES_MAX`
    2       2      delay            from receiving `largest` to sending this, in units of 8 us
    4       4      first run        received packets up to `largest` without a gap, less 1
    8       8      largest          highest packet number received
    16      8      credit           total message bytes that may be declared, see CREDIT
    24      4      marked           packets received with the ECN mark "congestion experienced",
                                    2^32 - 1 at most
    28      4 n    ranges           newest first: u16 packets missing less 1, u16 received less 1

    PING 0x03       1 byte; asks for an acknowledgement

    CREDIT 0x04     16 bytes
    1       7      reserved         0
    8       8      credit           cumulative; a value below an earlier one is ignored

    CHALLENGE 0x05, RESPONSE 0x06   16 bytes
    1       7      reserved         0
    8       8      data             random; a response repeats the challenge's

    CLOSE 0x09      8 bytes and the reason
    1       1      length           of the reason
    2       2      code             a `CloseCode`, or any number that the application chose
    4       4      reserved         0
    8       ...    reason           UTF-8

A frame asks for an acknowledgement unless it is PADDING, ACK or CLOSE. 0x07 and 0x08 are reserved
for messages given up half-way. A frame of an unknown type, of a wrong length or with a reserved
field that is not 0 is a violation, as is a second ACK in a packet: the connection is closed. One
ACK can name every packet sent and a packet has room for dozens, so the limit of one bounds their
cost.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from gradwire_protocol.errors import ViolationError
from gradwire_protocol.limits import (
    ACK_RANGES_MAX,
    DATA_HEADER_BYTES,
    FRAGMENT_BYTES_MAX,
    FRAGMENT_BYTES_MIN,
    MESSAGE_BYTES_MAX,
    REASON_BYTES_MAX,
)

DATA_FLAGS_UNUSED: Final = 0x0F
SHAPES_MAX: Final = 16
"""Most times that a message may be cut, the first included."""

PADDING: Final = 0x00
DATA: Final = 0x01
ACK: Final = 0x02
PING: Final = 0x03
CREDIT: Final = 0x04
CHALLENGE: Final = 0x05
RESPONSE: Final = 0x06
CLOSE: Final = 0x09

DATA_HEADER: Final = struct.Struct("<BBHIIIHH")
_ACK: Final = struct.Struct("<BBHIQQI")
_NUMBER: Final = struct.Struct("<B7sQ")
_TOKEN: Final = struct.Struct("<B7s8s")
_CLOSE: Final = struct.Struct("<BBH4s")

ACK_BYTES: Final = _ACK.size
RANGE_BYTES: Final = 4
CREDIT_BYTES: Final = _NUMBER.size
TOKEN_BYTES: Final = _TOKEN.size
DELAY_UNIT_SECONDS: Final = 8e-6
U16_MAX: Final = 2**16 - 1
U32_MAX: Final = 2**32 - 1

assert DATA_HEADER.size == DATA_HEADER_BYTES


class CloseCode(IntEnum):
    """The transport's reason for the end of a connection. Applications use codes from 64 on."""

    NONE = 0
    """No reason given."""
    VIOLATION = 1
    """The peer broke a rule of the transport."""
    FLOW_CONTROL = 2
    """The peer declared more message bytes than its credit."""
    IDLE = 3
    """The peer was silent for the idle timeout; never sent, only reported."""
    UNREACHABLE = 4
    """The INIT was not answered; never sent, only reported."""
    VERSION = 5
    """No version in common; never sent, only reported."""
    INVALID_MESSAGE = 6
    """The peer sent an application message that breaks its schema."""
    STALLED = 7
    """A message made no progress, although the peer answers."""
    FULL = 8
    """The peer has reached its limit of connections."""
    LOST = 9
    """The TCP connection below was lost; never sent, only reported."""
    RESET = 10
    """The peer no longer knows this connection; never sent, only reported."""
    DENIED = 11
    """The peer's key is no longer accepted."""
    REPLACED = 12
    """Another peer connected with the same key."""
    FORGERIES = 13
    """The limit of forged packets was reached."""


@dataclass(slots=True)  # not frozen: freezing would cost a microsecond for each
class Data:
    """A fragment of a message. `payload` is a view into the datagram."""

    stream: int
    number: int
    kind: int
    total: int
    fragment_bytes: int
    index: int
    payload: memoryview
    shape: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """Received packet numbers: (first, last) of each run, both inclusive, newest run first."""

    ranges: Sequence[tuple[int, int]]
    delay_seconds: float
    credit: int
    marked: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for an acknowledgement."""


@dataclass(frozen=True, slots=True)
class Credit:
    """Total message bytes that may be declared."""

    credit: int


@dataclass(frozen=True, slots=True)
class Challenge:
    """Asks the receiving address for a `Response`."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """Repeats the data of a `Challenge`."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Ends the connection."""

    code: int
    reason: str


Frame: TypeAlias = Data | Ack | Ping | Credit | Challenge | Response | Close


def pack_data(data: Data) -> bytes:
    """Return a DATA frame."""
    return (
        DATA_HEADER.pack(
            DATA,
            data.shape << 4,
            data.fragment_bytes,
            data.number,
            data.index,
            data.total,
            data.stream,
            data.kind,
        )
        + data.payload
    )


def pack_ack(ack: Ack) -> bytes:
    """Return an ACK frame; ranges beyond what its fields can express are left out, oldest first."""
    first, last = ack.ranges[0]
    packed = bytearray()
    rest = ack.ranges[1 : ACK_RANGES_MAX + 1] if last - first <= U32_MAX else ()
    for start, stop in rest:
        gap, run = first - stop - 1, stop - start + 1
        if gap > U16_MAX + 1 or run > U16_MAX + 1:
            break
        packed += struct.pack("<HH", gap - 1, run - 1)
        first = start
    return (
        _ACK.pack(
            ACK,
            len(packed) // RANGE_BYTES,
            min(round(ack.delay_seconds / DELAY_UNIT_SECONDS), U16_MAX),
            min(last - ack.ranges[0][0], U32_MAX),
            last,
            ack.credit,
            min(ack.marked, U32_MAX),
        )
        + packed
    )


def pack_ping() -> bytes:
    """Return a PING frame."""
    return bytes([PING])


def pack_credit(credit: int) -> bytes:
    """Return a CREDIT frame."""
    return _NUMBER.pack(CREDIT, b"", credit)


def pack_challenge(data: bytes) -> bytes:
    """Return a CHALLENGE frame."""
    return _TOKEN.pack(CHALLENGE, b"", data)


def pack_response(data: bytes) -> bytes:
    """Return a RESPONSE frame."""
    return _TOKEN.pack(RESPONSE, b"", data)


def pack_close(code: int, reason: str) -> bytes:
    """Return a CLOSE frame; a longer reason is cut at the limit."""
    encoded = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore").encode()
    return _CLOSE.pack(CLOSE, len(encoded), code, b"") + encoded


def parse_frames(view: memoryview) -> list[Frame]:
    """Parse all frames of an authentic packet.

    Raises
    ------
    ViolationError
        If a frame breaks the format; no frame of the packet may then be used.
    """
    frames: list[Frame] = []
    at = 0
    while at < len(view):
        kind = view[at]
        if kind == PADDING:
            if any(view[at:]):
                raise ViolationError("the padding is not zero")
            break
        parse = _PARSERS.get(kind)
        if parse is None:
            raise ViolationError(f"unknown frame type {kind:#04x}")
        try:
            frame, at = parse(view, at)
        except struct.error:
            raise ViolationError(f"frame of type {kind:#04x} is cut short") from None
        if kind == ACK and any(isinstance(earlier, Ack) for earlier in frames):
            raise ViolationError("two acknowledgements in one packet")
        frames.append(frame)
    return frames


def check_data(flags: int, fragment_bytes: int, index: int, total: int) -> int:
    """Check the fields of a DATA header; return the length of its payload.

    Raises
    ------
    ViolationError
        If the fields do not fit together or exceed a limit.
    """
    if not FRAGMENT_BYTES_MIN <= fragment_bytes <= FRAGMENT_BYTES_MAX:
        raise ViolationError(
            f"fragments of {fragment_bytes} bytes; the limits are {FRAGMENT_BYTES_MIN} to "
            f"{FRAGMENT_BYTES_MAX}"
        )
    if not 1 <= total <= MESSAGE_BYTES_MAX:
        raise ViolationError(f"message of {total} bytes; the limits are 1 to {MESSAGE_BYTES_MAX}")
    fragments = -(-total // fragment_bytes)
    if flags & DATA_FLAGS_UNUSED or index >= fragments:
        raise ViolationError(
            f"fragment {index} with flags {flags} does not fit a message of {total} bytes in "
            f"fragments of {fragment_bytes}"
        )
    return min(fragment_bytes, total - index * fragment_bytes)


def _parse_data(view: memoryview, at: int) -> tuple[Data, int]:
    _, flags, fragment_bytes, number, index, total, stream, kind = DATA_HEADER.unpack_from(view, at)
    start = at + DATA_HEADER_BYTES
    end = start + check_data(flags, fragment_bytes, index, total)
    if end > len(view):
        raise ViolationError(f"fragment {index} of {total} bytes is cut short")
    return Data(
        stream,
        number,
        kind,
        total,
        fragment_bytes,
        index,
        view[start:end],
        flags >> 4,
    ), end


def _parse_ack(view: memoryview, at: int) -> tuple[Ack, int]:
    _, n, delay, first_run, largest, credit, marked = _ACK.unpack_from(view, at)
    at += ACK_BYTES
    end = at + RANGE_BYTES * n
    if n > ACK_RANGES_MAX or end > len(view):
        raise ViolationError(
            f"acknowledgement of {n} ranges is cut short or above the limit of {ACK_RANGES_MAX}"
        )
    first = largest - first_run
    ranges = [(first, largest)]
    for gap, run in struct.iter_unpack("<HH", view[at:end]):
        last = first - gap - 2
        first = last - run
        ranges.append((first, last))
    if first < 0:
        raise ViolationError("acknowledgement of packets below number 0")
    return Ack(ranges, delay * DELAY_UNIT_SECONDS, credit, marked), end


def _check_reserved(reserved: bytes) -> None:
    if any(reserved):
        raise ViolationError("a reserved field is not 0")


def _parse_ping(view: memoryview, at: int) -> tuple[Ping, int]:
    return Ping(), at + 1


def _parse_credit(view: memoryview, at: int) -> tuple[Credit, int]:
    _, reserved, credit = _NUMBER.unpack_from(view, at)
    _check_reserved(reserved)
    return Credit(credit), at + CREDIT_BYTES


def _parse_token(view: memoryview, at: int) -> tuple[Challenge | Response, int]:
    kind, reserved, data = _TOKEN.unpack_from(view, at)
    _check_reserved(reserved)
    return Challenge(data) if kind == CHALLENGE else Response(data), at + TOKEN_BYTES


def _parse_close(view: memoryview, at: int) -> tuple[Close, int]:
    _, length, code, reserved = _CLOSE.unpack_from(view, at)
    start = at + _CLOSE.size
    end = start + length
    _check_reserved(reserved)
    if end > len(view):
        raise ViolationError("the close frame is cut short")
    reason = bytes(view[start:end]).decode(errors="replace")
    # The reason ends up in logs and error messages.
    return Close(code, "".join(c if c.isprintable() else "?" for c in reason)), end


_PARSERS: Final[dict[int, Callable[[memoryview, int], tuple[Frame, int]]]] = {
    DATA: _parse_data,
    ACK: _parse_ack,
    PING: _parse_ping,
    CREDIT: _parse_credit,
    CHALLENGE: _parse_token,
    RESPONSE: _parse_token,
    CLOSE: _parse_close,
}
