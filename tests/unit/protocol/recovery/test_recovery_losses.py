"""Loss recovery: what counts as lost, what was only late, and what congestion control hears."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.limits import (
    PACKET_THRESHOLD,
    PACKET_THRESHOLD_MAX,
    PERSISTENT_CONGESTION_TIMEOUTS,
    TIME_THRESHOLD_MAX,
)
from gradwire_protocol.recovery.sent_packets import PacketContents
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


@given(sent_at=st.floats(0, 1e6), rtt=st.floats(1e-4, 1.0))
def test_the_timer_never_fires_in_vain_whatever_rounding_does(sent_at: float, rtt: float) -> None:
    recovery, _ = new_recovery()
    send(recovery, 2, now=sent_at)
    recovery.on_ack(ack((1, 1)), now=sent_at + rtt)
    deadline = recovery.deadline
    assert deadline is not None

    outcome, _ = recovery.on_timeout(deadline)

    assert lost(outcome) == [0]


# Packets that try a size out.


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


# What was not lost after all.


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


def test_patience_has_limits() -> None:
    recovery, _ = new_recovery()
    n = PACKET_THRESHOLD_MAX + 10
    send(recovery, 2 * n, now=1.0)
    recovery.on_ack(ack((n, n)), now=1.1)
    recovery.on_ack(ack((0, n)), now=1.4)

    outcome = recovery.on_ack(ack((2 * n - 1, 2 * n - 1)), now=1.1)

    assert recovery.deadline == pytest.approx(1.0 + TIME_THRESHOLD_MAX * 0.1)
    assert lost(outcome) == [*range(n + 1, 2 * n - PACKET_THRESHOLD_MAX)]


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
