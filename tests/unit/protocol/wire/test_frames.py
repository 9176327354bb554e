"""Frames: what is packed is parsed again, and whatever else comes is a violation."""

import struct
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import CloseCode, ViolationError
from gradwire_protocol.limits import (
    ACK_RANGES_MAX,
    FRAGMENT_BYTES_MAX,
    FRAGMENT_BYTES_MIN,
    MESSAGE_BYTES_MAX,
)
from gradwire_protocol.wire.frames import (
    ACK_BYTES,
    DELAY_UNIT_SECONDS,
    RANGE_BYTES,
    SHAPES_MAX,
    Ack,
    Challenge,
    Close,
    Credit,
    Data,
    Frame,
    Ping,
    Response,
    pack_ack,
    pack_challenge,
    pack_close,
    pack_credit,
    pack_data,
    pack_ping,
    pack_response,
    parse_frames,
)
from support.acks import ack
from support.frames import pack
from support.wording import naming

U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TOKENS = st.binary(min_size=8, max_size=8)
PRINTABLE = st.characters(exclude_categories=["C", "Z"]).filter(str.isprintable) | st.just(" ")


@st.composite
def datas(draw: st.DrawFn) -> Data:
    """Draw fragments that stand somewhere in a message."""
    size = draw(st.integers(FRAGMENT_BYTES_MIN, FRAGMENT_BYTES_MAX))
    total = draw(st.integers(1, 60) | st.integers(1, MESSAGE_BYTES_MAX))
    count = -(-total // size)
    index = draw(st.integers(0, count - 1))
    length = min(size, total - index * size)
    payload = memoryview(bytes([index % 256]) * length)
    shape = draw(st.integers(0, SHAPES_MAX - 1))
    return Data(draw(U16), draw(U32), draw(U16), total, size, index, payload, shape)


@st.composite
def acks(draw: st.DrawFn) -> Ack:
    """Draw acknowledgements that their fields can express."""
    first_run = draw(st.integers(1, 100) | st.integers(1, 2**32))
    lengths = st.integers(1, 5) | st.integers(1, 2**16)
    rest = draw(st.lists(st.tuples(lengths, lengths), max_size=ACK_RANGES_MAX))
    needed = first_run + sum(gap + run for gap, run in rest)
    largest = draw(st.integers(needed - 1, needed + 10) | st.integers(needed - 1, 2**64 - 1))
    ranges = [(largest - first_run + 1, largest)]
    for gap, run in rest:
        last = ranges[-1][0] - gap - 1
        ranges.append((last - run + 1, last))
    return Ack(ranges, draw(U16) * DELAY_UNIT_SECONDS, draw(U64), draw(U32))


FRAMES: st.SearchStrategy[Frame] = st.one_of(
    datas(),
    acks(),
    st.just(Ping()),
    st.builds(Credit, U64),
    st.builds(Challenge, TOKENS),
    st.builds(Response, TOKENS),
    st.builds(Close, U16, st.text(PRINTABLE, max_size=60)),
)


def whole(payload: bytes) -> Data:
    """Return the only fragment of a message."""
    return Data(0, 0, 1, len(payload), FRAGMENT_BYTES_MIN, 0, memoryview(payload))


def header(flags: int, fragment_bytes: int, index: int, total: int) -> bytes:
    return struct.pack("<BBHIIIHH", 0x01, flags, fragment_bytes, 0, index, total, 0, 1)


def parse(packed: bytes) -> Sequence[Frame]:
    return parse_frames(memoryview(packed))


def is_a_packet(frames: Sequence[Frame]) -> bool:
    """Return whether frames may stand in one packet."""
    return sum(isinstance(frame, Ack) for frame in frames) <= 1


@given(frames=st.lists(FRAMES, max_size=5).filter(is_a_packet), padding=st.integers(0, 5))
def test_frames_are_read_as_they_were_written(frames: list[Frame], padding: int) -> None:
    packed = b"".join(map(pack, frames)) + bytes(padding)

    assert parse(packed) == frames


@given(packed=st.binary(max_size=100))
def test_random_bytes_raise_nothing_but_a_violation(packed: bytes) -> None:
    with suppress(ViolationError):
        parse(packed)


@given(frames=st.lists(FRAMES, min_size=1, max_size=3), data=st.data())
def test_damaged_frames_raise_nothing_but_a_violation(
    frames: list[Frame], data: st.DataObject
) -> None:
    damaged = bytearray(b"".join(map(pack, frames)))
    for _ in range(data.draw(st.integers(1, 3))):
        bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
        damaged[bit // 8] ^= 1 << bit % 8
    del damaged[data.draw(st.integers(0, len(damaged))) :]

    with suppress(ViolationError):
        parse(bytes(damaged))


@given(frame=FRAMES.filter(lambda frame: not isinstance(frame, Ping)), data=st.data())
def test_a_frame_that_is_cut_short_is_a_violation(frame: Frame, data: st.DataObject) -> None:
    packed = pack(frame)
    size = data.draw(st.integers(1, len(packed) - 1))

    with pytest.raises(ViolationError, match="cut short"):
        parse(packed[:size])


def test_frames_lie_on_the_wire_as_documented() -> None:
    frame = ack((90, 99), (80, 87), delay=800e-6, credit=5000, marked=3)

    data = Data(1, 2, 3, 4000, 1160, 3, memoryview(b"payload"), shape=5)

    assert pack_data(data) == (
        struct.pack("<BBHIIIHH", 0x01, 0x50, 1160, 2, 3, 4000, 1, 3) + b"payload"
    )
    assert pack_ack(frame) == struct.pack("<BBHIQQIHH", 0x02, 1, 100, 9, 99, 5000, 3, 1, 7)
    assert pack_ping() == b"\x03"
    assert pack_credit(5000) == struct.pack("<B7xQ", 0x04, 5000)
    assert pack_challenge(b"abcdefgh") == b"\x05" + bytes(7) + b"abcdefgh"
    assert pack_response(b"abcdefgh") == b"\x06" + bytes(7) + b"abcdefgh"
    assert pack_close(64, "bye") == struct.pack("<BBHI", 0x09, 3, 64, 0) + b"bye"


def test_a_fragment_is_a_view_of_its_datagram() -> None:
    datagram = pack_data(whole(b"payload"))

    [frame] = parse(datagram)

    assert isinstance(frame, Data)
    assert frame.payload.obj is datagram


LARGEST, LONGEST = 2**40, 2**32
FIRST = LARGEST - LONGEST + 1
MANY = [(n, n) for n in range(1000, 0, -10)]


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        pytest.param(ack(*MANY), ack(*MANY[: ACK_RANGES_MAX + 1]), id="its oldest ranges"),
        pytest.param(
            ack((100_000, 100_000), (34_462, 34_462), (5, 5)), ack((100_000, 100_000)), id="a gap"
        ),
        pytest.param(
            ack((100_000, 100_000), (30_000, 95_536), (5, 5)), ack((100_000, 100_000)), id="a run"
        ),
        pytest.param(
            ack((FIRST, LARGEST), (FIRST - 9, FIRST - 7)),
            ack((FIRST, LARGEST), (FIRST - 9, FIRST - 7)),
            id="nothing of the longest first run",
        ),
        pytest.param(
            ack((FIRST - 1, LARGEST), (FIRST - 9, FIRST - 7)),
            ack((FIRST, LARGEST)),
            id="what is beyond the longest first run",
        ),
        pytest.param(
            ack((0, 0), delay=60.0), ack((0, 0), delay=0xFFFF * DELAY_UNIT_SECONDS), id="a delay"
        ),
        pytest.param(ack((0, 0), marked=2**32), ack((0, 0), marked=2**32 - 1), id="marks"),
    ],
)
def test_an_acknowledgement_leaves_out_what_it_cannot_express(said: Ack, heard: Ack) -> None:
    packed = pack_ack(said)

    assert parse(packed) == [heard]
    assert len(packed) == ACK_BYTES + (len(heard.ranges) - 1) * RANGE_BYTES


