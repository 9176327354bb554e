"""Sealed packets: many at once are what each of them is alone, and no number is used twice."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_protocol import Suite
from gradwire_protocol.crypto.suites import NOISE_NAMES, cipher_of
from gradwire_protocol.delivery.packet_rows import PacketRows
from gradwire_protocol.delivery.shaped_message import ShapedMessage
from gradwire_protocol.limits import (
    DATAGRAM_BYTES_MAX,
    EPOCH_PACKETS_BITS,
    FRAGMENT_BYTES_MAX,
    FRAGMENT_BYTES_MIN,
    PACKET_HEADER_BYTES,
    TAG_BYTES,
    TRAIN_PACKETS_MAX,
    WORKSPACE_SIZES_MAX,
)
from gradwire_protocol.security.sealed import (
    READ_BYTES_MAX,
    CipherOpening,
    CipherSealing,
    Workspace,
)
from gradwire_protocol.wire.frames import pack_ping
from gradwire_protocol.wire.packets import SINGLE, TRANSPORT, TRANSPORT_HEADER
from support.fragments import message_of
from support.insides import opening_keys
from support.tiers import count
from support.unsealing import Unsealing
from support.wording import naming

KEY = bytes(range(32))
EPOCH = 2**EPOCH_PACKETS_BITS
SESSION_ID = 0x04030201

SUITES = st.sampled_from([*NOISE_NAMES])
NUMBERS = (
    st.integers(0, 1000)
    | st.integers(EPOCH - 70, EPOCH + 10)
    | st.integers(2**32 - 70, 2**32 + 10)
    | st.integers(2**33 + EPOCH - 70, 2**33 + EPOCH + 10)
)
SIZES = st.sampled_from([FRAGMENT_BYTES_MIN, 1149, 1151, 1348, FRAGMENT_BYTES_MAX])


@st.composite
def messages(draw: st.DrawFn) -> ShapedMessage:
    """Draw messages of as many fragments as a train has, and fewer."""
    size = draw(SIZES)
    most = min(TRAIN_PACKETS_MAX, READ_BYTES_MAX // (size + 56))
    total = draw(st.integers(1, most)) * size - draw(st.integers(0, size - 1))
    return message_of(total, fragment_bytes=size, number=7)


def sealing(suite: Suite = Suite.AES) -> CipherSealing:
    """Return what seals with `KEY`, in memory that was used before."""
    workspace = Workspace()
    for room in (workspace.outgoing, workspace.incoming):
        room(READ_BYTES_MAX // TRAIN_PACKETS_MAX).rows[:] = 0xFF
    return CipherSealing(suite, KEY, workspace)


def opening(suite: Suite = Suite.AES) -> CipherOpening:
    """Return what opens what `sealing` seals."""
    return CipherOpening(suite, KEY, Workspace())


def header_of(number: int, flags: int = SINGLE, session_id: int = SESSION_ID) -> bytes:
    return TRANSPORT_HEADER.pack(TRANSPORT, flags, 0, session_id, number)


def sealed_alone(suite: Suite, frames: bytes, number: int) -> bytes:
    """Return a packet as the cipher by itself makes it, with a key that nothing was done with."""
    key = Unsealing(CipherSealing(suite, KEY, Workspace())).key(header_of(number))
    assert key is not None
    frames += bytes(-len(frames) % 4)
    header = header_of(number)
    nonce = bytes(4) + number.to_bytes(8, "little")
    return header + cipher_of(suite, key).encrypt(nonce, frames, header)


def frames_of(message: ShapedMessage) -> list[bytes]:
    """Return what stands between header and tag of every packet of a message."""
    message.write_headers()
    return [
        bytes(message.run(index, index + 1)[PACKET_HEADER_BYTES:-TAG_BYTES])
        for index in range(message.count)
    ]


def cut(buffers: Sequence[memoryview], segment: int) -> list[bytes]:
    joined = b"".join(buffers)
    return [joined[at : at + segment] for at in range(0, len(joined), segment)]


def advanced(suite: Suite, number: int) -> CipherOpening:
    """Return an opening that has come as far as this packet number."""
    result = opening(suite)
    for epoch in range(1, (number >> EPOCH_PACKETS_BITS) + 1):
        opening_keys(result).on_authentic(epoch << EPOCH_PACKETS_BITS)
    return result


# Sealing.


@given(suite=SUITES, message=messages(), number=NUMBERS, data=st.data())
def test_a_run_is_sealed_as_each_of_its_packets_is_alone(
    suite: Suite, message: ShapedMessage, number: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, message.count - 1))
    stop = data.draw(st.integers(first + 1, message.count))
    frames = frames_of(message)

    run = sealing(suite).seal_run(message, first, stop, SESSION_ID, number)

    assert cut([run], message.stride) == [
        sealed_alone(suite, frames[index], number + index - first) for index in range(first, stop)
    ]
    assert len(run) == message.bytes_between(first, stop)
    assert frames_of(message) == frames, "others get it too"


@given(suite=SUITES, message=messages(), number=NUMBERS, data=st.data())
def test_any_rows_are_sealed_as_each_of_them_is_alone(
    suite: Suite, message: ShapedMessage, number: int, data: st.DataObject
) -> None:
    rows = data.draw(st.sets(st.integers(0, message.count - 1), min_size=1).map(sorted))
    frames = frames_of(message)

    buffers = sealing(suite).seal_rows(message, rows, SESSION_ID, number)

    assert cut(buffers, message.stride) == [
        sealed_alone(suite, frames[index], number + i) for i, index in enumerate(rows)
    ]


@given(suite=SUITES, frames=st.binary(max_size=100), number=NUMBERS)
def test_a_packet_is_sealed_with_zeros_up_to_a_whole_word(
    suite: Suite, frames: bytes, number: int
) -> None:
    padded = frames + bytes(-len(frames) % 4)

    packet = sealing(suite).seal(bytearray(header_of(number) + frames))

    assert bytes(packet) == sealed_alone(suite, padded, number)
    assert len(packet) == PACKET_HEADER_BYTES + len(padded) + TAG_BYTES


@settings(max_examples=count(100, quick=10, of="examples of connections that share a workspace"))
@given(message=messages(), numbers=st.lists(st.integers(0, 40), max_size=6))
def test_trains_of_one_workspace_do_not_disturb_each_other(
    message: ShapedMessage, numbers: list[int]
) -> None:
    """Many connections seal in one workspace, one at a time."""
    workspace = Workspace()
    connections = [CipherSealing(suite, KEY, workspace) for suite in NOISE_NAMES]
    sent = 0
    for step in numbers:
        for suite, connection in zip(NOISE_NAMES, connections, strict=True):
            run = connection.seal_run(message, 0, message.count, SESSION_ID, sent + step)
            for index, packet in enumerate(cut([run], message.stride)):
                frames = frames_of(message)[index]
                assert packet == sealed_alone(suite, frames, sent + step + index)
        sent += step + message.count


@pytest.mark.parametrize(
    ("first", "again"), [(8, 9), (8, 15), (8, 0), (EPOCH - 4, EPOCH + 3), (EPOCH - 4, EPOCH - 1)]
)
def test_a_number_used_again_is_refused_whatever_it_is_used_for(first: int, again: int) -> None:
    """Not by an assertion, which `python -O` would remove."""
    message = message_of(8 * 1348)
    seal = sealing()
    seal.seal_run(message, 0, 8, SESSION_ID, first)

    refusal = naming("packet number", again, first + 7)
    with pytest.raises(RuntimeError, match=refusal):
        seal.seal_run(message, 0, 8, SESSION_ID, again)
    with pytest.raises(RuntimeError, match=refusal):
        seal.seal_rows(message, [0, 2], SESSION_ID, again)
    with pytest.raises(RuntimeError, match=refusal):
        seal.seal(bytearray(header_of(again)))
    seal.seal(bytearray(header_of(first + 8)))


# Opening.


@st.composite
def trains(draw: st.DrawFn) -> tuple[Suite, int, list[bytes]]:
    """Draw packets of one size, sealed, with numbers in any order; and the first number."""
    suite, start = draw(SUITES), draw(NUMBERS)
    size = draw(st.sampled_from([36, 52, 1200, 1400, DATAGRAM_BYTES_MAX]))
    most = min(TRAIN_PACKETS_MAX, READ_BYTES_MAX // size)
    numbers = draw(st.lists(st.integers(start, start + 70), min_size=1, max_size=most))
    if draw(st.booleans()):
        numbers = [start + i for i in range(len(numbers))]
    room = size - PACKET_HEADER_BYTES - TAG_BYTES
    return suite, start, [sealed_alone(suite, bytes([i]) * room, n) for i, n in enumerate(numbers)]


def opened_one_by_one(opening: CipherOpening, datagrams: list[bytes]) -> list[bytes | None]:
    """Return the frames of every packet; None for those that are not authentic."""
    opened = [opening.open(memoryview(datagram)) for datagram in datagrams]
    return [None if frames is None else bytes(frames) for frames in opened]


@given(train=trains(), damage=st.lists(st.tuples(st.integers(0, 63), st.integers(0, 8000)),
                                       max_size=2))  # fmt: skip
def test_packets_opened_together_are_what_they_are_one_by_one(
    train: tuple[Suite, int, list[bytes]], damage: list[tuple[int, int]]
) -> None:
    """With damage, in any order, across epochs, beyond 2^32."""
    suite, start, datagrams = train
    for which, at in damage:
        datagram = bytearray(datagrams[which % len(datagrams)])
        datagram[at % len(datagram)] ^= 1
        datagrams[which % len(datagrams)] = bytes(datagram)
    size = len(datagrams[0])
    received = memoryview(bytearray(b"".join(datagrams)))
    before = bytes(received)
    together, singly = advanced(suite, start), advanced(suite, start)

    opened = together.open_rows(PacketRows(received, size))
    expected = opened_one_by_one(singly, datagrams)

    assert bytes(received) == before, "one by one has to be possible still"
    if opened is None:
        epochs = {int.from_bytes(d[8:16], "little") >> EPOCH_PACKETS_BITS for d in datagrams}
        assert None in expected or len(epochs) > 1
        assert opened_one_by_one(together, datagrams) == expected
    else:
        assert [bytes(opened.frames(row)) for row in range(opened.count)] == expected
        headers = [opened.datagram(row)[:PACKET_HEADER_BYTES] for row in range(opened.count)]
        assert headers == [datagram[:PACKET_HEADER_BYTES] for datagram in datagrams]
    assert together.epoch == singly.epoch
    assert opening_keys(together).forgeries == opening_keys(singly).forgeries


def test_a_train_within_one_epoch_is_opened_at_once() -> None:
    message = message_of(40 * 1348)
    run = sealing().seal_run(message, 0, 40, SESSION_ID, 2**32 - 20)

    opened = advanced(Suite.AES, 2**32 - 20).open_rows(PacketRows(run, message.stride))
    assert opened is None, "it begins another epoch half way"
    run = sealing().seal_run(message, 0, 40, SESSION_ID, 100)
    opened = opening().open_rows(PacketRows(run, message.stride))

    assert opened is not None
    assert [opened.number(row) for row in range(40)] == [*range(100, 140)]
    assert [bytes(opened.frames(row)) for row in range(40)] == frames_of(message)


@given(suite=SUITES, number=NUMBERS, frames=st.binary(max_size=60), data=st.data())
def test_no_bit_of_a_packet_can_be_changed(
    suite: Suite, number: int, frames: bytes, data: st.DataObject
) -> None:
    whole = bytes(sealing(suite).seal(bytearray(header_of(number) + frames)))
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    receiver = advanced(suite, number)

    assert receiver.open(memoryview(damaged)) is None
    assert receiver.open(memoryview(whole)) is not None


@pytest.mark.parametrize("size", [0, 15, 31, 33, DATAGRAM_BYTES_MAX + 4])
def test_what_cannot_be_a_packet_is_none_and_no_forgery(size: int) -> None:
    receiver = opening()

    assert receiver.open(memoryview(bytes(size))) is None
    assert opening_keys(receiver).forgeries == 0


def test_a_packet_of_an_epoch_far_away_is_none_and_costs_no_computation() -> None:
    receiver = opening()
    packet = sealed_alone(Suite.AES, pack_ping(), 2 * EPOCH)

    assert receiver.open(memoryview(packet)) is None
    assert receiver.open_rows(PacketRows(memoryview(packet * 5), len(packet))) is None
    assert opening_keys(receiver).forgeries == 0


# Memory.


def test_a_workspace_keeps_room_for_few_sizes_and_forgets_the_one_unused_for_longest() -> None:
    workspace = Workspace()
    first = workspace.outgoing(1200)
    second = workspace.outgoing(1204)
    rooms = [workspace.outgoing(1208 + 4 * n) for n in range(WORKSPACE_SIZES_MAX - 2)]
    assert workspace.outgoing(1200) is first

    workspace.outgoing(4000)

    assert workspace.outgoing(1200) is first
    assert workspace.outgoing(1204) is not second
    assert rooms[-1] is workspace.outgoing(1208 + 4 * (WORKSPACE_SIZES_MAX - 3))


@pytest.mark.parametrize("size", [36, 1200, 1400, DATAGRAM_BYTES_MAX])
def test_there_is_room_for_a_whole_train_of_any_size(size: int) -> None:
    room = Workspace().outgoing(size)

    assert room.capacity == min(TRAIN_PACKETS_MAX, READ_BYTES_MAX // size)
    assert len(room.datagrams(room.capacity * size)) == room.capacity * size == room.rows.size
    assert len(room.sealings) == len(room.openings) == room.capacity


def test_more_packets_than_there_is_room_for_are_opened_one_by_one() -> None:
    packets = [sealed_alone(Suite.AES, pack_ping(), n) for n in range(TRAIN_PACKETS_MAX + 1)]
    receiver = opening()

    together = receiver.open_rows(PacketRows(memoryview(b"".join(packets)), len(packets[0])))

    assert together is None
    assert None not in opened_one_by_one(receiver, packets)
