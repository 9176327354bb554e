"""Loss recovery: what counts as arrived, what as lost, and when to ask."""

import gc
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import CloseCode, ViolationError
from gradwire_protocol.limits import (
    ACK_DELAY_SECONDS_MAX,
    ACK_RANGES_MAX,
    ACK_RECORDS_MAX,
    BURST_PROBE_PACKETS_MAX,
    BURST_PROBES,
    COLD_PROBE_PACKETS_MAX,
    LONG_SILENCE_PROBE_SECONDS,
    LONG_SILENCE_SECONDS,
    PROBE_BACKOFF,
    PROBE_PACKETS,
    RTT_DOUBTED_SECONDS,
)
from gradwire_protocol.recovery.recovery import Fragments, by_message
from gradwire_protocol.recovery.sent_packets import PacketContents
from gradwire_protocol.wire.frames import Ack
from support.acks import ack
from support.recovering import SIZE, in_flight, new_recovery, send, send_other
from support.wording import naming

# What arrives.


@given(
    first=st.sets(st.integers(0, 59)),
    then=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 10**15)), min_size=1, max_size=65),
)
def test_of_what_is_named_that_is_taken_which_is_remembered_and_nothing_else_looked_at(
    first: set[int], then: list[tuple[int, int]]
) -> None:
    """Acknowledge single packets, then runs so long that nobody can look at each number."""
    recovery, _ = new_recovery()
    send(recovery, 10**4)
    recovery.on_ack(ack((0, 10**4 - 1)), now=0.1)
    base = recovery.sent.next_number
    for number in range(60):
        send_other(recovery, PacketContents(ack_largest=number), now=0.1)
    took = []
    if first:
        runs = [(base + n, base + n) for n in sorted(first, reverse=True)]
        took += recovery.on_ack(ack(*runs), now=0.1).arrived_contents
    runs, below = list[tuple[int, int]](), base + 60
    for gap, length in then:
        last = below - gap
        runs.append((last - length + 1, last))
        below = runs[-1][0] - 1
        if below <= 20:
            break

    took += recovery.on_ack(ack(*runs), now=0.1).arrived_contents

    named = {n for n in range(60) if any(low <= base + n <= high for low, high in runs)}
    numbers = [contents.ack_largest for contents in took if contents.ack_largest is not None]
    assert sorted(numbers) == sorted(named | first)


def test_acknowledging_a_packet_never_sent_is_a_violation_and_changes_nothing() -> None:
    recovery, diary = new_recovery()
    send(recovery, 2)

    with pytest.raises(ViolationError, match=naming("packet 2", 2)) as violation:
        recovery.on_ack(ack((0, 2)), now=0.1)

    assert violation.value.code == CloseCode.VIOLATION
    assert in_flight(recovery) == [0, 1]
    assert diary.acks == []


@pytest.mark.parametrize(
    "lie", [ack((2, 2)), ack((0, 4)), ack((4, 4), (1, 2))], ids=["alone", "inside", "at the end"]
)
def test_acknowledging_a_packet_number_left_out_is_a_violation(lie: Ack) -> None:
    recovery, _ = new_recovery()
    send(recovery, 2)
    recovery.sent.skip_number()
    send(recovery, 2)

    with pytest.raises(ViolationError, match=naming("skipped")) as violation:
        recovery.on_ack(lie, now=0.1)

    assert violation.value.code == CloseCode.VIOLATION


def test_what_only_says_something_is_known_to_have_arrived_and_is_nothing_else() -> None:
    recovery, diary = new_recovery()
    contents = [PacketContents(ack_largest=n) for n in range(2 * ACK_RECORDS_MAX)]
    for each in contents:
        send_other(recovery, each, eliciting=False)

    outcome = recovery.on_ack(ack((0, len(contents) - 1)), now=0.1)

    assert outcome.arrived_contents == contents[-ACK_RECORDS_MAX:]
    assert (outcome.acked_bytes, outcome.arrived, diary.acks) == (0, [], [])
    assert recovery.rtt.latest == 0.0


# The round-trip time.


def test_no_more_delay_is_believed_than_the_protocol_allows() -> None:
    recovery, _ = new_recovery()
    send(recovery, now=1.0)
    recovery.on_ack(ack((0, 0)), now=1.1)
    send(recovery, now=2.0)

    recovery.on_ack(ack((0, 1), delay=0.5), now=2.6)

    adjusted = 0.6 - ACK_DELAY_SECONDS_MAX
    assert recovery.rtt.smoothed == pytest.approx(7 / 8 * 0.1 + 1 / 8 * adjusted)


