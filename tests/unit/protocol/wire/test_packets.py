"""What is packed is parsed again as it was, and what could not have been packed is refused."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import InvalidDatagramError
from gradwire_protocol.crypto.keys import KEY_ID_BYTES, NAME_BYTES_MAX
from gradwire_protocol.crypto.suites import Suite
from gradwire_protocol.limits import (
    DATAGRAM_BYTES_MAX,
    DATAGRAM_BYTES_MIN,
    IDLE_TIMEOUT_SECONDS_MAX,
    RESET_DATAGRAM_BYTES_MIN,
    TAG_BYTES,
    WINDOW_BYTES_MIN,
)
from gradwire_protocol.wire.packets import (
    ACCEPT_BYTES,
    COOKIE_BYTES,
    INIT_BYTES,
    PUBLIC_KEY_BYTES,
    RETRY_OR_RESET_BYTES,
    TOKEN_BYTES,
    Accept,
    Greeting,
    Init,
    Reply,
    TransportLimits,
    pack_reset,
    pack_retry,
    pack_versions,
    parse_retry_or_reset,
    parse_versions,
    session_id_of,
)
from support.wording import naming

GREETING_BYTES = 88
REPLY_BYTES = 40


def exactly(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


SESSION_IDS = st.integers(1, 2**32 - 1)
SUITES = st.sampled_from(Suite)
COOKIES = exactly(COOKIE_BYTES)
LIMITS = st.builds(
    TransportLimits,
    st.integers(WINDOW_BYTES_MIN, 2**64 - 1),
    st.integers(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX),
    st.integers(1, int(IDLE_TIMEOUT_SECONDS_MAX) * 1000).map(lambda ms: ms / 1000),
)
NAMES = st.text(st.characters(codec="utf-8"), max_size=NAME_BYTES_MAX).filter(
    lambda name: len(name.encode()) <= NAME_BYTES_MAX
)
INITS = st.builds(
    Init,
    SUITES,
    SESSION_IDS,
    exactly(KEY_ID_BYTES),
    exactly(PUBLIC_KEY_BYTES),
    exactly(GREETING_BYTES + TAG_BYTES),
    st.just(b"") | COOKIES,
)
ACCEPTS = st.builds(
    Accept, SUITES, SESSION_IDS, exactly(PUBLIC_KEY_BYTES), exactly(REPLY_BYTES + TAG_BYTES)
)
GREETINGS = st.builds(Greeting, LIMITS, st.integers(0, 2**64 - 1), NAMES)
REPLIES = st.builds(Reply, SESSION_IDS, LIMITS, exactly(TOKEN_BYTES))

OUR_LIMITS = TransportLimits(2**24, 1400, 30.0)
LIMITS_BYTES = struct.pack("<QII", 2**24, 1400, 30_000)
INIT = Init(Suite.AES, 0x04030201, bytes(range(16)), bytes(range(32)), bytes(range(104)), b"c" * 16)
ACCEPT = Accept(Suite.CHACHA, 0x04030201, bytes(range(32)), bytes(range(56)))
GREETING = Greeting(OUR_LIMITS, 1, "name")
REPLY = Reply(7, OUR_LIMITS)


def changed(data: bytes, changes: dict[int, int]) -> bytes:
    copy = bytearray(data)
    for at, value in changes.items():
        copy[at] = value
    return bytes(copy)


# What is written is read.


@pytest.mark.parametrize(
    ("written", "size"),
    [(INITS, 1200), (ACCEPTS, 96), (GREETINGS, GREETING_BYTES), (REPLIES, REPLY_BYTES)],
)
@given(data=st.data())
def test_what_is_written_is_read(
    written: st.SearchStrategy[Init | Accept | Greeting | Reply], size: int, data: st.DataObject
) -> None:
    said = data.draw(written)
    packed = said.pack()

    assert len(packed) == size
    assert type(said).parse(packed) == said
    if isinstance(said, Init | Accept):
        assert session_id_of(packed) == said.session_id


@given(session_id=SESSION_IDS, content=COOKIES, pack=st.sampled_from([pack_retry, pack_reset]))
def test_cookie_and_token_are_read_as_they_were_written(
    session_id: int, content: bytes, pack: Callable[[int, bytes], bytes]
) -> None:
    datagram = pack(session_id, content)

    assert session_id_of(datagram) == session_id
    assert parse_retry_or_reset(memoryview(datagram)) == content


@given(content=COOKIES)
def test_no_answer_is_larger_than_what_asked_for_it(content: bytes) -> None:
    assert (INIT_BYTES, ACCEPT_BYTES, RETRY_OR_RESET_BYTES) == (1200, 96, 24)
    assert len(pack_versions(1)) == 9
    assert len(pack_retry(1, content)) == len(pack_reset(1, content)) == RETRY_OR_RESET_BYTES
    assert RETRY_OR_RESET_BYTES < RESET_DATAGRAM_BYTES_MIN, "two strangers do not go on for ever"


@given(init=INITS)
def test_what_the_handshake_hashes_is_the_beginning_with_the_cookie_length_as_0(
    init: Init,
) -> None:
    assert init.prologue == changed(init.pack()[:24], {3: 0})
    assert init.without_cookie().prologue == init.prologue


@given(init=INITS)
def test_an_init_without_its_cookie_is_as_it_was_sent_at_first(init: Init) -> None:
    first = init.without_cookie()

    assert first.pack() == changed(init.pack(), {3: 0} | dict.fromkeys(range(24, 40), 0))
    assert first.without_cookie() is first


# The wire.


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        (
            INIT,
            [b"\x10\1\1\x10\1\2\3\4", INIT.key_id, INIT.cookie, INIT.public_key, INIT.sealed,
             bytes(1024)],
        ),
        (ACCEPT, [b"\x11\1\2\0\1\2\3\4", ACCEPT.public_key, ACCEPT.sealed]),
        (
            Greeting(OUR_LIMITS, 0x0807060504030201, "jörg"),
            [LIMITS_BYTES, bytes(range(1, 9)), b"\x05j\xc3\xb6rg", bytes(58)],
        ),
        (
            Reply(0x04030201, OUR_LIMITS, b"t" * 16),
            [b"\1\2\3\4\0\0\0\0", LIMITS_BYTES, b"t" * 16],
        ),
    ],
)  # fmt: skip
def test_the_handshake_lies_on_the_wire_as_documented(
    said: Init | Accept | Greeting | Reply, parts: list[bytes]
) -> None:
    assert said.pack() == b"".join(parts)


def test_short_answers_lie_on_the_wire_as_documented() -> None:
    assert pack_versions(0x04030201) == bytes([0x13, 1, 0, 0, 1, 2, 3, 4, 1])
    assert pack_retry(0x04030201, b"c" * 16) == bytes([0x12, 0, 0, 0, 1, 2, 3, 4]) + b"c" * 16
    assert pack_reset(0x04030201, b"t" * 16) == bytes([0x14, 0, 0, 0, 1, 2, 3, 4]) + b"t" * 16


# What could not have been written.


@given(datagram=st.binary(max_size=200) | exactly(INIT_BYTES) | exactly(ACCEPT_BYTES))
def test_random_bytes_are_refused_or_could_have_been_written(datagram: bytes) -> None:
    for kind in (Init, Accept):
        try:
            packet = kind.parse(memoryview(datagram))
        except InvalidDatagramError:
            continue
        # What stands before the fields and behind them is not looked at.
        assert kind.parse(packet.pack()) == packet


@pytest.mark.parametrize(
    ("kind", "written", "fields"),
    [
        (Greeting, GREETINGS | exactly(GREETING_BYTES), (0, 87)),
        (Reply, REPLIES, (0, 39)),
        (Init, INITS, (2, 175)),
    ],
)
@given(data=st.data())
def test_what_is_read_with_changes_is_what_could_have_been_said_or_refused(
    kind: type[Greeting | Reply | Init],
    written: st.SearchStrategy[Greeting | Reply | Init | bytes],
    fields: tuple[int, int],
    data: st.DataObject,
) -> None:
    said = data.draw(written)
    changes = data.draw(st.dictionaries(st.integers(*fields), st.integers(0, 255)))
    packed = changed(said if isinstance(said, bytes) else said.pack(), changes)
    try:
        read = kind.parse(packed)
    except InvalidDatagramError:
        return

    assert read.pack() == packed


@given(datagram=st.binary(max_size=20))
def test_random_bytes_are_versions_or_refused(datagram: bytes) -> None:
    try:
        versions = parse_versions(datagram)
    except InvalidDatagramError:
        return

    assert versions == tuple(datagram[8:])
    assert len(versions) == datagram[1] > 0


@pytest.mark.parametrize(
    ("said", "changes", "named"),
    [
        (INIT, {2: 3}, ("INIT", "suite", 3)),
        (INIT, {3: 15}, ("INIT", "cookie", 15)),
        (INIT, {3: 17}, ("INIT", "cookie", 17)),
        (INIT, {3: 0}, ("INIT", "cookie", 0)),
        (INIT, {4: 0, 5: 0, 6: 0, 7: 0}, ("INIT", "session id", 0)),
        (ACCEPT, {1: 2}, ("ACCEPT", "version 2", "suite 2")),
        (ACCEPT, {2: 3}, ("ACCEPT", "version 1", "suite 3")),
        (ACCEPT, {3: 1}, ("ACCEPT", "version 1", "suite 2")),
        (GREETING, {3: 0}, ("window", 0, WINDOW_BYTES_MIN)),
        (GREETING, {8: 0xAF, 9: 0x04}, ("datagram", 1199)),
        (GREETING, {8: 0xC5, 9: 0x22}, ("datagram", 8901)),
        (GREETING, {12: 0, 13: 0}, ("idle timeout", "0 ms")),
        (GREETING, {12: 0x81, 13: 0xEE, 14: 0x36}, ("idle timeout", "3600001 ms")),
        (GREETING, {24: 64}, ("name", 64)),
        (GREETING, {24: 3}, ("name", 3)),
        (GREETING, {26: 0xC3}, ("name", "UTF-8")),
        (REPLY, {0: 0}, ("session id 0", "reserved 0")),
        (REPLY, {7: 1}, ("session id 7", "reserved 16777216")),
        (REPLY, {11: 0}, ("window", 0, WINDOW_BYTES_MIN)),
    ],
)
def test_what_makes_no_sense_is_refused(
    said: Init | Accept | Greeting | Reply, changes: dict[int, int], named: tuple[object, ...]
) -> None:
    assert type(said).parse(said.pack()) == said

    with pytest.raises(InvalidDatagramError, match=naming(*named)):
        type(said).parse(changed(said.pack(), changes))


@pytest.mark.parametrize(
    ("parse", "packed", "names"),
    [
        (Init.parse, INIT.pack(), ("INIT", 1200)),
        (Accept.parse, ACCEPT.pack(), ("ACCEPT", 96)),
        (parse_retry_or_reset, pack_reset(1, b"t" * 16), ("RETRY", "RESET", 24)),
    ],
)
def test_a_datagram_of_the_handshake_has_one_size(
    parse: Callable[[bytes], object], packed: bytes, names: tuple[object, ...]
) -> None:
    for wrong in (b"", packed[:-1], packed + b"\0"):
        with pytest.raises(InvalidDatagramError, match=naming(len(wrong), *names)):
            parse(wrong)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_short_answer_has_nothing_in_its_reserved_field(at: int) -> None:
    with pytest.raises(InvalidDatagramError, match=naming("reserved field")):
        parse_retry_or_reset(changed(pack_retry(1, b"c" * 16), {at: 1}))


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


def test_versions_with_our_own_among_them_contradict_themselves() -> None:
    with pytest.raises(InvalidDatagramError, match="our own version"):
        parse_versions(bytes([0x13, 2, 0, 0, 1, 2, 3, 4, 2, 1]))
