"""The sender: what is sent again, and what may leave when."""

import pytest

from gradwire_protocol.delivery.shaped_message import packet_bytes
from gradwire_protocol.limits import COLD_PROBE_PACKETS_MAX
from gradwire_protocol.wire.frames import Ping
from support.pair import frames_of, kinds_of, packet_number
from support.sending import DATAGRAM_BYTES, FRAGMENT_BYTES, START, Diary, Rig, fragments_of
from support.wording import naming

MUCH = (COLD_PROBE_PACKETS_MAX + 1) * FRAGMENT_BYTES
"""Bytes of which a probe does not repeat everything."""

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


def test_fragments_lost_here_and_there_leave_in_one_train_the_short_one_last() -> None:
    rig = Rig()
    rig.push(9 * FRAGMENT_BYTES + 100)
    rig.datagrams()
    rig.push(4 * FRAGMENT_BYTES)
    rig.datagrams()

    rig.acknowledge((10, 13), (5, 8), (3, 3), (0, 1))
    [train] = rig.trains(now=START + 0.1)

    assert [fragments_of(frames_of(d)) for d in train] == [[(0, 2)], [(0, 4)], [(0, 9)]]
    assert [len(d) for d in train] == [DATAGRAM_BYTES, DATAGRAM_BYTES, packet_bytes(100)]


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

    assert rig.fragments(now) == [[(0, 0)]]
    assert rig.counters.probe_timeouts == 0
    assert rig.counters.packets_lost == 1


# Probes.


@pytest.mark.parametrize(
    ("sizes", "later", "probed"),
    [
        pytest.param(
            [FRAGMENT_BYTES], [FRAGMENT_BYTES], [[(1, 0)], [(0, 0)]] * 2, id="new data first"
        ),
        pytest.param([MUCH], [], [[(0, i)] for i in range(8)], id="the beginning of what is much"),
        pytest.param([FRAGMENT_BYTES], [], [[(0, 0)]] * 4, id="one packet four times"),
        pytest.param([3 * FRAGMENT_BYTES], [], [[(0, i)] for i in (0, 1, 2, 0)], id="all three"),
        pytest.param([7 * FRAGMENT_BYTES], [], [[(0, i)] for i in range(7)], id="all seven"),
        pytest.param([100, 50], [], [[(1, 0), (0, 0)]] * 4, id="small messages too"),
    ],
)
def test_a_probe_is_new_data_and_what_is_under_way(
    sizes: list[int], later: list[int], probed: list[list[tuple[int, int]]]
) -> None:
    """The end of a message would otherwise take a round trip for every two packets lost."""
    rig = Rig()
    rig.push(*sizes)
    rig.packets()
    rig.push(*later)

    now = rig.fire()

    assert rig.fragments(now) == probed
    assert rig.counters.probe_timeouts == 1
    assert rig.counters.packets_lost == 0


def test_the_second_probe_goes_with_a_small_packet() -> None:
    """Where it arrives and the large ones do not, they are too large."""
    rig = Rig()
    rig.push(3 * FRAGMENT_BYTES)
    rig.packets()
    first, second = (rig.packets(rig.fire()) for _ in range(2))

    assert [kinds_of(packet) for packet in first] == [["Data"]] * 4
    assert [kinds_of(packet) for packet in second] == [["Ping"], *[["Data"]] * 7]


def test_probes_leave_whatever_the_congestion_window_and_the_pace_say() -> None:
    rig = Rig(controller=Diary(window_bytes=20 * DATAGRAM_BYTES, pacing_rate=1e5))
    rig.push(100 * FRAGMENT_BYTES)
    now = START
    while rig.datagrams(now) or rig.sender.deadlines[2]:
        now = rig.sender.deadlines[2] or now
    in_flight = rig.in_flight
    assert in_flight == 20 * DATAGRAM_BYTES

    now = rig.fire()

    assert len(rig.packets(now)) == COLD_PROBE_PACKETS_MAX
    assert rig.in_flight == in_flight + COLD_PROBE_PACKETS_MAX * DATAGRAM_BYTES


def test_a_loss_by_time_is_no_probe_timeout_even_where_a_probe_is_left() -> None:
    rig = Rig()
    rig.sender.outcomes.ping_due = True
    rig.packets()
    probed_at = rig.fire()
    assert rig.packets(probed_at) == [[Ping()]]
    rig.receive(0, now=probed_at)
    assert rig.kinds(probed_at) == [["Ack"]]
    rig.sender.outcomes.ping_due = True
    rig.packets(probed_at)
    rig.acknowledge((3, 3), now=probed_at + 0.01)

    rig.fire()

    assert rig.counters.packets_lost == 2
    assert rig.counters.probe_timeouts == 1


# Stalls.


def test_a_packet_that_nothing_answers_is_a_stall_exactly_when_it_is_time() -> None:
    rig = Rig()
    rig.push(FRAGMENT_BYTES)
    rig.packets()

    assert rig.sender.outcomes.stall(60.0, START + 59.9) is None
    assert rig.sender.outcomes.stall(60.0, START + 60.0) == naming("60 seconds", DATAGRAM_BYTES)


def test_what_is_smaller_answers_nothing_and_what_is_as_large_does() -> None:
    rig = Rig()
    rig.push(FRAGMENT_BYTES)
    rig.packets()
    rig.push(FRAGMENT_BYTES - 40)
    rig.push(FRAGMENT_BYTES)
    rig.packets()

    rig.acknowledge((1, 1))
    assert rig.sender.outcomes.stall(60.0, START + 60) is not None
    rig.acknowledge((1, 2))

    assert rig.sender.outcomes.stall(60.0, START + 60) is None


def test_a_packet_is_answered_when_what_it_held_has_arrived_in_smaller_ones() -> None:
    rig = Rig()
    half = FRAGMENT_BYTES // 2 - 40
    rig.push(half, half)
    assert [len(packet) for packet in rig.packets()] == [2]
    now = rig.fire()
    rig.receive(*range(0, 140, 2), now=now)
    assert rig.kinds(now)[:2] == [["Ack", "Data"], ["Data"]]

    rig.acknowledge((1, 1), now=now)
    assert rig.sender.outcomes.stall(60.0, START + 60) is not None
    rig.acknowledge((1, 2), now=now)

    assert rig.sender.outcomes.stall(60.0, START + 60) is None