def test_an_answer_within_the_clocks_resolution_is_a_sample() -> None:
    recovery, _ = new_recovery()
    send(recovery, now=1.0)

    recovery.on_ack(ack((0, 0)), now=1.0)

    assert recovery.rtt.latest > 0


# What the controller is told.


def test_the_controller_gets_back_what_it_gave_for_the_newest_train_that_arrived() -> None:
    recovery, diary = new_recovery()
    send(recovery, 3, now=1.0)
    send(recovery, 3, now=2.0)
    send(recovery, 3, now=3.0)

    recovery.on_ack(ack((4, 4), (0, 1)), now=3.1)
    recovery.on_ack(ack((8, 8), (4, 4)), now=3.2)

    samples = [(s.departure, s.sent_at, s.number, s.next_number) for s in diary.acks]
    assert samples == [(1, 2.0, 4, 9), (2, 3.0, 8, 9)]
    assert diary.acks[0].in_flight == 5 * SIZE, "losses are taken off before: packet 2 by time"


def test_marks_are_told_once_and_never_taken_back() -> None:
    recovery, diary = new_recovery()
    send(recovery, 4)

    for number, marked in enumerate([2, 5, 3, 5]):
        recovery.on_ack(ack((0, number), marked=marked), now=0.1)

    assert [sample.marked for sample in diary.acks] == [2, 3, 0, 0]


# Probe timeouts.


def test_the_oldest_in_flight_are_what_a_probe_repeats() -> None:
    recovery, _ = new_recovery()
    contents = PacketContents(fragments=[(4, 0)])
    send(recovery, 2)
    send_other(recovery, contents)
    send(recovery, 2)
    recovery.on_ack(ack((0, 0)), now=0.1)

    (keys, indexes), held = recovery.oldest_in_flight(3)

    assert list(zip(keys.tolist(), indexes.tolist(), strict=True))[::2] == [(0, 1), (0, 3)]
    assert keys[1] < 0
    assert held == [contents]


def test_each_packet_that_asks_uses_up_a_probe() -> None:
    recovery, _ = new_recovery()
    recovery.probes = 4

    left = []
    for eliciting in (True, False, True):
        send_other(recovery, eliciting=eliciting)
        left.append(recovery.probes)
    send(recovery, 5)

    assert (left, recovery.probes) == ([3, 3, 2], 0)


def test_an_acknowledgement_ends_the_probing() -> None:
    recovery, _ = new_recovery()
    send(recovery, 2)
    recovery.on_timeout(10.0)
    recovery.probes = 8

    recovery.on_ack(ack((0, 0)), now=10.1)

    assert (recovery.probes, recovery.timeouts) == (0, 0)


def waits_of(recovery: Any, now: float, until: float) -> list[float]:
    """Probe without an answer; return how long each probe is after the one before."""
    waits = []
    while now < until:
        deadline = recovery.deadline
        assert deadline is not None
        waits.append(deadline - now)
        now = deadline
        assert recovery.on_timeout(now)[1]
        send(recovery, now=now)
    return waits


def heard_recovery(rtt: float = 0.01) -> Any:
    """Return one that knows the round trip, heard of the peer at 0, and sends again then."""
    recovery, _ = new_recovery()
    send(recovery, now=-rtt)
    recovery.on_ack(ack((0, 0)), now=0.0)
    send(recovery, now=0.0)
    return recovery


@pytest.mark.parametrize("rtt", [0.01, 0.5])
def test_after_a_long_silence_probes_are_rare_until_something_is_heard(rtt: float) -> None:
    recovery = heard_recovery(rtt)
    often = PROBE_BACKOFF * recovery.probe_timeout
    rarely = max(often, LONG_SILENCE_PROBE_SECONDS)

    waits_of(recovery, 0.0, until=LONG_SILENCE_SECONDS + often)
    now = recovery.deadline - rarely
    waits = waits_of(recovery, now, until=now + 3)
    assert waits == pytest.approx([rarely] * len(waits))
    recovery.on_heard(now + sum(waits))

    assert recovery.deadline == pytest.approx(now + sum(waits) + often)


