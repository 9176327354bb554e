"""The sender: what goes into a packet."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.delivery.shaped_message import SINGLE_DATA, fragment_bytes_of, packet_bytes
from gradwire_protocol.limits import (
    ACKS_UNASKED_MAX,
    DATAGRAM_BYTES_MIN,
    SKIP_PACKETS_MEAN,
    TRAIN_BYTES_MAX,
    TRAIN_PACKETS_MAX,
    WINDOW_BYTES,
    charge_of,
)
from gradwire_protocol.wire.frames import Ack, Credit
from gradwire_protocol.wire.packets import TRANSPORT_HEADER
from support.acks import ack
from support.pair import frames_of, kinds_of
from support.sending import (
    DATAGRAM_BYTES,
    FRAGMENT_BYTES,
    START,
    FarEnd,
    Rig,
    fragments_of,
    payload_of,
)

# Trains.


def test_packets_are_addressed_to_the_peer_and_numbered_without_gaps() -> None:
    rig = Rig()
    rig.push(5 * FRAGMENT_BYTES)

    headers = [TRANSPORT_HEADER.unpack_from(datagram) for datagram in rig.datagrams()]

    kind, single = SINGLE_DATA & 0xFF, SINGLE_DATA >> 8
    assert headers == [(kind, single, 0, 7, number) for number in range(5)]


def test_a_message_leaves_in_full_datagrams_but_for_the_last() -> None:
    rig = Rig()
    rig.push(3 * FRAGMENT_BYTES + 1)

    [train] = rig.trains()

    assert [len(datagram) for datagram in train] == [*[DATAGRAM_BYTES] * 3, packet_bytes(1)]
    assert [fragments_of(frames_of(d)) for d in train] == [[(0, i)] for i in range(4)]


def test_a_train_is_as_long_as_one_call_can_take() -> None:
    sizes = (1200, 1400, 8900)
    rigs = [Rig(size, size) for size in sizes]
    for rig in rigs:
        rig.push(500_000)

    counts = [[len(train) for train in rig.trains()] for rig in rigs]

    assert [max(most) for most in counts] == [TRAIN_BYTES_MAX // size for size in sizes]
    assert all(most[0] == max(most) <= TRAIN_PACKETS_MAX for most in counts)


def test_a_message_in_larger_fragments_than_the_path_carries_is_cut_anew() -> None:
    """Such a message came from a peer with a wider path, and is relayed."""
    rig = Rig()
    rig.push(20_000, fragment_bytes=fragment_bytes_of(8900))
    rig.push(100, fragment_bytes=fragment_bytes_of(8900))

    far = FarEnd(rig)
    far.deliver()

    assert far.messages == {0: payload_of(0, 20_000), 1: payload_of(1, 100)}
    assert max(len(datagram) for _, datagram in far.sent) == DATAGRAM_BYTES


def test_one_packet_number_in_a_thousand_is_left_out_however_short_trains_are() -> None:
    rig = Rig(random=Random(1).random)
    n = 8 * SKIP_PACKETS_MEAN
    rig.push(*[FRAGMENT_BYTES] * (n // 2), *[2 * FRAGMENT_BYTES] * (n // 4))

    count = 0
    while datagrams := rig.datagrams():
        count += len(datagrams)
        rig.acknowledge((rig.next_number - 1, rig.next_number - 1))
        if count >= n:
            break

    assert count >= n
    assert 2 <= rig.next_number - count <= 20


# Shared packets.


def test_short_messages_share_a_packet() -> None:
    rig = Rig()
    rig.push(100, 200, 300, 1000)

    assert rig.fragments() == [[(0, 0), (1, 0), (2, 0)], [(3, 0)]]


@given(
    messages=st.lists(
        st.integers(1, FRAGMENT_BYTES) | st.integers(FRAGMENT_BYTES - 8, FRAGMENT_BYTES), max_size=6
    ),
    gaps=st.integers(0, 70),
    ping=st.booleans(),
    credit=st.booleans(),
    datagram_bytes=st.sampled_from([1200, 1400]),
)
def test_no_packet_is_larger_than_the_path_carries_whatever_is_due(
    messages: list[int], gaps: int, ping: bool, credit: bool, datagram_bytes: int
) -> None:
    rig = Rig(datagram_bytes, datagram_bytes)
    if credit:
        use_up(rig)
    rig.receive(*range(0, 2 * gaps, 2))
    rig.sender.outcomes.ping_due = ping
    sizes = [min(size, rig.sender.fragment_bytes) for size in messages]
    rig.push(*sizes)

    datagrams = rig.datagrams()

    assert max(map(len, datagrams), default=0) <= datagram_bytes
    fragments = [f for d in datagrams for f in fragments_of(frames_of(d))]
    assert sorted(fragments) == [(number, 0) for number in range(len(messages))]


@given(size=st.integers(1, FRAGMENT_BYTES))
def test_a_ping_goes_along_in_a_packet_that_gets_through_even_where_large_ones_do_not(
    size: int,
) -> None:
    rig = Rig()
    rig.sender.outcomes.ping_due = True
    rig.push(size)

    first, *others = rig.datagrams()

    assert kinds_of(frames_of(first))[0] == "Ping"
    assert len(first) <= DATAGRAM_BYTES_MIN
    assert all(kinds_of(frames_of(datagram)) == ["Data"] for datagram in others)


# Acknowledgements.


def test_an_acknowledgement_that_is_due_leaves_alone_and_is_not_in_flight() -> None:
    rig = Rig()
    rig.receive(0)

    packets = rig.packets()

    assert packets == [[ack((0, 0), credit=WINDOW_BYTES)]]
    assert rig.in_flight == 0
    assert rig.sender.last_eliciting_at == float("-inf")
    assert rig.packets(now=START + 60) == []


def test_an_acknowledgement_goes_along_with_whatever_leaves_in_no_train() -> None:
    message, ping = Rig(), Rig()
    for rig in (message, ping):
        rig.receive(0, completing=False)
    message.push(100)
    ping.sender.outcomes.ping_due = True

    assert message.kinds() == [["Ack", "Data"]]
    assert ping.kinds() == [["Ack", "Ping"]]


def test_an_acknowledgement_that_leaves_no_room_for_a_fragment_leaves_alone() -> None:
    rig = Rig()
    rig.push(FRAGMENT_BYTES)
    rig.receive(0)

    bare, full = rig.datagrams()

    assert kinds_of(frames_of(bare)) == ["Ack"]
    assert kinds_of(frames_of(full)) == ["Data"]
    assert rig.in_flight == len(full) == DATAGRAM_BYTES


def test_every_eighth_bare_acknowledgement_asks_for_one() -> None:
    rig = Rig()

    kinds = []
    for number in range(3 * ACKS_UNASKED_MAX):
        rig.receive(number)
        kinds += rig.kinds()
        rig.acknowledge((0, number))

    assert kinds == ([["Ack"]] * (ACKS_UNASKED_MAX - 1) + [["Ack", "Ping"]]) * 3


def test_where_fragments_ask_for_acknowledgements_no_ping_is_needed() -> None:
    rig = Rig()

    kinds = []
    for number in range(3 * ACKS_UNASKED_MAX):
        rig.receive(number)
        if number % 5 == 4:
            rig.push(10)
        kinds += rig.kinds()

    assert all("Ping" not in packet for packet in kinds)


def test_what_an_acknowledged_acknowledgement_said_is_not_said_again() -> None:
    rig = Rig()
    rig.receive(0, 2, 4)
    rig.push(10)
    rig.packets()

    rig.acknowledge((0, 0))
    rig.receive(6, 8)

    [[ack]] = rig.packets()
    assert isinstance(ack, Ack)
    assert ack.ranges == [(8, 8), (6, 6)]


# Credit.


def use_up(rig: Rig) -> None:
    """Let the peer have declared more than half of its window, most of which is released."""
    rig.reassembly.declared = WINDOW_BYTES * 3 // 4
    rig.reassembly.release(WINDOW_BYTES // 2)


def test_credit_is_announced_once() -> None:
    rig = Rig()
    use_up(rig)

    assert rig.packets() == [[Credit(WINDOW_BYTES + WINDOW_BYTES // 2)]]
    assert rig.packets() == []
    rig.acknowledge((0, 0))
    assert rig.packets(now=START + 0.1) == []


def test_a_credit_frame_that_was_lost_is_sent_again_with_what_is_true_by_then() -> None:
    rig = Rig()
    use_up(rig)
    rig.packets()
    rig.push(*[FRAGMENT_BYTES] * 3)
    rig.packets()
    rig.reassembly.release(WINDOW_BYTES // 4)

    rig.acknowledge((3, 3))

    [packet] = rig.packets(now=START + 0.1)
    assert packet == [Credit(WINDOW_BYTES + WINDOW_BYTES * 3 // 4)]


def test_credit_never_goes_back() -> None:
    rig = Rig()
    rig.push(10)
    rig.packets()

    rig.sender.outcomes.on_credit(2**41)
    rig.acknowledge((0, 0), credit=5)
    rig.sender.outcomes.on_credit(6)

    assert rig.sender.queue.credit == 2**41


def test_an_acknowledgement_brings_credit() -> None:
    rig = Rig()
    rig.sender.queue.credit = 0
    rig.push(100)
    rig.sender.outcomes.ping_due = True
    assert rig.kinds() == [["Ping"]]

    rig.acknowledge((0, 0), credit=charge_of(100))

    assert rig.kinds(START + 0.1) == [["Data"]]
