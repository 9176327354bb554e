"""Packets that came together: cut where they are no consecutive fragments, and nowhere else."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import ViolationError
from gradwire_protocol.delivery.packet_rows import MINIMUM_BYTES, PacketRows
from gradwire_protocol.delivery.shaped_message import ShapedMessage, fragment_bytes_of
from gradwire_protocol.limits import FRAGMENT_BYTES_MIN, PACKET_HEADER_BYTES, TAG_BYTES
from gradwire_protocol.security.checksum import Checksum
from gradwire_protocol.wire.frames import DATA, DATA_HEADER, Data, pack_data, pack_ping
from gradwire_protocol.wire.packets import SINGLE, TRANSPORT, TRANSPORT_HEADER
from support.fragments import fragment_of, message_of, packets_of

CHECKSUM = Checksum(b"secret")
SIZE = 1200
FRAGMENT_BYTES = fragment_bytes_of(SIZE)


def packets_together(datagrams: Sequence[bytes]) -> PacketRows:
    """Return datagrams of one size as they are read."""
    return PacketRows(memoryview(b"".join(datagrams)), len(datagrams[0]))


def sent(message: ShapedMessage, first: int, stop: int, number: int) -> list[bytes]:
    """Return consecutive fragments as a sender sends them."""
    return packets_of(message, first, stop, session_id=7, number=number, sealing=CHECKSUM)


def packet(
    frames: bytes, *, flags: int = SINGLE, session_id: int = 7, number: int = 0, kind: int = 1
) -> bytes:
    """Return a packet of `SIZE`, filled up with zeros."""
    header = TRANSPORT_HEADER.pack(kind, flags & 0xFF, flags >> 8, session_id, number)
    padded = frames.ljust(SIZE - PACKET_HEADER_BYTES - TAG_BYTES, b"\0")
    return bytes(CHECKSUM.seal(bytearray(header + padded)))


@st.composite
def mixtures(draw: st.DrawFn) -> list[bytes]:
    """Draw packets of one size of which some follow each other."""
    messages = [message_of(n * FRAGMENT_BYTES, fragment_bytes=FRAGMENT_BYTES, number=n)
                for n in (6, 70)]  # fmt: skip
    datagrams: list[bytes] = []
    for _ in range(draw(st.integers(1, 6))):
        message = draw(st.sampled_from(messages))
        number = draw(st.integers(0, 3) | st.integers(2**32 - 5, 2**32))
        first = draw(st.integers(0, 5))
        match draw(st.integers(0, 3)):
            case 0:
                data = fragment_of(message, first)
                flags = draw(st.sampled_from([0, SINGLE, 2, 0x100 | SINGLE]))
                datagrams.append(packet(pack_data(data), flags=flags, number=number))
            case 1:
                datagrams.append(packet(pack_ping(), number=number))
            case _:
                stop = draw(st.integers(first + 1, message.count))
                datagrams += sent(message, first, stop, number)
    return datagrams


def fields_of(datagram: bytes) -> dict[str, int]:
    """Return what the header of a packet says, and that of the fragment at its beginning."""
    names = ("packet_type", "packet_flags", "reserved", "session_id", "packet_number", "frame_type",
             "flags", "fragment_bytes", "number", "index", "total", "stream", "kind")  # fmt: skip
    header = TRANSPORT_HEADER.unpack_from(datagram)
    return dict(
        zip(names, header + DATA_HEADER.unpack_from(datagram, PACKET_HEADER_BYTES), strict=True)
    )


def holds_one_fragment(datagram: bytes) -> bool:
    """Return whether a packet says that it holds one fragment of a message and nothing else."""
    fields = fields_of(datagram)
    return (fields["packet_type"], fields["packet_flags"], fields["reserved"]) == (
        TRANSPORT,
        SINGLE,
        0,
    ) and fields["frame_type"] == DATA


def follows(datagram: bytes, before: bytes) -> bool:
    """Return whether a packet goes on with what the one before it carries."""
    fields, expected = fields_of(datagram), fields_of(before)
    expected["packet_number"] += 1
    expected["index"] += 1
    return fields == expected and fields["packet_number"] % 2**32 > 0


def number_of(datagram: bytes) -> int:
    number: int = TRANSPORT_HEADER.unpack_from(datagram)[4]
    return number


@given(datagrams=mixtures())
def test_packets_of_one_run_are_consecutive_fragments_and_no_two_runs_could_be_one(
    datagrams: list[bytes],
) -> None:
    runs = list(packets_together(datagrams).runs())

    assert [row for run in runs for row in range(*run)] == list(range(len(datagrams)))
    for first, stop in runs:
        assert stop - first == 1 or holds_one_fragment(datagrams[first])
        for row in range(first + 1, stop):
            assert follows(datagrams[row], datagrams[row - 1])
    for _, stop in runs[:-1]:
        assert not (
            holds_one_fragment(datagrams[stop]) and follows(datagrams[stop], datagrams[stop - 1])
        )


def test_packet_numbers_that_fall_back_are_no_run() -> None:
    """After 2^32 - 1 comes 2^32, not 0; each is a run of its own then."""
    message = message_of(6 * FRAGMENT_BYTES, fragment_bytes=FRAGMENT_BYTES)
    numbers = [2**32 - 3, 2**32 - 2, 2**32 - 1, 0, 1, 2]
    datagrams = [sent(message, i, i + 1, number)[0] for i, number in enumerate(numbers)]

    assert list(packets_together(datagrams).runs()) == [(i, i + 1) for i in range(6)]


@given(datagrams=mixtures())
def test_a_packet_is_found_in_its_row(datagrams: list[bytes]) -> None:
    packets = packets_together(datagrams)

    assert packets.count == len(datagrams)
    for row, datagram in enumerate(datagrams):
        assert bytes(packets.datagram(row)) == datagram
        assert packets.rows[row].tobytes() == datagram
        assert packets.number(row) == number_of(datagram)


@given(first=st.integers(0, 30), number=st.integers(0, 2**64 - 50))
def test_the_fragment_of_a_row_is_what_its_header_says(first: int, number: int) -> None:
    message = message_of(40 * FRAGMENT_BYTES, fragment_bytes=FRAGMENT_BYTES, stream=9, kind=8)
    packets = packets_together(sent(message, first, message.count, number))

    data = packets.data(3)

    assert data == replace(fragment_of(message, first + 3), payload=data.payload)
    assert packets.number(3) == number + 3


@pytest.mark.parametrize(
    ("total", "fragment_bytes", "index"),
    [
        (0, FRAGMENT_BYTES, 0),
        (40 * FRAGMENT_BYTES, FRAGMENT_BYTES, 40),
        (FRAGMENT_BYTES_MIN - 1, FRAGMENT_BYTES_MIN - 1, 0),
    ],
)
def test_a_fragment_that_cannot_be_one_is_a_violation(
    total: int, fragment_bytes: int, index: int
) -> None:
    data = Data(0, 0, 1, total, fragment_bytes, index, memoryview(b""))

    with pytest.raises(ViolationError):
        packets_together([packet(pack_data(data))]).data(0)


@pytest.mark.parametrize(
    ("total", "fragment_bytes", "whole"),
    [
        (6 * FRAGMENT_BYTES, FRAGMENT_BYTES, 6),
        (6 * FRAGMENT_BYTES + 1, FRAGMENT_BYTES, 6),
        (6 * FRAGMENT_BYTES - 1, FRAGMENT_BYTES, 5),
        (6 * (FRAGMENT_BYTES - 4), FRAGMENT_BYTES - 4, 0),
        (6 * (FRAGMENT_BYTES + 1), FRAGMENT_BYTES + 1, 0),
    ],
)
def test_fragments_are_whole_where_they_fill_their_packets(
    total: int, fragment_bytes: int, whole: int
) -> None:
    data = Data(0, 0, 1, total, fragment_bytes, 0, memoryview(bytes(fragment_bytes)))

    assert packets_together([bytes(SIZE)]).whole_fragments(data) == whole


# Whose they are.


def test_packets_of_one_connection_have_its_session_id() -> None:
    datagrams = [packet(pack_ping(), session_id=2**32 - 1, number=n) for n in (5, 9)]

    assert packets_together(datagrams).session_id() == 2**32 - 1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(packet(pack_ping(), session_id=8), id="another session"),
        pytest.param(packet(pack_ping(), kind=0x10), id="another type"),
        pytest.param(packet(pack_ping(), flags=0), id="other flags"),
        pytest.param(packet(pack_ping(), flags=SINGLE | 0x100), id="a reserved field"),
    ],
)
def test_packets_that_do_not_all_begin_alike_have_no_session_id(other: bytes) -> None:
    assert packets_together([packet(pack_ping()), other]).session_id() == 0


def test_the_smallest_packet_with_a_fragment_has_a_payload_of_none() -> None:
    frame = pack_data(fragment_of(message_of(1), 0))

    assert PACKET_HEADER_BYTES + len(frame) - 1 + TAG_BYTES == MINIMUM_BYTES