@pytest.mark.parametrize(
    ("in_flight", "probes"), [(1, [4, 8, 16, 32]), (20, [20, 20, 20, 32]), (500, [32] * 4)]
)
def test_the_first_probes_are_long_enough_to_outlast_a_burst_of_losses(
    in_flight: int, probes: list[int]
) -> None:
    warm, (cold, _) = heard_recovery(), new_recovery()
    send(warm, in_flight - 1, now=0.0)
    send(cold, in_flight)

    for recovery, most in ((warm, BURST_PROBE_PACKETS_MAX), (cold, COLD_PROBE_PACKETS_MAX)):
        for expected in [*probes, PROBE_PACKETS]:
            assert probes_at_timeout(recovery) == min(expected, most)
        assert recovery.timeouts == BURST_PROBES + 1


def probes_at_timeout(recovery: Any) -> int:
    recovery.on_timeout(recovery.deadline)
    recovery.begin_probe()
    assert isinstance(recovery.probes, int)
    return recovery.probes


def test_no_more_is_probed_than_the_path_was_seen_to_carry() -> None:
    recovery = heard_recovery()
    send(recovery, 19)
    recovery.controller.window_bytes = 5 * SIZE

    for probes in [5] * BURST_PROBES + [PROBE_PACKETS]:
        assert probes_at_timeout(recovery) == probes


def test_a_pause_is_not_taken_for_the_round_trip_unless_the_next_one_is_as_long() -> None:
    recovery = heard_recovery()
    smoothed = recovery.rtt.smoothed
    send(recovery, now=2.0)
    for number in (1, 2):
        recovery.on_ack(ack((number, number)), now=3.0)
    assert recovery.rtt.smoothed == smoothed

    send(recovery, now=3.0)
    recovery.on_ack(ack((3, 3)), now=3.01)
    assert recovery.rtt.smoothed == pytest.approx(smoothed)
    for _ in range(2):
        send(recovery, now=4.0)
        newest = recovery.sent.next_number - 1
        recovery.on_ack(ack((newest, newest)), now=4.1 + RTT_DOUBTED_SECONDS)
    assert recovery.rtt.smoothed == pytest.approx(smoothed)
    send(recovery, now=5.0)
    recovery.on_ack(ack((newest + 1, newest + 1)), now=5.1 + RTT_DOUBTED_SECONDS)

    assert recovery.rtt.smoothed > 2 * smoothed


def test_a_slow_path_from_which_something_is_heard_meanwhile_is_not_doubted() -> None:
    recovery = heard_recovery()
    smoothed = recovery.rtt.smoothed
    send(recovery, now=2.0)

    recovery.on_heard(now=2.6)
    recovery.on_ack(ack((1, 1)), now=3.0)

    assert recovery.rtt.smoothed > 2 * smoothed


# What an ACK costs.


def calls_of(action: Callable[[], object]) -> int:
    """Return how many functions are called, those of C included."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()
    gc.disable()  # or what others have told it to call in mid-action would count
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize("again", [False, True], ids=["new", "said before"])
def test_an_acknowledgement_with_as_many_gaps_as_it_can_have_costs_the_same_whatever_is_in_flight(
    again: bool,
) -> None:
    """Every other packet arrived: what that costs depends on what is said, and on nothing else."""
    costs = []
    for n in (200, 2_000, 100_000):
        recovery, _ = new_recovery()
        for first in range(0, n, 50):
            send(recovery, 50, now=first / n)
        runs = [(number, number) for number in range(n - 2, 0, -2)][:ACK_RANGES_MAX]
        if again:
            recovery.on_ack(ack(*runs), now=1.1)
        costs.append(calls_of(partial(recovery.on_ack, ack(*runs), now=1.2)))

    assert costs[0] == costs[1] == costs[2] < 50 * ACK_RANGES_MAX


# Fragments by message.


@given(keys=st.lists(st.integers(-1, 2), max_size=12))
def test_fragments_are_split_by_message_in_order_and_those_of_none_left_out(
    keys: list[int],
) -> None:
    fragments: Fragments = (np.array(keys, np.int32), np.arange(len(keys), dtype=np.int32))

    split = [(key, index) for key, run in by_message(fragments) for index in run]

    assert split == [(key, index) for index, key in enumerate(keys) if key >= 0]
