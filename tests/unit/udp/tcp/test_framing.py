"""Framing: whatever way a stream is cut, the same packets come out of it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.limits import DATAGRAM_BYTES_MAX, TRAIN_BYTES_MAX, TRAIN_PACKETS_MAX
from gradwire_udp.tcp.framing import (
    LENGTH_BYTES,
    RUN_PACKETS_MAX,
    FramingError,
    PacketStream,
    ReadBuffer,
    frame_into,
    framed_bytes,
)
from support.datagrams import train
from support.wording import naming

READ_BYTES = 40_000
"""Less than what is written below, so that packets do not end where reads do."""

sizes = st.one_of(
    st.integers(1, 80),
    st.sampled_from([1_199, 1_200, 1_400, 8_896, DATAGRAM_BYTES_MAX]),
)
runs = st.lists(st.tuples(sizes, st.integers(1, 70)), max_size=5)
"""Packets of a size and how many of it."""


def packets_of(runs: Iterable[tuple[int, int]], seed: int = 1) -> list[bytes]:
    random = Random(seed)
    return [random.randbytes(size) for size, count in runs for _ in range(count)]


def framed(packets: Iterable[bytes]) -> bytes:
    """Return packets as they travel, written down from the description alone."""
    return b"".join(len(packet).to_bytes(2, "little") + packet for packet in packets)


def read_in(stream: PacketStream, pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Let pieces of a stream come in; yield the packets, by the runs that they came in."""
    for piece in pieces:
        while piece:
            room = stream.read_target()
            size = min(len(piece), len(room))
            room[:size] = piece[:size]
            piece = piece[size:]
            for view, segment in stream.packets(size):
                yield [bytes(view[at : at + segment]) for at in range(0, len(view), segment)]
                view[:] = b"\xa5" * len(view)  # it is used up


def flat(runs: Iterable[list[bytes]]) -> list[bytes]:
    return [packet for run in runs for packet in run]


def pieces_of(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


@given(runs, st.lists(st.integers(0, 2**31), max_size=20))
def test_however_a_stream_is_cut_the_same_packets_come(
    runs: list[tuple[int, int]], cuts: list[int]
) -> None:
    packets = packets_of(runs)

    found = read_in(PacketStream(ReadBuffer(READ_BYTES)), pieces_of(framed(packets), cuts))

    assert flat(found) == packets


@given(runs, st.lists(st.integers(0, 2**31), max_size=20))
def test_streams_that_share_a_buffer_do_not_disturb_each_other(
    runs: list[tuple[int, int]], cuts: list[int]
) -> None:
    buffer = ReadBuffer(READ_BYTES)
    streams = [PacketStream(buffer), PacketStream(buffer)]
    packets = [packets_of(runs, seed) for seed in (1, 2)]
    pieces = [pieces_of(framed(own), cuts) for own in packets]
    found: list[list[bytes]] = [[], []]

    for both in zip(*pieces, strict=True):
        for i in (0, 1):
            found[i] += flat(read_in(streams[i], [both[i]]))

    assert found == packets


@given(runs, st.binary(min_size=1, max_size=300), st.lists(st.integers(0, 2**31), max_size=20))
def test_garbage_is_packets_or_the_end_whatever_way_it_is_cut(
    runs: list[tuple[int, int]], garbage: bytes, cuts: list[int]
) -> None:
    data = framed(packets_of(runs)) + garbage

    def outcome(pieces: list[bytes]) -> tuple[list[bytes], str]:
        found: list[bytes] = []
        try:
            for run in read_in(PacketStream(ReadBuffer(READ_BYTES)), pieces):
                found += run
        except FramingError as error:
            return found, str(error)
        return found, ""

    found, error = outcome(pieces_of(data, cuts))

    assert (found, error) == outcome([data])
    assert found[: len(packets_of(runs))] == packets_of(runs)


@pytest.mark.parametrize("length", [0, DATAGRAM_BYTES_MAX + 1, 0xFFFF])
def test_a_length_that_no_packet_has_is_named_and_what_came_before_counts(length: int) -> None:
    stream = PacketStream(ReadBuffer(READ_BYTES))
    data = framed([b"before"]) + length.to_bytes(2, "little") + bytes(100)
    stream.read_target()[: len(data)] = data
    coming = stream.packets(len(data))

    first, _ = next(coming)
    assert bytes(first) == b"before"
    with pytest.raises(FramingError, match=naming("packet", length, 1, 8900)):
        next(coming)


def test_packets_of_one_size_come_together_with_a_shorter_one_behind_them() -> None:
    packets = packets_of([(1_400, 20), (900, 1), (1_400, 3), (50, 1), (60, 1)])

    found = read_in(PacketStream(ReadBuffer(READ_BYTES)), [framed(packets)])

    assert [[len(packet) for packet in run] for run in found] == [
        [1_400] * 20 + [900], [1_400] * 3 + [50], [60],
    ]  # fmt: skip


def test_not_more_come_together_than_over_udp() -> None:
    packets = packets_of([(100, 150)])

    found = read_in(PacketStream(ReadBuffer(READ_BYTES)), [framed(packets)])

    assert [len(run) for run in found] == [RUN_PACKETS_MAX, RUN_PACKETS_MAX, 22]


def test_a_packet_may_be_as_large_as_there_are_any_and_come_byte_by_byte() -> None:
    packets = packets_of([(DATAGRAM_BYTES_MAX, 2)])
    data = framed(packets)

    stream = PacketStream(ReadBuffer(1))
    found = read_in(stream, (data[i : i + 1] for i in range(len(data))))

    assert list(found) == [[packet] for packet in packets]


@given(
    st.integers(1, TRAIN_PACKETS_MAX),
    st.integers(1, DATAGRAM_BYTES_MAX),
    st.integers(1, DATAGRAM_BYTES_MAX),
    st.integers(1, 70),
)
def test_a_train_is_written_as_its_datagrams_are(
    count: int, size: int, last: int, pieces: int
) -> None:
    count = min(count, TRAIN_BYTES_MAX // size) or 1
    given = train([size] * (count - 1) + [min(last, size)], "peer", fill=7, pieces=pieces)
    if count == 1:
        given = train([min(last, size)], "peer", fill=7, pieces=pieces)
    room = bytearray(TRAIN_BYTES_MAX + LENGTH_BYTES * TRAIN_PACKETS_MAX)

    end = frame_into(given, memoryview(room))

    assert end == framed_bytes(given)
    assert bytes(room[:end]) == framed(given.datagrams())
    assert not any(room[end:])
