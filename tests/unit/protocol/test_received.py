"""Which packets came, when an acknowledgement is owed, and what it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.frames import Ack
from gradwire_protocol.limits import (
    ACK_DELAY_SECONDS_MAX,
    ACK_EVERY,
    ACK_RANGES_MAX,
    RECEIVED_RANGES_MAX,
)
from gradwire_protocol.received import ReceivedPackets


def receive(
    received: ReceivedPackets,
    *numbers: int,
    now: float = 0.0,
    eliciting: bool = True,
    completing: bool = False,
) -> None:
    """Receive packets that ask for an acknowledgement, unless told otherwise."""
    for number in numbers:
        received.add(number, eliciting=eliciting, completing=completing, now=now)


def acknowledge(received: ReceivedPackets, now: float = 0.0) -> Ack:
    """Take the acknowledgement that is owed."""
    return received.ack(credit=0, marked=0, now=now)


def test_at_first_nothing_came_and_nothing_is_owed() -> None:
    received = ReceivedPackets()

    assert received.largest == -1
    assert received.deadline is None
    assert not received.is_duplicate(0)


def test_a_packet_in_order_is_acknowledged_after_the_delay() -> None:
    received = ReceivedPackets()

    receive(received, 0, now=1.0)
    receive(received, 1, now=1.004)

    assert received.deadline == 1.0 + ACK_DELAY_SECONDS_MAX


def test_every_eighth_packet_is_acknowledged_at_once() -> None:
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


def test_after_an_acknowledgement_nothing_is_owed() -> None:
    received = ReceivedPackets()
    receive(received, 0, 3, now=1.0)

    acknowledge(received)

    assert received.deadline is None


def test_an_acknowledgement_names_all_runs_newest_first_and_how_long_it_was_held_back() -> None:
    received = ReceivedPackets()
    receive(received, 0, 1, 4, now=1.0)
    receive(received, 7, 8, now=1.002)
    receive(received, 5, now=1.003)

    ack = received.ack(credit=5000, marked=0, now=1.004)

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

    received.known(2)
    receive(received, 6)

    assert acknowledge(received).ranges == [(6, 6), (4, 4)]
    assert [n for n in range(8) if received.is_duplicate(n)] == [0, 2, 4, 6]


def test_knowledge_never_goes_back() -> None:
    received = ReceivedPackets()
    receive(received, 0, 2, 4)

    received.known(2)
    received.known(0)

    assert acknowledge(received).ranges == [(4, 4)]


def test_the_newest_run_is_named_although_the_peer_knows_it() -> None:
    received = ReceivedPackets()
    receive(received, 0, 2)
    received.known(2)

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
    assert not received.is_duplicate(1)

    receive(received, 2 * RECEIVED_RANGES_MAX)

    assert received.is_duplicate(0)
    assert received.is_duplicate(1)
    assert not received.is_duplicate(3)


@given(numbers=st.lists(st.integers(0, 40)))
def test_a_packet_is_a_duplicate_if_it_came_before(numbers: list[int]) -> None:
    received, plain = ReceivedPackets(), set[int]()

    for number in numbers:
        assert received.is_duplicate(number) == (number in plain)
        if number not in plain:
            receive(received, number)
            plain.add(number)

    assert received.largest == max(plain, default=-1)
