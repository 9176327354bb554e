"""INIT, ACCEPT and VERSIONS: what is packed is parsed again, and nothing else is."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import InvalidDatagramError
from gradwire_protocol.limits import (
    DATAGRAM_BYTES_MAX,
    DATAGRAM_BYTES_MIN,
    IDLE_TIMEOUT_SECONDS_MAX,
    WINDOW_BYTES_MIN,
)
from gradwire_protocol.packets import (
    ACCEPT_BYTES,
    INIT_BYTES,
    Accept,
    Init,
    TransportLimits,
    pack_versions,
    parse_versions,
    session_id_of,
)

SESSION_IDS = st.integers(1, 2**32 - 1)
NONCES = st.binary(min_size=32, max_size=32)
LIMITS = st.builds(
    TransportLimits,
    st.integers(WINDOW_BYTES_MIN, 2**64 - 1),
    st.integers(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX),
    st.integers(1, int(IDLE_TIMEOUT_SECONDS_MAX) * 1000).map(lambda ms: ms / 1000),
)
INITS = st.builds(Init, SESSION_IDS, NONCES, LIMITS)
ACCEPTS = st.builds(Accept, SESSION_IDS, SESSION_IDS, NONCES, LIMITS)

INIT = Init(0x04030201, bytes(range(32)), TransportLimits(2**24, 1400, 30.0))
ACCEPT = Accept(0x04030201, 0x0D0C0B0A, bytes(range(32)), INIT.limits)


def init_with(changes: dict[int, int]) -> bytes:
    """Return an INIT with some of its bytes replaced and a checksum that matches."""
    body = bytearray(INIT.pack()[:88])
    for at, value in changes.items():
        body[at] = value
    return bytes(body + struct.pack("<I", zlib.crc32(body))).ljust(INIT_BYTES, b"\0")


def accept_with(changes: dict[int, int]) -> bytes:
    """Return an ACCEPT of `INIT` with some of its bytes replaced and a checksum that matches."""
    body = bytearray(ACCEPT.pack(INIT.pack())[:64])
    for at, value in changes.items():
        body[at] = value
    tag = zlib.crc32(body, zlib.crc32(INIT.pack()[:88]))
    return bytes(body) + struct.pack("<I12x", tag)


@given(init=INITS)
def test_an_init_is_read_as_it_was_written(init: Init) -> None:
    assert Init.parse(init.pack()) == init
    assert session_id_of(init.pack()) == init.session_id


@given(init=INITS, accept=ACCEPTS)
def test_an_accept_is_read_as_it_was_written(init: Init, accept: Accept) -> None:
    datagram = accept.pack(init.pack())

    assert Accept.parse(datagram, init.pack()) == accept
    assert session_id_of(datagram) == accept.initiator_session_id


@given(init=INITS, accept=ACCEPTS)
def test_no_answer_is_larger_than_what_asked_for_it(init: Init, accept: Accept) -> None:
    asked = init.pack()

    assert len(asked) == INIT_BYTES == 1200
    assert len(accept.pack(asked)) == ACCEPT_BYTES == 80
    assert len(pack_versions(init.session_id)) == 9


def test_an_init_lies_on_the_wire_as_documented() -> None:
    datagram = INIT.pack()

    limits = struct.pack("<QII", 2**24, 1400, 30_000)
    assert datagram[:8] == bytes([0x10, 1, 0, 0, 1, 2, 3, 4])
    assert datagram[8:40] == bytes(32)
    assert datagram[40:72] == INIT.nonce
    assert datagram[72:88] == limits
    assert datagram[88:92] == struct.pack("<I", zlib.crc32(datagram[:88]))
    assert datagram[92:] == bytes(1108)


def test_an_accept_lies_on_the_wire_as_documented() -> None:
    datagram = ACCEPT.pack(INIT.pack())

    tag = zlib.crc32(INIT.pack()[:88] + datagram[:64])
    assert datagram[:16] == bytes([0x11, 1, 0, 0, 1, 2, 3, 4, 0xA, 0xB, 0xC, 0xD, 0, 0, 0, 0])
    assert datagram[16:48] == ACCEPT.nonce
    assert datagram[48:64] == struct.pack("<QII", 2**24, 1400, 30_000)
    assert datagram[64:] == struct.pack("<I12x", tag)


def test_versions_lie_on_the_wire_as_documented() -> None:
    assert pack_versions(0x04030201) == bytes([0x13, 1, 0, 0, 1, 2, 3, 4, 1])


@given(datagram=st.binary(max_size=200) | st.binary(min_size=INIT_BYTES, max_size=INIT_BYTES))
def test_random_bytes_are_no_handshake(datagram: bytes) -> None:
    with pytest.raises(InvalidDatagramError):
        Init.parse(datagram)
    with pytest.raises(InvalidDatagramError):
        Accept.parse(datagram, INIT.pack())


@given(datagram=st.binary(max_size=20))
def test_random_bytes_are_versions_or_refused(datagram: bytes) -> None:
    try:
        versions = parse_versions(datagram)
    except InvalidDatagramError:
        return

    assert versions == tuple(datagram[8:])
    assert len(versions) == datagram[1] > 0


@given(changes=st.dictionaries(st.integers(2, 87), st.integers(0, 255), max_size=8))
def test_whatever_an_init_says_is_what_one_could_have_written_or_refused(
    changes: dict[int, int],
) -> None:
    datagram = init_with(changes)
    try:
        init = Init.parse(memoryview(datagram))
    except InvalidDatagramError:
        return

    assert init.pack() == datagram


@given(changes=st.dictionaries(st.integers(0, 63), st.integers(0, 255), max_size=8))
def test_whatever_an_accept_says_is_taken_or_refused(changes: dict[int, int]) -> None:
    datagram = accept_with(changes)
    try:
        accept = Accept.parse(memoryview(datagram), INIT.pack())
    except InvalidDatagramError:
        return

    assert accept.session_id > 0
    assert accept.limits.pack() == datagram[48:64]


@given(init=INITS, bit=st.integers(0, 8 * 104 - 1))
def test_a_damaged_init_is_refused(init: Init, bit: int) -> None:
    damaged = bytearray(init.pack())
    damaged[bit // 8] ^= 1 << bit % 8

    with pytest.raises(InvalidDatagramError):
        Init.parse(bytes(damaged))


@given(init=INITS, accept=ACCEPTS, bit=st.integers(0, 8 * ACCEPT_BYTES - 1))
def test_a_damaged_accept_is_refused(init: Init, accept: Accept, bit: int) -> None:
    damaged = bytearray(accept.pack(init.pack()))
    damaged[bit // 8] ^= 1 << bit % 8

    with pytest.raises(InvalidDatagramError):
        Accept.parse(bytes(damaged), init.pack())


@given(init=INITS, other=INITS, accept=ACCEPTS)
def test_an_accept_answers_one_init_only(init: Init, other: Init, accept: Accept) -> None:
    datagram = accept.pack(init.pack())

    if other != init:
        with pytest.raises(InvalidDatagramError, match="the checksum does not match"):
            Accept.parse(datagram, other.pack())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({2: 1}, "INIT with suite 1"),
        ({3: 16}, "INIT with suite 0"),
        ({8: 1}, "INIT with suite 0"),
        ({39: 1}, "INIT with suite 0"),
        ({4: 0, 5: 0, 6: 0, 7: 0}, "INIT with session id 0"),
        ({75: 0}, f"window of 0 bytes, below {WINDOW_BYTES_MIN}"),
        ({80: 0xAF, 81: 0x04}, "largest datagram of 1199 bytes"),
        ({80: 0xC5, 81: 0x22}, "largest datagram of 8901 bytes"),
        ({84: 0, 85: 0}, "idle timeout of 0 ms"),
        ({84: 0x81, 85: 0xEE, 86: 0x36}, "idle timeout of 3600001 ms"),
    ],
)
def test_an_init_that_makes_no_sense_is_refused(changes: dict[int, int], says: str) -> None:
    assert Init.parse(init_with({})) == INIT

    with pytest.raises(InvalidDatagramError, match=says):
        Init.parse(init_with(changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({1: 2}, "ACCEPT of version 2, suite 0"),
        ({2: 1}, "ACCEPT of version 1, suite 1"),
        ({8: 0, 9: 0, 10: 0, 11: 0}, "ACCEPT of version 1, suite 0"),
        ({51: 0}, f"window of 0 bytes, below {WINDOW_BYTES_MIN}"),
    ],
)
def test_an_accept_that_makes_no_sense_is_refused(changes: dict[int, int], says: str) -> None:
    assert Accept.parse(accept_with({}), INIT.pack()) == ACCEPT

    with pytest.raises(InvalidDatagramError, match=says):
        Accept.parse(accept_with(changes), INIT.pack())


@pytest.mark.parametrize("size", [INIT_BYTES - 1, INIT_BYTES + 1])
def test_an_init_has_one_size(size: int) -> None:
    with pytest.raises(InvalidDatagramError, match=f"INIT of {size} bytes, not 1200"):
        Init.parse(INIT.pack().ljust(size, b"\0")[:size])


@pytest.mark.parametrize("size", [ACCEPT_BYTES - 1, ACCEPT_BYTES + 1])
def test_an_accept_has_one_size(size: int) -> None:
    with pytest.raises(InvalidDatagramError, match=f"ACCEPT of {size} bytes, not 80"):
        Accept.parse(ACCEPT.pack(INIT.pack()).ljust(size, b"\0")[:size], INIT.pack())


@pytest.mark.parametrize(
    "datagram",
    [
        pytest.param(bytes([0x13, 0, 0, 0, 1, 2, 3, 4]), id="none"),
        pytest.param(bytes([0x13, 2, 0, 0, 1, 2, 3, 4, 2]), id="fewer than announced"),
        pytest.param(bytes([0x13, 1, 0, 0, 1, 2, 3, 4, 2, 3]), id="more than announced"),
        pytest.param(bytes([0x13, 1, 0]), id="cut short"),
    ],
)
def test_versions_that_are_not_as_many_as_announced_are_refused(datagram: bytes) -> None:
    with pytest.raises(InvalidDatagramError, match=f"VERSIONS of {len(datagram)} bytes"):
        parse_versions(datagram)


def test_versions_name_what_the_other_side_knows() -> None:
    assert parse_versions(bytes([0x13, 2, 0, 0, 1, 2, 3, 4, 2, 3])) == (2, 3)


def test_versions_with_our_own_among_them_contradict_themselves() -> None:
    with pytest.raises(InvalidDatagramError, match="our own version"):
        parse_versions(bytes([0x13, 2, 0, 0, 1, 2, 3, 4, 2, 1]))