@given(start=st.text(PRINTABLE, max_size=5), rest=PRINTABLE)
def test_a_reason_too_long_for_its_field_is_cut_between_characters(start: str, rest: str) -> None:
    reason = start + 300 * rest

    [close] = parse(pack_close(64, reason))

    assert isinstance(close, Close)
    assert reason.startswith(close.reason)
    assert 252 <= len(close.reason.encode()) <= 255


@given(reason=st.text(st.characters(codec="utf-8"), max_size=60))
def test_what_would_not_print_in_a_reason_is_replaced(reason: str) -> None:
    printed = "".join(c if c.isprintable() else "?" for c in reason)

    assert parse(pack_close(64, reason)) == [Close(64, printed)]


def test_a_reason_that_is_no_text_is_still_read() -> None:
    packed = struct.pack("<BBHI", 0x09, 3, 64, 0) + b"\xffno"

    assert parse(packed) == [Close(64, "\N{REPLACEMENT CHARACTER}no")]


@given(before=st.lists(FRAMES, max_size=2), between=st.lists(FRAMES, max_size=2), ack=acks())
def test_a_second_acknowledgement_in_a_packet_is_a_violation(
    before: list[Frame], between: list[Frame], ack: Ack
) -> None:
    packed = b"".join(map(pack, [*before, ack, *between, ack]))

    with pytest.raises(ViolationError, match=naming("two acknowledgements")) as violation:
        parse(packed)

    assert violation.value.code == CloseCode.VIOLATION


