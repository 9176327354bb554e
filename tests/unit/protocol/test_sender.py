"""The sender: what goes into a packet."""

from gradwire_protocol.frames import Ack, Challenge, Credit, pack_challenge
from gradwire_protocol.limits import ACK_EVERY, MESSAGE_OVERHEAD_BYTES, WINDOW_BYTES
from gradwire_protocol.packets import TRANSPORT_HEADER
from support.pair import frames_of, kinds_of
from support.sending import DATAGRAM_BYTES, FRAGMENT_BYTES, START, Rig, offsets

# What a packet holds.


def test_where_nothing_is_due_nothing_is_sent() -> None:
    assert Rig().datagrams() == []


def test_packets_are_addressed_to_the_peer_and_numbered_without_gaps() -> None:
    rig = Rig()
    rig.push(5 * FRAGMENT_BYTES)

    headers = [TRANSPORT_HEADER.unpack_from(datagram) for datagram in rig.datagrams()]

    assert headers == [(0x01, 0, 0, 7, number) for number in range(5)]


def test_a_long_message_leaves_in_full_datagrams() -> None:
    rig = Rig()
    rig.push(3 * FRAGMENT_BYTES + 1)

    datagrams = rig.datagrams()

    assert [len(d) for d in datagrams[:-1]] == [DATAGRAM_BYTES] * 3
    assert [offsets(frames_of(d)) for d in datagrams] == [
        [(0, 0)],
        [(0, FRAGMENT_BYTES)],
        [(0, 2 * FRAGMENT_BYTES)],
        [(0, 3 * FRAGMENT_BYTES)],
    ]


def test_short_messages_share_a_packet() -> None:
    rig = Rig()
    rig.push(100, 200, 300, 1000)

    assert [offsets(packet) for packet in rig.packets()] == [[(0, 0), (1, 0), (2, 0)], [(3, 0)]]


def test_one_given_frame_makes_a_packet_of_its_own() -> None:
    rig = Rig()
    rig.push(10)

    datagram = rig.sender.datagram_with(pack_challenge(b"12345678"), START, eliciting=True)

    assert frames_of(datagram) == [Challenge(b"12345678")]
    assert rig.sender.recovery.bytes_in_flight == len(datagram)


# Acknowledgements.


def test_an_acknowledgement_that_is_due_leaves_alone_and_is_not_in_flight() -> None:
    rig = Rig()
    rig.receive(0)

    packets = rig.packets()

    assert packets == [[Ack([(0, 0)], 0.0, WINDOW_BYTES, 0)]]
    assert rig.sender.recovery.bytes_in_flight == 0
    assert rig.sender.last_eliciting_at == float("-inf")
    assert rig.packets(now=START + 60) == []


def test_an_acknowledgement_that_is_not_due_waits_while_fragments_leave() -> None:
    rig = Rig()
    rig.receive(0, completing=False)
    rig.push(100)

    at_once, later = rig.packets(), rig.packets(now=START + 0.005)

    assert [kinds_of(packet) for packet in at_once] == [["Data"]]
    assert [kinds_of(packet) for packet in later] == [["Ack"]]


def test_an_acknowledgement_that_is_due_shares_a_packet_with_a_short_message() -> None:
    rig = Rig()
    rig.receive(0)
    rig.push(100)

    assert [kinds_of(packet) for packet in rig.packets()] == [["Ack", "Data"]]


def test_an_acknowledgement_goes_along_with_whatever_leaves_without_fragments() -> None:
    rig = Rig()
    rig.receive(0, completing=False)
    rig.sender.ping_due = True

    assert [kinds_of(packet) for packet in rig.packets()] == [["Ack", "Ping"]]


def test_every_eighth_bare_acknowledgement_asks_for_one() -> None:
    rig = Rig()

    kinds = []
    for number in range(3 * ACK_EVERY):
        rig.receive(number)
        kinds += [kinds_of(packet) for packet in rig.packets()]
        rig.acknowledge((0, number))

    assert kinds == ([["Ack"]] * (ACK_EVERY - 1) + [["Ack", "Ping"]]) * 3


def test_while_one_asks_no_other_acknowledgement_does() -> None:
    rig = Rig()

    kinds = []
    for number in range(100):
        rig.receive(number)
        kinds += [kinds_of(packet) for packet in rig.packets()]

    assert kinds == [["Ack"]] * (ACK_EVERY - 1) + [["Ack", "Ping"]] + [["Ack"]] * (100 - ACK_EVERY)


def test_an_acknowledgement_that_leaves_no_room_for_a_fragment_leaves_alone() -> None:
    rig = Rig()
    rig.push(FRAGMENT_BYTES)
    rig.receive(0)

    bare, full = rig.datagrams()

    assert kinds_of(frames_of(bare)) == ["Ack"]
    assert kinds_of(frames_of(full)) == ["Data"]
    assert rig.sender.recovery.bytes_in_flight == len(full) == DATAGRAM_BYTES


def test_where_fragments_ask_for_acknowledgements_no_ping_is_needed() -> None:
    rig = Rig()

    kinds = []
    for number in range(3 * ACK_EVERY):
        rig.receive(number)
        if number % 5 == 4:
            rig.push(10)
        kinds += [kinds_of(packet) for packet in rig.packets()]

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


def used_up() -> Rig:
    """Return a rig whose peer has declared more than half of its window, all of it released."""
    rig = Rig()
    rig.reassembly.declared = WINDOW_BYTES * 3 // 4
    rig.reassembly.release(WINDOW_BYTES // 2)
    return rig


def test_credit_is_announced_once() -> None:
    rig = used_up()

    assert rig.packets() == [[Credit(WINDOW_BYTES + WINDOW_BYTES // 2)]]
    assert rig.packets() == []


def test_a_credit_frame_that_was_lost_is_sent_again_with_what_is_true_by_then() -> None:
    rig = used_up()
    rig.packets()
    rig.push(*[FRAGMENT_BYTES] * 3)
    rig.packets()
    rig.reassembly.release(WINDOW_BYTES // 4)

    rig.acknowledge((3, 3))

    [packet] = rig.packets(now=START + 0.1)
    assert packet == [Credit(WINDOW_BYTES + WINDOW_BYTES * 3 // 4)]


def test_a_credit_frame_that_arrived_is_not_repeated() -> None:
    rig = used_up()
    rig.packets()

    rig.acknowledge((0, 0))

    assert rig.packets(now=START + 0.1) == []


def test_credit_never_goes_back() -> None:
    rig = Rig()
    rig.push(10)
    rig.packets()

    rig.sender.on_credit(2**41)
    rig.acknowledge((0, 0), credit=5)
    rig.sender.on_credit(6)

    assert rig.sender.queue.credit == 2**41


def test_an_acknowledgement_brings_credit() -> None:
    rig = Rig()
    rig.sender.queue.credit = 0
    rig.push(100)
    rig.sender.ping_due = True
    assert [kinds_of(packet) for packet in rig.packets()] == [["Ping"]]

    rig.acknowledge((0, 0), credit=100 + MESSAGE_OVERHEAD_BYTES)

    assert [kinds_of(packet) for packet in rig.packets(now=START + 0.1)] == [["Data"]]
