"""The sender: what is sent again, and what may leave when."""

from gradwire_protocol.frames import Ping
from support.pair import frames_of, kinds_of, packet_number
from support.sending import DATAGRAM_BYTES, FRAGMENT_BYTES, START, Rig, offsets

# Loss.


def test_what_a_lost_packet_carried_is_sent_again_in_a_new_packet() -> None:
    rig = Rig()
    rig.push(4 * FRAGMENT_BYTES)
    first, *_ = rig.datagrams()

    rig.acknowledge((1, 3))
    again = rig.datagrams(now=START + 0.1)

    assert [packet_number(d) for d in again] == [4]
    assert frames_of(again[0]) == frames_of(first)
    assert rig.counters.packets_lost == 1
    assert (rig.counters.fragments_sent, rig.counters.fragments_retransmitted) == (5, 1)


def test_a_message_has_arrived_when_all_of_it_has_even_if_some_was_only_late() -> None:
    rig = Rig()
    rig.push(4 * FRAGMENT_BYTES)
    rig.packets()

    assert rig.acknowledge((1, 3)) == []
    assert rig.acknowledge((0, 3)) == [0]

    assert rig.packets(now=START + 0.1) == [], "what was only late is not sent again"
    assert rig.counters.packets_spuriously_lost == 1
    assert rig.sender.queue.bytes_queued == 0


def test_a_loss_by_time_is_found_by_the_timer() -> None:
    rig = Rig()
    rig.push(2 * FRAGMENT_BYTES)
    rig.packets()
    rig.acknowledge((1, 1))

    now = rig.fire()

    assert [offsets(packet) for packet in rig.packets(now)] == [[(0, 0)]]
    assert rig.counters.probe_timeouts == 0
    assert rig.counters.packets_lost == 1


# Probes.


def test_a_probe_is_new_data_where_there_is_some() -> None:
    rig = Rig()
    rig.push(FRAGMENT_BYTES)
    rig.packets()
    rig.push(FRAGMENT_BYTES)

    now = rig.fire()

    assert [offsets(packet) for packet in rig.packets(now)] == [[(1, 0)]]
    assert rig.counters.probe_timeouts == 1
    assert rig.counters.packets_lost == 0


def test_a_probe_is_old_data_where_there_is_no_new() -> None:
    rig = Rig()
    rig.push(3 * FRAGMENT_BYTES)
    sent = rig.packets()

    now = rig.fire()

    assert rig.packets(now) == sent[:2]
    assert rig.counters.packets_lost == 0


def test_a_probe_is_a_ping_where_there_is_no_data() -> None:
    rig = Rig()
    rig.sender.ping_due = True
    rig.packets()

    now = rig.fire()

    assert rig.packets(now) == [[Ping()]]


def test_probes_leave_whatever_the_congestion_window_says() -> None:
    rig = Rig()
    rig.fill_the_window()
    in_flight = rig.sender.recovery.bytes_in_flight
    assert in_flight + DATAGRAM_BYTES > rig.sender.recovery.controller.window_bytes

    now = rig.fire()

    assert len(rig.packets(now)) == 2
    assert rig.sender.recovery.bytes_in_flight == in_flight + 2 * DATAGRAM_BYTES


def test_before_its_time_the_timer_does_nothing() -> None:
    rig = Rig()
    rig.sender.handle_timer(START)
    rig.push(10)
    rig.packets()

    rig.sender.handle_timer(START + 0.01)

    assert rig.packets(now=START + 0.01) == []
    assert rig.counters.probe_timeouts == 0


# Congestion and pacing.


def test_the_congestion_window_holds_fragments_back_and_nothing_else() -> None:
    rig = Rig()
    now = rig.fill_the_window()
    window = rig.sender.recovery.controller.window_bytes
    assert window - DATAGRAM_BYTES < rig.sender.recovery.bytes_in_flight <= window

    rig.receive(0, now=now)

    assert [kinds_of(packet) for packet in rig.packets(now)] == [["Ack"]]


def test_an_acknowledgement_lets_more_fragments_go() -> None:
    rig = Rig()
    now = rig.fill_the_window()

    rig.acknowledge((0, 3), now=now)

    # Four packets have left the window, and it has grown by as many.
    assert len(rig.packets(now + 1.0)) == 8


def test_pacing_holds_fragments_back_until_a_deadline() -> None:
    rig = Rig()
    rig.push(20 * FRAGMENT_BYTES)
    at_once = rig.packets()
    _, _, ready_at = rig.sender.deadlines
    assert len(at_once) == 10
    assert ready_at is not None
    assert ready_at > START

    assert rig.packets(now=START + (ready_at - START) / 2) == []
    assert len(rig.packets(now=ready_at)) == 1


def test_with_nothing_left_to_send_there_is_no_pacing_deadline() -> None:
    rig = Rig()
    rig.push(11 * FRAGMENT_BYTES)
    rig.packets()

    rig.packets(now=START + 1.0)

    assert rig.sender.deadlines[2] is None


def test_a_loss_by_time_is_no_probe_timeout_even_where_a_probe_is_left() -> None:
    rig = Rig()
    rig.sender.ping_due = True
    rig.packets()
    probed_at = rig.fire()
    assert rig.packets(probed_at) == [[Ping()]]
    rig.receive(0, now=probed_at)
    assert [kinds_of(p) for p in rig.packets(probed_at)] == [["Ack"]]
    rig.acknowledge((2, 2), now=probed_at + 0.01)

    rig.fire()

    assert rig.counters.packets_lost == 2
    assert rig.counters.probe_timeouts == 1


# Stalls.


def test_where_nothing_is_unanswered_nothing_is_stalled() -> None:
    rig = Rig()
    assert rig.sender.stall(1.0, START + 1000) is None
    rig.push(10)
    rig.packets()
    rig.acknowledge((0, 0))

    assert rig.sender.stall(1.0, START + 1000) is None


def test_a_packet_that_nothing_answers_is_a_stall_exactly_when_it_is_time() -> None:
    rig = Rig()
    rig.push(FRAGMENT_BYTES)
    rig.packets()

    assert rig.sender.stall(60.0, START + 59.9) is None
    assert rig.sender.stall(60.0, START + 60.0) == (
        "nothing of a message arrived for 60 seconds; the path may not carry datagrams of "
        f"{DATAGRAM_BYTES} bytes: try datagram_bytes=1200"
    )


def test_what_is_smaller_answers_nothing_and_what_is_as_large_does() -> None:
    rig = Rig()
    rig.push(FRAGMENT_BYTES, FRAGMENT_BYTES - 1, FRAGMENT_BYTES)
    rig.packets()

    rig.acknowledge((1, 1))
    assert rig.sender.stall(60.0, START + 60) is not None
    rig.acknowledge((1, 2))

    assert rig.sender.stall(60.0, START + 60) is None


def test_a_packet_is_answered_when_what_it_held_has_arrived_in_smaller_ones() -> None:
    rig = Rig()
    half = FRAGMENT_BYTES // 2 - 10
    rig.push(half, half)
    assert [len(packet) for packet in rig.packets()] == [2]
    now = rig.fire()
    rig.receive(0, now=now)
    assert [kinds_of(packet) for packet in rig.packets(now)] == [["Ack", "Data"], ["Data"]]

    rig.acknowledge((1, 1), now=now)
    assert rig.sender.stall(60.0, START + 60) is not None
    rig.acknowledge((1, 2), now=now)

    assert rig.sender.stall(60.0, START + 60) is None
