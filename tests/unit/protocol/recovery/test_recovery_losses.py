"""Loss recovery: what counts as lost, what was only late, and what congestion control hears."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.congestion import Cubic
from gradwire_protocol.limits import (
    GRANULARITY_SECONDS,
    PACKET_THRESHOLD,
    PACKET_THRESHOLD_MAX,
    PERSISTENT_CONGESTION_TIMEOUTS,
    TIME_THRESHOLD,
    TIME_THRESHOLD_MAX,
)
from gradwire_protocol.recovery.recovery import Recovery
from gradwire_protocol.recovery.sent_packets import PacketContents
from gradwire_protocol.wire.frames import Ack
from support.acks import ack
from support.recovering import SIZE, arrived, in_flight, lost, new_recovery, send, send_other

# What is lost.


def test_three_packets_older_than_an_acknowledged_one_is_lost() -> None:
    recovery, diary = new_recovery()
    send(recovery, 5)

    outcome = recovery.on_ack(ack((4, 4)), now=0.1)

    assert arrived(outcome) == [4]
    assert lost(outcome) == [0, 1] == list(range(5 - PACKET_THRESHOLD))
    assert in_flight(recovery) == [2, 3]
    assert recovery.sent.bytes_in_flight == 2 * SIZE
    assert diary.losses == [(2 * SIZE, 0.0, 2 * SIZE)]


def test_older_by_nine_eighths_of_a_round_trip_is_lost() -> None:
    recovery, _ = new_recovery()
    send(recovery, 2, now=1.0)

    at_once = recovery.on_ack(ack((1, 1)), now=1.1)
    deadline = recovery.deadline
    assert deadline is not None
    early, _ = recovery.on_timeout(deadline - 0.0001)
    outcome, probing = recovery.on_timeout(deadline)

    assert not probing
    assert deadline == pytest.approx(1.0 + TIME_THRESHOLD * 0.1)
    assert [lost(each) for each in (at_once, early, outcome)] == [[], [], [0]]
    assert recovery.sent.bytes_in_flight == 0
    assert recovery.timeouts == 0
    assert recovery.deadline is None


def test_of_several_the_timer_waits_for_the_oldest_that_is_left() -> None:
    recovery, _ = new_recovery()
    for now in (1.0, 1.005, 1.01):
        send(recovery, now=now)
    recovery.on_ack(ack((2, 2)), now=1.11)

    found = []
    while (deadline := recovery.deadline) is not None:
        outcome, _ = recovery.on_timeout(deadline)
        found.append((deadline, lost(outcome)))

    assert [packets for _, packets in found] == [[0], [1]]
    assert [deadline for deadline, _ in found] == pytest.approx([1.1125, 1.1175])
    assert in_flight(recovery) == []


@given(sent_at=st.floats(0, 1e6), rtt=st.floats(1e-4, 1.0))
def test_the_timer_never_fires_in_vain_whatever_rounding_does(sent_at: float, rtt: float) -> None:
    recovery, _ = new_recovery()
    send(recovery, 2, now=sent_at)
    recovery.on_ack(ack((1, 1)), now=sent_at + rtt)
    deadline = recovery.deadline
    assert deadline is not None

    outcome, _ = recovery.on_timeout(deadline)

    assert lost(outcome) == [0]


def test_on_a_fast_path_the_granularity_is_waited_for() -> None:
    recovery, _ = new_recovery()
    send(recovery, 2, now=1.0)

    recovery.on_ack(ack((1, 1)), now=1.0001)

    assert recovery.deadline == pytest.approx(1.0 + GRANULARITY_SECONDS)


def test_losing_what_only_says_something_is_no_sign_of_congestion() -> None:
    recovery, diary = new_recovery()
    for _ in range(10):
        send_other(recovery, PacketContents(ack_largest=1), eliciting=False)
    send(recovery)

    outcome = recovery.on_ack(ack((10, 10)), now=0.01)

    assert (outcome.lost, outcome.lost_packets, diary.losses) == (None, 0, [])


# Packets that try a size out.


def test_of_what_is_lost_together_the_size_probe_does_not_count() -> None:
    recovery, diary = new_recovery()
    send_other(recovery, PacketContents(probe_bytes=SIZE))
    send(recovery, 5)

    outcome = recovery.on_ack(ack((5, 5)), now=0.1)

    assert (lost(outcome), outcome.lost_packets) == ([1, 2], 2)
    assert diary.losses == [(2 * SIZE, 0.0, 2 * SIZE)]


@pytest.mark.parametrize(("first", "told"), [(0, [2 * SIZE]), (2, [])])
def test_a_size_probe_that_was_only_late_takes_nothing_back(first: int, told: list[int]) -> None:
    recovery, diary = new_recovery()
    send(recovery, 2)
    probe = PacketContents(probe_bytes=SIZE)
    send_other(recovery, probe)
    send(recovery, 3)
    recovery.on_ack(ack((5, 5)), now=0.1)

    outcome = recovery.on_ack(ack((first, 5)), now=0.105)

    assert outcome.arrived_contents == [probe]
    assert diary.taken_back == told


def test_the_smallest_packet_lost_and_the_largest_that_arrived_are_known() -> None:
    recovery, _ = new_recovery()
    for size in (1200, 1400, 1300, 800, 900, 700):
        recovery.on_packet(size, None, eliciting=True, now=0.0)

    first = recovery.on_ack(ack((5, 5)), now=0.1)
    late = recovery.on_ack(ack((1, 1)), now=0.1)

    assert (first.smallest_lost_bytes, first.largest_acked_bytes) == (1200, 700)
    assert late.largest_acked_bytes == 1400


# What was not lost after all.


@pytest.mark.parametrize("late", [ack((0, 4)), ack((4, 4), (0, 1))], ids=["long run", "short run"])
def test_a_packet_that_was_only_late_arrived(late: Ack) -> None:
    recovery, diary = new_recovery()
    send(recovery, 5)
    recovery.on_ack(ack((4, 4)), now=0.1)

    outcome = recovery.on_ack(late, now=0.105)
    again = recovery.on_ack(late, now=0.105)

    assert set(arrived(outcome)) >= {0, 1}
    assert (outcome.spurious_losses, again.spurious_losses) == (2, 0)
    assert lost(outcome) == []
    assert diary.taken_back == [2 * SIZE]


def test_a_packet_as_late_as_one_before_is_waited_for() -> None:
    """By number, eight packets behind; the one that is nine behind is not waited for."""
    recovery, _ = new_recovery()
    send(recovery, 10)
    recovery.on_ack(ack((8, 8)), now=0.1)
    recovery.on_ack(ack((1, 1)), now=0.1)
    recovery.on_ack(ack((0, 9)), now=0.1)

    send(recovery, 11)
    outcome = recovery.on_ack(ack((20, 20)), now=0.1)

    assert lost(outcome) == [10, 11]


def test_a_packet_as_late_in_time_as_one_before_is_waited_for() -> None:
    recovery, _ = new_recovery()
    send(recovery, 2, now=1.0)
    recovery.on_ack(ack((1, 1)), now=1.1)
    assert lost(recovery.on_timeout(1.2)[0]) == [0]
    recovery.on_ack(ack((0, 0)), now=1.15)

    send(recovery, 2, now=2.0)
    recovery.on_ack(ack((3, 3)), now=2.1)

    patience = 1 + 1.25 * 0.5  # it came half a round trip late
    assert recovery.deadline == pytest.approx(2.0 + patience * 0.1)


def test_patience_has_limits() -> None:
    recovery, _ = new_recovery()
    n = PACKET_THRESHOLD_MAX + 10
    send(recovery, 2 * n, now=1.0)
    recovery.on_ack(ack((n, n)), now=1.1)
    recovery.on_ack(ack((0, n)), now=1.4)

    outcome = recovery.on_ack(ack((2 * n - 1, 2 * n - 1)), now=1.1)

    assert recovery.deadline == pytest.approx(1.0 + TIME_THRESHOLD_MAX * 0.1)
    assert lost(outcome) == [*range(n + 1, 2 * n - PACKET_THRESHOLD_MAX)]


@pytest.mark.parametrize(("timeouts", "late"), [(2.9, [0, 1]), (3.1, [])])
def test_a_lost_packet_is_forgotten_when_nobody_will_acknowledge_it_any_more(
    timeouts: float, late: list[int]
) -> None:
    recovery, diary = new_recovery()
    send(recovery, 5, now=1.0)
    recovery.on_ack(ack((4, 4)), now=1.1)
    now = 1.0 + timeouts * (0.1 + 4 * 0.0375 + 0.005)
    send(recovery, now=now - 0.1)
    recovery.on_ack(ack((5, 5)), now=now)

    outcome = recovery.on_ack(ack((5, 5), (0, 1)), now=now)

    assert (arrived(outcome), outcome.spurious_losses) == (late, len(late))
    assert diary.taken_back == [SIZE * len(late)] * bool(late)


def test_a_controller_that_believed_a_loss_has_its_window_back_when_there_was_none() -> None:
    controller = Cubic(SIZE, lambda: 0.5)
    recovery = Recovery(controller)
    send(recovery, 20)
    window = controller.window_bytes

    recovery.on_ack(ack((19, 19)), now=0.1)
    reduced = controller.window_bytes
    recovery.on_ack(ack((0, 19)), now=0.105)

    assert reduced < window <= controller.window_bytes


# Persistent congestion.


def losing_apart(
    timeouts: float, *, arrives: bool = False, sampled: bool = True, asks: bool = True
) -> int:
    """Lose two packets, so many probe timeouts apart; return how often all had to begin anew.

    Parameters
    ----------
    timeouts : float
    arrives : bool
        Whether one in between arrived.
    sampled : bool
        Whether the round-trip time was known before.
    asks : bool
        Whether the one in between asks for an acknowledgement.
    """
    recovery, diary = new_recovery()
    now = 1.0
    if sampled:
        send(recovery, now=now)
        recovery.on_ack(ack((0, 0)), now=now + 0.1)
    else:
        recovery.sent.skip_number()
    now += 1.0
    apart = timeouts * (0.1 + 4 * 0.0375 + 0.005)
    send(recovery, now=now)
    send_other(recovery, now=now + apart / 2, eliciting=asks)
    send(recovery, now=now + apart)
    send(recovery, now=now + apart + 0.5)
    runs = [(4, 4), (2, 2)] if arrives else [(4, 4)]
    recovery.on_ack(ack(*runs), now=now + apart + 0.6)
    assert in_flight(recovery) == []
    return diary.collapses


def test_losing_everything_for_three_probe_timeouts_is_persistent_congestion() -> None:
    timeouts = PERSISTENT_CONGESTION_TIMEOUTS
    shorter, longer = losing_apart(0.9 * timeouts), losing_apart(1.1 * timeouts)

    assert (shorter, longer) == (0, 1)


def test_where_something_in_between_arrived_the_path_is_still_there() -> None:
    assert losing_apart(1.9 * PERSISTENT_CONGESTION_TIMEOUTS, arrives=True) == 0
    assert losing_apart(1.9 * PERSISTENT_CONGESTION_TIMEOUTS, arrives=True, asks=False) == 0
    assert losing_apart(1.9 * PERSISTENT_CONGESTION_TIMEOUTS, asks=False) == 1


def test_before_the_round_trip_time_is_known_nothing_is_known_to_last_long() -> None:
    assert losing_apart(2.5 * PERSISTENT_CONGESTION_TIMEOUTS, sampled=False) == 0


def test_one_size_probe_after_the_other_lost_is_no_persistent_congestion() -> None:
    recovery, diary = new_recovery()
    send(recovery, now=1.0)
    recovery.on_ack(ack((0, 0)), now=1.1)
    for now in (2.0, 3.0, 4.0):
        send_other(recovery, PacketContents(probe_bytes=SIZE), now=now)
    send(recovery, now=5.0)

    recovery.on_ack(ack((4, 4)), now=5.1)

    assert (diary.losses, diary.collapses) == ([], 0)
