"""Suite 0: every accident is found, and another connection's packets are strangers."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.limits import DATAGRAM_BYTES_MAX, PACKET_HEADER_BYTES
from gradwire_protocol.protection import (
    CHECKSUM_BYTES,
    WEIGHTS,
    WORD_BYTES,
    Checksum,
    checksums,
    weighted_sum,
)

PACKETS = st.binary(min_size=PACKET_HEADER_BYTES, max_size=100)
WORDS = st.integers(0, 2**32 - 1)


def sealed(packet: bytes, secret: bytes = b"secret") -> bytes:
    """Return the datagram of a packet."""
    return bytes(Checksum(secret).seal(bytearray(packet)))


def opened(datagram: bytes, secret: bytes = b"secret") -> bytes | None:
    """Return the frames of a datagram; None where it is not authentic."""
    frames = Checksum(secret).open(memoryview(datagram))
    return None if frames is None else bytes(frames)


@given(secret=st.binary(max_size=65), packet=PACKETS)
def test_what_was_sealed_is_opened_with_zeros_up_to_a_whole_word(
    secret: bytes, packet: bytes
) -> None:
    padded = packet + bytes(-len(packet) % WORD_BYTES)

    datagram = sealed(packet, secret)

    assert len(datagram) == len(padded) + Checksum(secret).overhead
    assert opened(datagram, secret) == padded[PACKET_HEADER_BYTES:]


def test_the_weighted_sum_of_a_packet_and_its_tag_is_what_the_secret_says() -> None:
    datagram = sealed(bytes(range(20)))
    words = struct.unpack("<6I", datagram)

    plain = sum(word * (2 * i + 1) * 0x9E3779B1 for i, word in enumerate(words[:5])) + words[5]

    assert plain % 2**32 == Checksum(b"secret").start


def test_every_place_in_a_packet_has_an_odd_weight_of_its_own() -> None:
    assert len(WEIGHTS) == DATAGRAM_BYTES_MAX // WORD_BYTES == len(set(WEIGHTS.tolist()))
    assert (WEIGHTS % 2 == 1).all()


@given(packet=PACKETS, data=st.data())
def test_a_packet_with_one_word_changed_is_not_opened(packet: bytes, data: st.DataObject) -> None:
    datagram = sealed(packet)
    at = WORD_BYTES * data.draw(st.integers(0, len(datagram) // WORD_BYTES - 1))
    word = data.draw(WORDS).to_bytes(WORD_BYTES, "little")
    damaged = datagram[:at] + word + datagram[at + WORD_BYTES :]

    assert (opened(damaged) is None) == (damaged != datagram)


@given(packet=st.lists(WORDS, min_size=4, max_size=30), data=st.data())
def test_a_packet_with_two_words_in_each_others_place_is_not_opened(
    packet: list[int], data: st.DataObject
) -> None:
    """Unless they differ in their highest 12 bits only: their sums may be equal then."""
    places = st.integers(0, len(packet) - 1)
    one, other = data.draw(places), data.draw(places)
    datagram = sealed(struct.pack(f"<{len(packet)}I", *packet))
    words = list(struct.unpack(f"<{len(packet) + 1}I", datagram))
    words[one], words[other] = words[other], words[one]

    if (words[one] - words[other]) % 2**20:
        assert opened(struct.pack(f"<{len(words)}I", *words)) is None


@given(packet=PACKETS, data=st.data())
def test_a_truncated_packet_is_not_opened(packet: bytes, data: st.DataObject) -> None:
    datagram = sealed(packet)
    size = data.draw(st.integers(0, len(datagram) - 1))

    assert opened(datagram[:size]) is None


@given(packet=PACKETS, rest=st.binary(min_size=1, max_size=20))
def test_a_packet_with_something_behind_it_is_not_opened(packet: bytes, rest: bytes) -> None:
    assert opened(sealed(packet) + rest) is None


@given(packet=PACKETS)
def test_a_packet_opens_in_its_own_direction_of_its_own_connection_only(packet: bytes) -> None:
    there, back = checksums(b"i" * 32, b"r" * 32)
    other_there, other_back = checksums(b"i" * 32, b"s" * 32)
    datagram = memoryview(there.seal(bytearray(packet)))

    assert there.open(datagram) is not None
    assert [c.open(datagram) for c in (back, other_there, other_back)] == [None] * 3


@pytest.mark.parametrize("size", [0, CHECKSUM_BYTES, PACKET_HEADER_BYTES + CHECKSUM_BYTES - 1])
def test_too_few_bytes_are_no_packet(size: int) -> None:
    assert opened(bytes(size)) is None


def test_a_packet_has_at_most_the_size_of_the_largest_datagram() -> None:
    largest = sealed(bytes(DATAGRAM_BYTES_MAX - CHECKSUM_BYTES))

    assert len(largest) == DATAGRAM_BYTES_MAX
    assert opened(largest) is not None
    assert opened(bytes(4) + largest) is None


@given(
    packets=st.integers(5, 50).flatmap(
        lambda words: st.lists(
            st.binary(min_size=WORD_BYTES * words, max_size=WORD_BYTES * words),
            min_size=1,
            max_size=9,
        )
    ),
    data=st.data(),
)
def test_several_datagrams_are_judged_as_each_of_them_is(
    packets: list[bytes], data: st.DataObject
) -> None:
    datagrams = [
        sealed(packet) if data.draw(st.booleans()) else packet + bytes(CHECKSUM_BYTES)
        for packet in packets
    ]
    words = np.frombuffer(b"".join(datagrams), "<u4").reshape(len(datagrams), -1)

    authentic = Checksum(b"secret").open_rows(words)

    assert authentic.tolist() == [opened(datagram) is not None for datagram in datagrams]


@given(words=st.lists(WORDS, min_size=1, max_size=20), shift=st.integers(0, 7))
def test_a_sum_does_not_depend_on_where_in_memory_a_packet_lies(
    words: list[int], shift: int
) -> None:
    packed = struct.pack(f"<{len(words)}I", *words)
    buffer = bytearray(shift) + packed

    assert weighted_sum(memoryview(buffer)[shift:]) == weighted_sum(packed)
