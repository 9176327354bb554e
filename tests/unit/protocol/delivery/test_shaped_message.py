"""A message in its packets: what comes out of them is what was put in, for every destination."""

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.delivery.shaped_message import (
    HEADERS_BYTES,
    ShapedMessage,
    fragment_bytes_of,
    packet_bytes,
)
from gradwire_protocol.limits import (
    DATAGRAM_BYTES_MAX,
    DATAGRAM_BYTES_MIN,
    FRAGMENT_BYTES_MAX,
    FRAGMENT_BYTES_MIN,
    MESSAGE_BYTES_MAX,
    TAG_BYTES,
)
from gradwire_protocol.security.checksum import Checksum
from gradwire_protocol.wire.frames import Data, parse_frames
from gradwire_protocol.wire.packets import SINGLE, TRANSPORT, TRANSPORT_HEADER
from support.fragments import fragment_of, fragments_of, message_of, packets_of

CHECKSUM = Checksum(b"secret")
SESSIONS = st.integers(1, 2**32 - 1)
NUMBERS = st.integers(0, 1000) | st.integers(2**32 - 70, 2**32 + 70) | st.integers(0, 2**64 - 100)
SIZES = st.sampled_from([FRAGMENT_BYTES_MIN, 1150, 1151, 1160, 1360, FRAGMENT_BYTES_MAX])


@st.composite
def messages(draw: st.DrawFn) -> ShapedMessage:
    """Draw messages, many of them of a whole number of fragments."""
    size = draw(SIZES)
    total = draw(st.integers(1, 40_000) | st.integers(1, 40).map(lambda n: n * size))
    return message_of(
        total,
        fragment_bytes=size,
        stream=draw(st.integers(0, 2**16 - 1)),
        number=draw(st.integers(0, 2**32 - 1)),
        kind=draw(st.integers(0, 2**16 - 1)),
    )


def empty_like(message: ShapedMessage) -> ShapedMessage:
    """Return a message of which nothing has come, in memory that was used before."""
    empty = ShapedMessage(
        message.stream, message.number, message.kind, message.total, message.fragment_bytes
    )
    empty.rows[:] = 0xFF
    return empty


def read(packet: bytes) -> tuple[int, int, Data]:
    """Return session id, packet number and fragment of an authentic packet."""
    frames = CHECKSUM.open(memoryview(packet))
    assert frames is not None
    packet_type, flags, reserved, session_id, number = TRANSPORT_HEADER.unpack_from(packet)
    assert (packet_type, flags, reserved) == (TRANSPORT, SINGLE, 0)
    [data] = parse_frames(frames)
    assert isinstance(data, Data)
    return session_id, number, data


# Sizes.


@given(
    datagram_bytes=st.integers(DATAGRAM_BYTES_MIN // 4, DATAGRAM_BYTES_MAX // 4).map(
        lambda words: 4 * words
    )
)
def test_a_full_fragment_fills_its_datagram(datagram_bytes: int) -> None:
    assert packet_bytes(fragment_bytes_of(datagram_bytes)) == datagram_bytes


@given(payload_bytes=st.integers(1, 9000))
def test_a_packet_has_whole_words_and_no_more_than_it_needs(payload_bytes: int) -> None:
    size = packet_bytes(payload_bytes)

    assert size % 4 == 0
    assert 0 <= size - HEADERS_BYTES - payload_bytes - TAG_BYTES < 4


@given(message=messages())
def test_the_bytes_of_packets_are_those_of_their_run(message: ShapedMessage) -> None:
    sizes = [message.size_of(index) for index in range(message.count)]

    assert sizes[:-1] == [message.stride] * (message.count - 1)
    assert sizes[-1] == message.last_bytes <= message.stride
    for first in range(0, message.count, 3):
        for stop in (first + 1, message.count):
            assert len(message.run(first, stop)) == sum(sizes[first:stop])
            assert message.bytes_between(first, stop) == sum(sizes[first:stop])


# Coming in and going out.


@given(payload=st.binary(min_size=1, max_size=5000), size=SIZES)
def test_a_message_has_the_payload_it_was_made_of(payload: bytes, size: int) -> None:
    message = ShapedMessage.of(1, 2, 3, payload, size)

    assert bytes(message.payload) == payload
    assert (message.stream, message.number, message.kind) == (1, 2, 3)
    assert message.total == len(payload)
    assert b"".join(bytes(data.payload) for data in fragments_of(message)) == payload


def test_a_payload_of_larger_items_is_taken_as_bytes() -> None:
    payload = memoryview(bytes(range(16))).cast("I")

    assert bytes(ShapedMessage.of(0, 0, 1, payload, 1160).payload) == bytes(range(16))


