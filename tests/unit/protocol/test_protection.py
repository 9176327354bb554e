"""Suite 0: every accident is found, and another connection's packets are strangers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.limits import PACKET_HEADER_BYTES
from gradwire_protocol.protection import CHECKSUM_BYTES, Checksum, checksums

PACKETS = st.binary(min_size=PACKET_HEADER_BYTES, max_size=100)


@given(secret=st.binary(max_size=65), packet=PACKETS)
def test_what_was_sealed_is_opened(secret: bytes, packet: bytes) -> None:
    datagram = Checksum(secret).seal(bytearray(packet))
    frames = Checksum(secret).open(memoryview(datagram))

    assert len(datagram) == len(packet) + Checksum(secret).overhead
    assert frames is not None
    assert bytes(frames) == packet[PACKET_HEADER_BYTES:]


@given(packet=PACKETS, data=st.data())
def test_a_damaged_packet_is_not_opened(packet: bytes, data: st.DataObject) -> None:
    checksum = Checksum(b"secret")
    damaged = bytearray(checksum.seal(bytearray(packet)))
    bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8

    assert checksum.open(memoryview(damaged)) is None


@given(packet=PACKETS, data=st.data())
def test_a_truncated_packet_is_not_opened(packet: bytes, data: st.DataObject) -> None:
    checksum = Checksum(b"secret")
    datagram = checksum.seal(bytearray(packet))
    size = data.draw(st.integers(0, len(datagram) - 1))

    assert checksum.open(memoryview(datagram)[:size]) is None


@given(packet=PACKETS)
def test_a_packet_opens_in_its_own_direction_of_its_own_connection_only(packet: bytes) -> None:
    there, back = checksums(b"i" * 32, b"r" * 32)
    other_there, other_back = checksums(b"i" * 32, b"s" * 32)
    datagram = memoryview(there.seal(bytearray(packet)))

    assert there.open(datagram) is not None
    assert [c.open(datagram) for c in (back, other_there, other_back)] == [None] * 3


@pytest.mark.parametrize("size", [0, CHECKSUM_BYTES, PACKET_HEADER_BYTES + CHECKSUM_BYTES - 1])
def test_too_few_bytes_are_no_packet(size: int) -> None:
    assert Checksum(b"").open(memoryview(bytes(size))) is None
