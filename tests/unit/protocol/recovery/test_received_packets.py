"""Which packets came, when an acknowledgement is owed, and what it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.limits import (
    ACK_DELAY_SECONDS_MAX,
    ACK_EVERY,
    ACK_RANGES_MAX,
    RECEIVED_RANGES_MAX,
)
from gradwire_protocol.recovery.received_packets import ReceivedPackets
from gradwire_protocol.wire.frames import Ack
from support.state import state_of

RUNS = st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda r: (r[0], r[0] + r[1]))


def receive(
    received: ReceivedPackets,
    *numbers: int,
    now: float = 0.0,
    eliciting: bool = True,
    completing: bool = False,
    marked: bool = False,
) -> None:
    """Receive packets that ask for an acknowledgement, unless told otherwise."""
    for number in numbers:
        received.record_packets(
            number, number + 1, eliciting=eliciting, completing=completing, marked=marked, now=now
        )


def acknowledge(received: ReceivedPackets, now: float = 0.0) -> Ack:
    return received.make_ack(credit=0, now=now)


def test_a_packet_in_order_is_acknowledged_after_the_delay() -> None:
    received = ReceivedPackets()

    receive(received, 0, now=1.0)
    receive(received, 1, now=1.004)

    assert received.deadline == 1.0 + ACK_DELAY_SECONDS_MAX


def test_so_many_packets_are_acknowledged_at_once() -> None:
    received = ReceivedPackets()

    receive(received, *range(ACK_EVERY - 1), now=1.0)
    assert received.deadline == 1.0 + ACK_DELAY_SECONDS_MAX
    receive(received, ACK_EVERY - 1, now=1.001)
    assert received.deadline == 1.001
    acknowledge(received)
    receive(received, *range(ACK_EVERY, 2 * ACK_EVERY - 1), now=1.002)

    assert received.deadline == 1.002 + ACK_DELAY_SECONDS_MAX


def test_a_gap_is_acknowledged_at_once_and_so_is_what_fills_it() -> None:
    received = ReceivedPackets()
    receive(received, 0, now=1.0)

    receive(received, 2, now=1.001)
    assert received.deadline == 1.001
    acknowledge(received)
    receive(received, 1, now=1.002)

    assert received.deadline == 1.002


def test_a_completed_message_is_acknowledged_at_once() -> None:
    received = ReceivedPackets()

    receive(received, 0, now=1.0, completing=True)

    assert received.deadline == 1.0


def test_a_packet_that_does_not_ask_is_not_acknowledged_even_after_a_gap() -> None:
    received = ReceivedPackets()

    receive(received, 0, 5, 3, *range(10, 30), eliciting=False)

    assert received.deadline is None
    assert received.largest == 29


def test_an_acknowledgement_names_all_runs_newest_first_and_how_long_it_was_held_back() -> None:
    received = ReceivedPackets()
    receive(received, 0, 1, 4, now=1.0)
    receive(received, 7, 8, now=1.002)
    receive(received, 5, now=1.003)

    ack = received.make_ack(credit=5000, now=1.004)

    assert ack.ranges == [(7, 8), (4, 5), (0, 1)]
    assert ack.delay_seconds == pytest.approx(0.002)
    assert (ack.credit, ack.marked) == (5000, 0)


def test_the_delay_is_never_negative() -> None:
    received = ReceivedPackets()
    receive(received, 0, now=1.0)

    assert acknowledge(received, now=0.9).delay_seconds == 0.0


def test_what_the_peer_knows_is_not_repeated_and_still_a_duplicate() -> None:
    received = ReceivedPackets()
    receive(received, 0, 2, 4)

    received.on_ack_delivered(2)
    received.on_ack_delivered(0)  # knowledge never goes back
    receive(received, 6)

    assert acknowledge(received).ranges == [(6, 6), (4, 4)]
    assert [n for n in range(8) if received.is_new(n, n + 1)] == [1, 3, 5, 7]


def test_the_newest_run_is_named_although_the_peer_knows_it() -> None:
    received = ReceivedPackets()
    receive(received, 0, 2)
    received.on_ack_delivered(2)

    receive(received, 1)

    assert acknowledge(received).ranges == [(0, 2)]


def test_an_acknowledgement_names_no_more_runs_than_its_frame_holds() -> None:
    received = ReceivedPackets()
    numbers = range(0, 1000, 2)
    receive(received, *numbers)

    ranges = acknowledge(received).ranges

    assert ranges == [(n, n) for n in reversed(numbers)][: ACK_RANGES_MAX + 1]


def test_what_is_too_old_to_remember_is_taken_for_a_duplicate() -> None:
    received = ReceivedPackets()
    numbers = range(0, 2 * RECEIVED_RANGES_MAX, 2)
    receive(received, *numbers)
    assert received.is_new(1, 2)

    receive(received, 2 * RECEIVED_RANGES_MAX)

    assert not received.is_new(0, 1)
    assert not received.is_new(1, 2)
    assert not received.is_new(1, 4)
    assert received.is_new(3, 4)


def test_marked_packets_are_counted_and_acknowledged_at_once() -> None:
    received = ReceivedPackets()
    receive(received, 0, now=1.0)
    assert acknowledge(received).marked == 0

    received.record_packets(1, 4, eliciting=True, marked=True, now=1.001)
    assert received.deadline == 1.001
    receive(received, 4, eliciting=False, marked=True)

    assert acknowledge(received).marked == 3


@given(numbers=st.lists(st.integers(0, 40)), runs=st.lists(RUNS))
def test_numbers_are_new_if_none_of_them_came_before(
    numbers: list[int], runs: list[tuple[int, int]]
) -> None:
    received, plain = ReceivedPackets(), set[int]()

    for number in numbers:
        assert received.is_new(number, number + 1) == (number not in plain)
        if number not in plain:
            receive(received, number)
            plain.add(number)

    assert received.largest == max(plain, default=-1)
    assert (received.deadline is None) == (not plain)
    for first, stop in runs:
        assert received.is_new(first, stop) == plain.isdisjoint(range(first, stop))


# Runs.


@given(runs=st.lists(st.tuples(RUNS, st.booleans(), st.booleans()), max_size=15))
def test_a_run_that_is_taken_is_what_its_packets_are_one_by_one(
    runs: list[tuple[tuple[int, int], bool, bool]],
) -> None:
    together, singly = ReceivedPackets(), ReceivedPackets()

    for now, ((first, stop), marked, completing) in enumerate(runs):
        taken = together.can_record_run(first, stop)
        assert taken == together.is_new(first, stop)
        if taken:
            together.record_packets(
                first, stop, eliciting=True, completing=completing, marked=marked, now=now
            )
            receive(
                singly, *range(first, stop), completing=completing, marked=marked, now=float(now)
            )
        assert state_of(together) == state_of(singly)


@pytest.mark.parametrize(
    ("first", "stop", "taken"),
    [
        pytest.param(10 * RECEIVED_RANGES_MAX, 10 * RECEIVED_RANGES_MAX + 9, True, id="newest"),
        pytest.param(95, 101, False, id="not new"),
        pytest.param(91, 94, False, id="new and not newest"),
        pytest.param(96, 100, False, id="new and next to one"),
    ],
)
def test_a_run_that_would_be_taken_otherwise_one_by_one_is_not_taken(
    first: int, stop: int, taken: bool
) -> None:
    """Fill a gap when there are so many that the oldest range is about to be forgotten."""
    received = ReceivedPackets()
    receive(received, *range(0, 10 * RECEIVED_RANGES_MAX - 10, 10))
    assert received.can_record_run(91, 94)

    receive(received, 10 * RECEIVED_RANGES_MAX - 10)

    assert received.can_record_run(first, stop) == taken