@given(message=messages(), shuffle=st.randoms(use_true_random=False))
def test_fragments_put_in_their_places_are_the_message(
    message: ShapedMessage, shuffle: Random
) -> None:
    copy = empty_like(message)
    datas = fragments_of(message)
    shuffle.shuffle(datas)

    for data in datas:
        copy.place_fragment(data)

    assert bytes(copy.payload) == bytes(message.payload)


@given(message=messages(), cuts=st.lists(st.integers(0, 40)))
def test_packets_put_in_their_places_are_the_message(
    message: ShapedMessage, cuts: list[int]
) -> None:
    copy = empty_like(message)
    CHECKSUM.seal_run(message, 0, message.count, 1, 0)
    stops = sorted({cut % message.count for cut in cuts} | {0, message.count - 1})

    for first, stop in pairwise(stops):
        copy.place_rows(first, message.rows[first:stop])
    copy.place_fragment(fragment_of(message, message.count - 1))

    assert bytes(copy.payload) == bytes(message.payload)


@given(message=messages(), session_id=SESSIONS, number=NUMBERS, data=st.data())
def test_every_packet_is_authentic_and_says_what_it_carries(
    message: ShapedMessage, session_id: int, number: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, message.count - 1))
    stop = data.draw(st.integers(first + 1, message.count))

    packets = packets_of(
        message, first, stop, session_id=session_id, number=number, sealing=CHECKSUM
    )

    assert [read(packet) for packet in packets] == [
        (session_id, number + i - first, fragment_of(message, i)) for i in range(first, stop)
    ]


@given(message=messages(), destinations=st.lists(st.tuples(SESSIONS, NUMBERS), max_size=3))
def test_a_message_that_came_in_goes_to_many_with_nothing_left_of_where_it_was_sent_before(
    message: ShapedMessage, destinations: list[tuple[int, int]]
) -> None:
    copy = empty_like(message)
    Checksum(b"another").seal_run(message, 0, message.count, 5, 6)
    if message.count > 1:
        copy.place_rows(0, message.rows[:-1])
    copy.place_fragment(fragment_of(message, message.count - 1))

    for session_id, number in destinations:
        packets = packets_of(
            copy, 0, copy.count, session_id=session_id, number=number, sealing=CHECKSUM
        )
        assert [read(packet)[:2] for packet in packets] == [
            (session_id, number + i) for i in range(copy.count)
        ]
        assert [read(packet)[2] for packet in packets] == fragments_of(message)


def test_the_largest_message_in_the_smallest_fragments_can_be_sent() -> None:
    message = message_of(MESSAGE_BYTES_MAX, fragment_bytes=FRAGMENT_BYTES_MIN)

    CHECKSUM.seal_run(message, 0, message.count, 1, 0)

    last = message.count - 1
    assert read(bytes(message.run(last, last + 1))) == (1, last, fragment_of(message, last))


# Cut anew.


@given(message=messages(), size=SIZES, new_shape=st.booleans())
def test_a_message_cut_anew_is_the_same_message_in_the_next_shape(
    message: ShapedMessage, size: int, new_shape: bool
) -> None:
    reshaped = message.reshape(size, new_shape=new_shape)

    assert bytes(reshaped.payload) == bytes(message.payload)
    assert reshaped.fragment_bytes == size
    assert (reshaped.stream, reshaped.number, reshaped.kind) == (
        message.stream, message.number, message.kind
    )  # fmt: skip
    assert reshaped.shape == message.shape + new_shape
    packets = packets_of(reshaped, 0, reshaped.count, session_id=1, number=0, sealing=CHECKSUM)
    assert [read(packet)[2] for packet in packets] == fragments_of(reshaped)


def test_a_message_is_cut_once_for_all_that_want_it_like_that() -> None:
    message = message_of(5000, fragment_bytes=1360)
    narrow = message.reshape(1160, new_shape=True)

    assert message.reshape(1160, new_shape=True) is narrow
    assert message.reshape(1160, new_shape=False) is not narrow
    assert message.reshape(1152, new_shape=False).fragment_bytes == 1152


# The end.


def test_what_is_being_sent_stays_what_it_is_when_its_message_is_gone() -> None:
    message = message_of(100_000)
    train = message.run(3, 20)
    payload = message.payload
    sent, held = bytes(train), bytes(payload)

    del message
    others = [message_of(100_000, seed=seed) for seed in range(1, 4)]

    assert bytes(train) == sent
    assert bytes(payload) == held
    assert all(bytes(other.payload) != held for other in others)
