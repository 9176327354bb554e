"""Loss recovery: what counts as arrived, what as lost, and when to ask."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import CloseCode, ViolationError
from gradwire_protocol.congestion import NewReno
from gradwire_protocol.frames import Ack
from gradwire_protocol.limits import (
    ACK_DELAY_SECONDS_MAX,
    ACK_RECORDS_MAX,
    GRANULARITY_SECONDS,
    PACKET_THRESHOLD,
    PROBE_PACKETS,
    PTO_BACKOFF_MAX,
    TIME_THRESHOLD,
)
from gradwire_protocol.recovery import Recovery, SentPacket

SIZE = 1000


def new_recovery() -> Recovery:
    """Return the recovery of a connection that has sent nothing."""
    return Recovery(NewReno(SIZE))


def send(recovery: Recovery, n: int = 1, *, now: float = 0.0, eliciting: bool = True) -> None:
    """Send packets."""
    for _ in range(n):
        recovery.on_sent(SentPacket(recovery.next_number, now, SIZE, eliciting))


def ack(*ranges: tuple[int, int], delay: float = 0.0) -> Ack:
    """Return an acknowledgement of these runs, newest first."""
    return Ack(ranges, delay, credit=0, marked=0)


def numbers(packets: list[SentPacket]) -> list[int]:
    """Return the numbers of packets."""
    return sorted(packet.number for packet in packets)


# What arrives.


def test_a_packet_is_acknowledged_once() -> None:
    recovery = new_recovery()
    send(recovery, 3)

    first = recovery.on_ack(ack((0, 1)), now=0.1)
    second = recovery.on_ack(ack((0, 2)), now=0.2)
    third = recovery.on_ack(ack((0, 2)), now=0.3)

    assert [numbers(acked) for acked, _ in (first, second, third)] == [[0, 1], [2], []]
    assert [lost for _, lost in (first, second, third)] == [[], [], []]


def test_an_acknowledgement_may_reach_back_behind_all_that_is_remembered() -> None:
    recovery = new_recovery()
    for i in range(10):
        send(recovery, 10, now=i)
        recovery.on_ack(ack((10 * i, 10 * i + 9)), now=i + 0.1)
    send(recovery, 2, now=10)

    acked, lost = recovery.on_ack(ack((0, 101)), now=10.1)

    assert (numbers(acked), lost) == ([100, 101], [])


@given(
    first=st.sets(st.integers(0, 59)),
    then=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 10**15)), min_size=1, max_size=65),
    base=st.sampled_from([0, 2**32, 2**60]),
)
def test_of_what_is_named_that_is_taken_which_is_remembered_and_nothing_else_looked_at(
    first: set[int], then: list[tuple[int, int]], base: int
) -> None:
    """Acknowledge single packets, then runs so long that nobody can look at each number."""
    recovery = new_recovery()
    recovery.next_number = base
    send(recovery, 60)
    if first:
        recovery.on_ack(ack(*((base + n, base + n) for n in sorted(first, reverse=True))), now=0.1)
    runs, below = list[tuple[int, int]](), base + 60
    for gap, length in then:
        last = below - gap
        runs.append((max(last - length + 1, 0), max(last, 0)))
        below = runs[-1][0] - 1
        if below <= 20:
            break

    acked, _ = recovery.on_ack(ack(*runs), now=0.1)

    named = {n for n in range(60) if any(low <= base + n <= high for low, high in runs)}
    assert numbers(acked) == sorted(base + n for n in named - first)


def test_acknowledging_a_packet_never_sent_is_a_violation() -> None:
    recovery = new_recovery()
    send(recovery, 2)

    with pytest.raises(ViolationError, match="packet 2; 2 were sent") as violation:
        recovery.on_ack(ack((0, 2)), now=0.1)

    assert violation.value.code == CloseCode.VIOLATION
    assert numbers(list(recovery.in_flight())) == [0, 1]


def test_only_packets_that_ask_for_an_acknowledgement_are_in_flight() -> None:
    recovery = new_recovery()

    send(recovery, 2)
    send(recovery, 3, eliciting=False)

    assert recovery.bytes_in_flight == 2 * SIZE
    assert numbers(list(recovery.in_flight())) == [0, 1]


def test_without_packets_in_flight_there_is_nothing_to_wait_for() -> None:
    recovery = new_recovery()

    deadlines = [recovery.deadline]
    send(recovery, 3, eliciting=False)
    deadlines.append(recovery.deadline)
    send(recovery)
    deadlines.append(recovery.deadline)
    recovery.on_ack(ack((0, 3)), now=0.1)
    deadlines.append(recovery.deadline)

    assert [deadline is None for deadline in deadlines] == [True, True, False, True]


def test_of_packets_that_nobody_has_to_acknowledge_only_the_newest_are_remembered() -> None:
    recovery = new_recovery()
    send(recovery, 2)
    send(recovery, 10 * ACK_RECORDS_MAX, eliciting=False)
    newest = recovery.next_number - 1

    acked, _ = recovery.on_ack(ack((0, newest)), now=0.1)

    remembered = range(newest - ACK_RECORDS_MAX + 1, newest + 1)
    assert numbers(acked) == [0, 1, *remembered]


# The round-trip time.


def test_the_newest_packet_gives_the_sample() -> None:
    recovery = new_recovery()
    send(recovery, now=1.0)
    send(recovery, now=1.5)

    recovery.on_ack(ack((0, 1)), now=1.6)

    assert recovery.rtt.latest == pytest.approx(0.1)


def test_an_old_packet_gives_no_sample() -> None:
    recovery = new_recovery()
    send(recovery, 2, now=1.0)
    recovery.on_ack(ack((1, 1)), now=1.1)

    recovery.on_ack(ack((0, 1)), now=5.0)

    assert recovery.rtt.latest == pytest.approx(0.1)


def test_packets_that_do_not_ask_give_no_sample() -> None:
    recovery = new_recovery()
    send(recovery, 2, now=1.0, eliciting=False)

    recovery.on_ack(ack((0, 1)), now=1.1)

    assert recovery.rtt.latest == 0.0


def test_no_more_delay_is_believed_than_the_protocol_allows() -> None:
    recovery = new_recovery()
    send(recovery, now=1.0)
    recovery.on_ack(ack((0, 0)), now=1.1)
    send(recovery, now=2.0)

    recovery.on_ack(ack((0, 1), delay=0.5), now=2.6)

    adjusted = 0.6 - ACK_DELAY_SECONDS_MAX
    assert recovery.rtt.smoothed == pytest.approx(7 / 8 * 0.1 + 1 / 8 * adjusted)


def test_an_answer_within_the_clocks_resolution_is_a_sample() -> None:
    recovery = new_recovery()
    send(recovery, now=1.0)

    recovery.on_ack(ack((0, 0)), now=1.0)

    assert recovery.rtt.latest > 0


# What is lost.


def test_three_packets_older_than_an_acknowledged_one_is_lost() -> None:
    recovery = new_recovery()
    send(recovery, 5)

    acked, lost = recovery.on_ack(ack((4, 4)), now=0.1)

    assert numbers(acked) == [4]
    assert numbers(lost) == [0, 1] == list(range(5 - PACKET_THRESHOLD))
    assert numbers(list(recovery.in_flight())) == [2, 3]
    assert recovery.bytes_in_flight == 2 * SIZE


def test_older_by_nine_eighths_of_a_round_trip_is_lost() -> None:
    recovery = new_recovery()
    send(recovery, 2, now=1.0)

    _, lost_at_once = recovery.on_ack(ack((1, 1)), now=1.1)
    deadline = recovery.deadline
    assert deadline is not None
    lost_early, _ = recovery.on_timeout(deadline - 0.0001)
    lost, probing = recovery.on_timeout(deadline)

    assert not probing
    assert deadline == pytest.approx(1.0 + TIME_THRESHOLD * 0.1)
    assert (lost_at_once, lost_early) == ([], [])
    assert numbers(lost) == [0]
    assert recovery.bytes_in_flight == 0
    assert recovery.probes == 0
    assert recovery.deadline is None


def test_on_a_fast_path_the_granularity_is_waited_for() -> None:
    recovery = new_recovery()
    send(recovery, 2, now=1.0)

    recovery.on_ack(ack((1, 1)), now=1.0001)

    assert recovery.deadline == pytest.approx(1.0 + GRANULARITY_SECONDS)


def test_a_packet_sent_after_the_newest_acknowledged_one_is_not_lost() -> None:
    recovery = new_recovery()
    send(recovery, now=1.0)
    send(recovery, 10, now=1.0)

    recovery.on_ack(ack((0, 0)), now=1.1)
    lost, _ = recovery.on_timeout(1000.0)

    assert lost == []
    assert numbers(list(recovery.in_flight())) == [*range(1, 11)]


def test_a_loss_is_told_to_the_congestion_controller_once() -> None:
    recovery = new_recovery()
    send(recovery, 20)
    window = recovery.controller.window_bytes

    recovery.on_ack(ack((19, 19)), now=0.1)

    # It grew by the packet that was acknowledged, and then seventeen were lost.
    assert recovery.controller.window_bytes == (window + SIZE) // 2


def test_losing_a_bare_acknowledgement_is_no_sign_of_congestion() -> None:
    recovery = new_recovery()
    send(recovery, 10, eliciting=False)
    send(recovery)
    window = recovery.controller.window_bytes

    _, lost = recovery.on_ack(ack((10, 10)), now=0.01)

    assert numbers(lost) == [*range(8)]
    assert recovery.controller.window_bytes == window
    assert recovery.bytes_in_flight == 0


# What was not lost after all.


@pytest.mark.parametrize("late", [ack((0, 4)), ack((4, 4), (0, 1))], ids=["long run", "short run"])
def test_a_packet_that_was_only_late_is_recognised(late: Ack) -> None:
    recovery = new_recovery()
    send(recovery, 5)
    recovery.on_ack(ack((4, 4)), now=0.1)

    acked, lost = recovery.on_ack(late, now=0.105)

    assert set(numbers(acked)) >= {0, 1}
    assert lost == []
    assert recovery.spurious_losses == 2


def test_a_lost_packet_is_forgotten_when_nobody_will_acknowledge_it_any_more() -> None:
    recovery = new_recovery()
    send(recovery, 5)
    recovery.on_ack(ack((4, 4)), now=0.1)
    late = 0.1 + 3 * recovery.probe_timeout
    send(recovery, now=late)
    recovery.on_ack(ack((5, 5)), now=late + 0.1)

    acked, _ = recovery.on_ack(ack((0, 5)), now=late + 0.1)

    assert acked == []
    assert recovery.spurious_losses == 0


# Probe timeouts.


def test_a_probe_timeout_asks_for_two_packets_and_declares_nothing_lost() -> None:
    recovery = new_recovery()
    send(recovery, 5, now=1.0)
    deadline = 1.0 + recovery.probe_timeout
    assert recovery.deadline == deadline

    lost, probing = recovery.on_timeout(deadline)

    assert probing
    assert lost == []
    assert recovery.probes == PROBE_PACKETS == 2
    assert recovery.bytes_in_flight == 5 * SIZE


def test_before_its_time_a_probe_timeout_does_nothing() -> None:
    recovery = new_recovery()
    send(recovery, now=1.0)

    timeout = recovery.on_timeout(1.0 + recovery.probe_timeout - 0.001)

    assert timeout == ([], False)
    assert recovery.probes == 0


def test_without_packets_in_flight_there_is_nothing_to_probe_for() -> None:
    recovery = new_recovery()

    assert recovery.on_timeout(1000.0) == ([], False)
    assert recovery.probes == 0


def test_each_packet_that_asks_uses_up_a_probe() -> None:
    recovery = new_recovery()
    send(recovery, now=1.0)
    recovery.on_timeout(10.0)

    left = []
    for eliciting in (True, False, True, True):
        send(recovery, now=10.0, eliciting=eliciting)
        left.append(recovery.probes)

    assert left == [1, 1, 0, 0]


def test_probe_timeouts_double_up_to_a_limit_and_begin_anew_with_an_acknowledgement() -> None:
    recovery = new_recovery()
    send(recovery, now=0.0)
    single = recovery.probe_timeout
    now, waits = 0.0, []
    for _ in range(PTO_BACKOFF_MAX + 3):
        deadline = recovery.deadline
        assert deadline is not None
        waits.append((deadline - now) / single)
        now = deadline
        recovery.on_timeout(now)
        send(recovery, now=now)

    recovery.on_ack(ack((recovery.next_number - 1,) * 2), now=now + 0.1)
    send(recovery, now=now)

    assert waits == pytest.approx([1, 2, 4, 8, 16, 32, 64, 64, 64])
    assert recovery.deadline == now + recovery.probe_timeout


# Whatever happens.


@given(data=st.data())
def test_every_packet_ends_in_one_place_whatever_happens(data: st.DataObject) -> None:
    """In flight, acknowledged once, or lost; and what is in flight is counted."""
    recovery = new_recovery()
    now = 0.0
    acked, lost = list[int](), list[int]()
    for _ in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.sampled_from([0.0, 0.01, 0.1, 1.0]))
        action = data.draw(st.sampled_from(["send", "ack", "timeout"]))
        if action == "send":
            send(
                recovery, data.draw(st.integers(1, 5)), now=now, eliciting=data.draw(st.booleans())
            )
        elif action == "ack" and recovery.next_number:
            picked = data.draw(st.sets(st.integers(0, recovery.next_number - 1), min_size=1))
            newly_acked, newly_lost = recovery.on_ack(
                ack(*((n, n) for n in sorted(picked, reverse=True))), now
            )
            assert set(numbers(newly_acked)) <= picked
            acked += numbers(newly_acked)
            lost += numbers(newly_lost)
        elif action == "timeout":
            lost += numbers(recovery.on_timeout(now)[0])

        in_flight = list(recovery.in_flight())
        assert recovery.bytes_in_flight == sum(packet.size for packet in in_flight)
        assert len(acked) == len(set(acked))
        assert len(lost) == len(set(lost))
        assert not set(numbers(in_flight)) & {*acked, *lost}
        assert (recovery.deadline is not None) >= bool(in_flight)