@pytest.mark.parametrize(
    "packed",
    [
        pack_credit(5000),
        pack_challenge(b"abcdefgh"),
        pack_response(b"abcdefgh"),
    ],
    ids=["CREDIT", "CHALLENGE", "RESPONSE"],
)
@given(offset=st.integers(1, 7), value=st.integers(1, 255))
def test_a_reserved_field_that_is_not_0_is_a_violation(
    packed: bytes, offset: int, value: int
) -> None:
    damaged = packed[:offset] + bytes([value]) + packed[offset + 1 :]

    with pytest.raises(ViolationError, match=naming("reserved field")) as violation:
        parse(damaged)

    assert violation.value.code == CloseCode.VIOLATION


@pytest.mark.parametrize(
    ("packed", "named"),
    [
        (b"\x07", ("0x07",)),
        (b"\x08" + bytes(7), ("0x08",)),
        (b"\xff", ("0xff",)),
        (b"\x03\x00\x00\x01", ("padding",)),
        (
            header(0, FRAGMENT_BYTES_MIN - 1, 0, 1) + b"x",
            ("fragments", FRAGMENT_BYTES_MIN - 1, 1148, 8848),
        ),
        (
            header(0, FRAGMENT_BYTES_MAX + 1, 0, 1) + b"x",
            ("fragments", FRAGMENT_BYTES_MAX + 1, 1148, 8848),
        ),
        (header(0, 1160, 0, 0), ("message", 0, 1, MESSAGE_BYTES_MAX)),
        (
            header(0, 1160, 0, MESSAGE_BYTES_MAX + 1) + bytes(1160),
            ("message", MESSAGE_BYTES_MAX + 1, 1, MESSAGE_BYTES_MAX),
        ),
        (
            header(0, 1160, 2, 2320) + bytes(1160),
            ("fragment 2", 2320, 1160, "flags 0"),
        ),
        (header(0x01, 1160, 0, 1) + b"x", ("fragment 0", 1, 1160, "flags 1")),
        (header(0x02, 1160, 0, 1) + b"x", ("fragment 0", 1, 1160, "flags 2")),
        (header(0x04, 1160, 0, 1) + b"x", ("fragment 0", 1, 1160, "flags 4")),
        (header(0x08, 1160, 0, 1) + b"x", ("fragment 0", 1, 1160, "flags 8")),
        (header(0, 1160, 1, 1163) + b"ab", ("fragment 1", 1163, "short")),
        (header(0, 1160, 0, 9)[:-1], ("0x01", "short")),
        (
            struct.pack("<BBHIQQI", 0x02, 65, 0, 0, 1000, 0, 0) + bytes(65 * 4),
            ("acknowledgement", 65),
        ),
        (
            struct.pack("<BBHIQQI", 0x02, 1, 0, 0, 1000, 0, 0),
            ("acknowledgement", 1, "short"),
        ),
        (struct.pack("<BBHIQQI", 0x02, 0, 0, 6, 5, 0, 0), ("acknowledgement", "below", 0)),
        (
            struct.pack("<BBHIQQIHH", 0x02, 1, 0, 0, 2, 0, 0, 1, 0),
            ("acknowledgement", "below", 0),
        ),
        (struct.pack("<BBHI", 0x09, 4, 0, 0) + b"bye", ("close", "short")),
        (struct.pack("<BBHI", 0x09, 3, 0, 1) + b"bye", ("reserved field",)),
        (pack_credit(1)[:-1], ("0x04", "short")),
    ],
)
def test_a_violation_names_value_and_limit(packed: bytes, named: tuple[object, ...]) -> None:
    with pytest.raises(ViolationError, match=naming(*named)) as violation:
        parse(packed)

    assert violation.value.code == CloseCode.VIOLATION
