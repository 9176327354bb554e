"""Suite 0: every accident is found, and another connection's packets are strangers."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import InvalidDatagramError
from gradwire_protocol.delivery.packet_rows import PacketRows
from gradwire_protocol.limits import DATAGRAM_BYTES_MAX, PACKET_HEADER_BYTES, TAG_BYTES
from gradwire_protocol.security.checksum import WEIGHTS, Checksum, ChecksumHandshake, weighted_sum
from gradwire_protocol.wire.packets import WORD_BYTES
from support.wording import naming

PACKETS = st.binary(min_size=PACKET_HEADER_BYTES, max_size=100)
WORDS = st.integers(0, 2**32 - 1)
NONCES = st.binary(min_size=32, max_size=32)
TAG_WORDS = TAG_BYTES // WORD_BYTES


def sealed(packet: bytes, secret: bytes = b"secret") -> bytes:
    return bytes(Checksum(secret).seal(bytearray(packet)))


def opened(datagram: bytes, secret: bytes = b"secret") -> bytes | None:
    """Return the frames of a datagram; None where it is not authentic."""
    frames = Checksum(secret).open(memoryview(datagram))
    return None if frames is None else bytes(frames)


# Packets.


@given(secret=st.binary(max_size=65), packet=PACKETS)
def test_what_was_sealed_is_opened_with_zeros_up_to_a_whole_word(
    secret: bytes, packet: bytes
) -> None:
    padded = packet + bytes(-len(packet) % WORD_BYTES)

    datagram = sealed(packet, secret)

    assert len(datagram) == len(padded) + TAG_BYTES
    assert opened(datagram, secret) == padded[PACKET_HEADER_BYTES:]


def test_the_weighted_sum_of_a_packet_and_its_tag_is_what_the_secret_says() -> None:
    datagram = sealed(bytes(range(20)))
    *words, tag = struct.unpack("<9I", datagram)

    plain = sum(word * (2 * i + 1) * 0x9E3779B1 for i, word in enumerate(words)) + tag

    assert plain % 2**32 == zlib.crc32(b"secret")


@given(packet=PACKETS)
def test_all_but_the_last_word_of_a_tag_is_zeros(packet: bytes) -> None:
    tag = sealed(packet)[-TAG_BYTES:]

    assert tag[:-WORD_BYTES] == bytes(TAG_BYTES - WORD_BYTES)


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
    words = list(struct.unpack(f"<{len(packet) + TAG_WORDS}I", datagram))
    words[one], words[other] = words[other], words[one]

    if (words[one] - words[other]) % 2**20:
        assert opened(struct.pack(f"<{len(words)}I", *words)) is None


@given(packet=PACKETS, rest=st.binary(min_size=1, max_size=20))
def test_a_packet_with_something_behind_it_is_not_opened(packet: bytes, rest: bytes) -> None:
    assert opened(sealed(packet) + rest) is None


@given(packet=PACKETS)
def test_a_packet_opens_in_its_own_direction_of_its_own_connection_only(packet: bytes) -> None:
    there, back = (Checksum(key) for key in shaken_hands(b"i" * 32, b"r" * 32).keys)
    other_there, other_back = (Checksum(key) for key in shaken_hands(b"i" * 32, b"s" * 32).keys)
    datagram = there.seal(bytearray(packet))

    assert there.open(datagram) is not None
    assert [c.open(datagram) for c in (back, other_there, other_back)] == [None] * 3


@pytest.mark.parametrize("size", [0, TAG_BYTES, PACKET_HEADER_BYTES + TAG_BYTES - 1])
def test_too_few_bytes_are_no_packet(size: int) -> None:
    assert opened(bytes(size)) is None


def test_a_packet_has_at_most_the_size_of_the_largest_datagram() -> None:
    largest = sealed(bytes(DATAGRAM_BYTES_MAX - TAG_BYTES))

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
def test_several_datagrams_are_taken_if_each_of_them_would_be(
    packets: list[bytes], data: st.DataObject
) -> None:
    datagrams = [
        sealed(packet) if data.draw(st.booleans()) else packet + bytes(TAG_BYTES)
        for packet in packets
    ]
    together = PacketRows(memoryview(b"".join(datagrams)), len(datagrams[0]))

    authentic = Checksum(b"secret").open_rows(together)

    if all(opened(datagram) is not None for datagram in datagrams):
        assert authentic is together
    else:
        assert authentic is None


@given(words=st.lists(WORDS, min_size=1, max_size=20), shift=st.integers(0, 7))
def test_a_sum_does_not_depend_on_where_in_memory_a_packet_lies(
    words: list[int], shift: int
) -> None:
    packed = struct.pack(f"<{len(words)}I", *words)
    buffer = bytearray(shift) + packed

    assert weighted_sum(memoryview(buffer)[shift:]) == weighted_sum(packed)


def test_no_number_of_damaged_packets_wears_it_out() -> None:
    """Who can guess 32 bits needs no forgeries to do harm."""
    checksum = Checksum(b"secret")

    for _ in range(1000):
        assert checksum.open(memoryview(bytes(40))) is None

    assert not checksum.too_many_forgeries


# The handshake.


def shaken_hands(initiator: bytes, responder: bytes, prologue: bytes = b"") -> ChecksumHandshake:
    handshake = ChecksumHandshake(prologue)
    handshake.write_init(initiator, b"")
    handshake.write_accept(responder, b"")
    return handshake


@given(prologue=st.binary(max_size=30), nonces=st.tuples(NONCES, NONCES),
       payloads=st.tuples(st.binary(max_size=90), st.binary(max_size=90)))  # fmt: skip
def test_both_sides_read_what_the_other_wrote_and_have_the_same_keys(
    prologue: bytes, nonces: tuple[bytes, bytes], payloads: tuple[bytes, bytes]
) -> None:
    initiator, responder = ChecksumHandshake(prologue), ChecksumHandshake(prologue)

    assert responder.read_init(*initiator.write_init(nonces[0], payloads[0])) == payloads[0]
    assert initiator.read_accept(*responder.write_accept(nonces[1], payloads[1])) == payloads[1]
    assert initiator.keys == responder.keys
    assert len(set(initiator.keys)) == 2


def test_a_tag_is_the_checksum_of_all_before_it_as_documented() -> None:
    handshake = ChecksumHandshake(b"prologue")

    asked, greeting = handshake.write_init(b"i" * 32, b"greeting")
    answer, reply = handshake.write_accept(b"r" * 32, b"reply")

    said = b"prologue" + b"i" * 32 + b"greeting"
    assert (asked, answer) == (b"i" * 32, b"r" * 32)
    assert greeting == b"greeting" + struct.pack("<I12x", zlib.crc32(said))
    said += b"r" * 32 + b"reply"
    assert reply == b"reply" + struct.pack("<I12x", zlib.crc32(said))


@given(data=st.data())
def test_a_damaged_handshake_is_refused_and_nothing_is_kept_of_it(data: st.DataObject) -> None:
    initiator, responder = ChecksumHandshake(b"same"), ChecksumHandshake(b"same")
    nonce, tagged = initiator.write_init(b"i" * 32, b"greeting")
    whole = bytearray(nonce + tagged)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8

    with pytest.raises(InvalidDatagramError, match=naming("checksum")):
        responder.read_init(bytes(whole[:32]), bytes(whole[32:]))

    assert responder.read_init(nonce, tagged) == b"greeting"
    assert initiator.read_accept(*responder.write_accept(b"r" * 32, b"reply")) == b"reply"


def test_an_answer_to_another_init_is_refused() -> None:
    asked, other = ChecksumHandshake(b"same"), ChecksumHandshake(b"same")
    asked.write_init(b"i" * 32, b"greeting")
    other.write_init(b"j" * 32, b"greeting")

    with pytest.raises(InvalidDatagramError, match=naming("checksum")):
        asked.read_accept(*other.write_accept(b"r" * 32, b"reply"))


@given(words=st.lists(WORDS, min_size=9, max_size=9))
def test_the_words_of_a_packet_are_not_touched_by_opening_them(words: list[int]) -> None:
    packet = np.array(words, "<u4")
    before = packet.tobytes()

    Checksum(b"secret").open_rows(PacketRows(packet.data.cast("B"), packet.nbytes))

    assert packet.tobytes() == before
