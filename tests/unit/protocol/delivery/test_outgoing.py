"""Outgoing messages: urgent ones first, then short ones; streams in order, credit kept."""

import pytest

from gradwire_protocol import Priority
from gradwire_protocol.limits import OPEN_MESSAGES_MAX, charge_of
from support.queueing import line_of, order

# Messages.


def test_a_message_has_arrived_when_every_fragment_has() -> None:
    line = line_of(250)
    first, second, third = line.take_all()

    completes = []
    for fragment in (third, first, first, second, second):
        line.acknowledge(fragment)
        completes.append(len(line.complete))

    assert completes == [0, 0, 0, 1, 1]


def test_bytes_are_queued_until_their_message_has_arrived_as_a_whole() -> None:
    line = line_of(150, 20)
    assert line.queue.bytes_queued == 170
    short, first, second = line.take_all()

    queued = []
    for fragment in (second, short, first):
        line.acknowledge(fragment)
        queued.append(line.queue.bytes_queued)

    assert queued == [170, 150, 0]


# What goes next.


def test_messages_leave_in_order_of_urgency() -> None:
    line = line_of()
    for priority in (Priority.SNAPSHOT, Priority.UPDATE, Priority.CONTROL):
        line.push(150, priority=priority)

    assert [number for number, _ in order(line.take_all())] == [2, 2, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("sizes", "numbers"),
    [
        ([500, 100, 300], [1, 2, 2, 2, 0, 0, 0, 0, 0]),
        ([250, 250, 250, 250], [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]),
    ],
    ids=["the shortest first", "equal ones in the order they came"],
)
def test_of_one_urgency_the_one_with_the_fewest_bytes_left_goes_first(
    sizes: list[int], numbers: list[int]
) -> None:
    sent = order(line_of(*sizes).take_all())

    assert [number for number, _ in sent] == numbers
    for message in range(len(sizes)):
        indexes = [index for number, index in sent if number == message]
        assert indexes == [*range(numbers.count(message))]


def test_what_comes_while_a_message_is_half_sent_waits_unless_it_is_shorter_than_the_rest() -> None:
    line = line_of(500)
    line.take(3)

    line.push(300, 100)

    assert [number for number, _ in order(line.take_all())] == [2, 0, 0, 1, 1, 1]


def test_an_urgent_message_overtakes_one_that_is_half_sent() -> None:
    line = line_of(300, priority=Priority.SNAPSHOT)
    line.take()

    line.push(900, priority=Priority.CONTROL)

    assert [number for number, _ in order(line.take_all())] == [1] * 9 + [0, 0]


def test_a_message_that_has_waited_goes_before_all_others_until_some_of_it_has_arrived() -> None:
    line = line_of(500, priority=Priority.SNAPSHOT)
    line.take()
    line.push(900, priority=Priority.CONTROL)

    line.queue.check_progress()
    urgent = line.take()
    line.queue.check_progress()
    waited = line.take(2)
    more = line.take()
    line.acknowledge(waited[0])
    after = line.take()

    assert order(urgent + waited + more + after) == [(1, 0), (0, 1), (0, 2), (0, 3), (1, 1)]


def test_an_acknowledgement_from_before_it_waited_does_not_cost_a_message_its_turn() -> None:
    line = line_of(500, priority=Priority.SNAPSHOT)
    before = line.take(2)
    line.push(900, priority=Priority.CONTROL)
    line.queue.check_progress()
    line.queue.check_progress()

    line.acknowledge(*before)
    lost = line.take()
    line.lose(*lost)
    line.acknowledge(*before)

    assert order(lost + line.take()) == [(0, 2), (0, 2)]


def test_only_what_has_begun_and_has_something_left_gets_a_turn_for_having_waited() -> None:
    line = line_of(200, priority=Priority.SNAPSHOT)
    flying = line.take_all()
    line.push(300, priority=Priority.SNAPSHOT)
    line.push(900, priority=Priority.CONTROL)
    assert line.queue.has_begun

    for _ in range(3):
        line.queue.check_progress()

    assert order(line.take_all())[0] == (2, 0)
    line.acknowledge(*flying)
    assert line.complete == [0]


# What is sent again.


def test_what_was_lost_is_sent_again_when_its_message_is_next() -> None:
    line = line_of(300, priority=Priority.SNAPSHOT)
    first, *_ = line.take(2)
    line.push(100, priority=Priority.CONTROL)

    line.lose(first)

    assert order(line.take_all()) == [(1, 0), (0, 0), (0, 2)]


def test_a_message_of_which_all_was_only_late_has_nothing_to_send() -> None:
    line = line_of(300, 400)
    sent = line.take_all()
    line.lose(sent[0], sent[1])

    line.acknowledge(sent[0], sent[1])

    assert line.queue.next_message() is None
    line.lose(sent[2])
    assert line.take_all() == [sent[2]]


def test_a_message_that_has_less_left_than_it_seemed_has_its_turn_earlier() -> None:
    line = line_of(400, 400)
    sent = line.take_all()
    line.lose(*sent[:3], *sent[4:6])

    line.acknowledge(*sent[:2])

    assert order(line.take_all()) == [(0, 2), (1, 0), (1, 1)]


def test_what_has_arrived_cannot_be_lost() -> None:
    line = line_of(100, 200)
    short, first, second = line.take_all()
    line.acknowledge(short, first)

    line.lose(short, first)

    assert line.queue.next_message() is None
    line.lose(second)
    assert line.take_all() == [second]


# Bounds.


def test_no_message_begins_without_credit_for_all_of_it() -> None:
    line = line_of(300, credit=charge_of(300) - 1)

    assert line.queue.next_message() is None
    line.queue.credit += 1

    assert len(line.take_all()) == 3
    assert line.queue.declared == charge_of(300)


def test_retransmission_needs_no_credit() -> None:
    line = line_of(300, 400, credit=charge_of(300))
    first, *_ = line.take_all()

    line.lose(first)

    assert line.take_all() == [first]
    assert line.queue.declared == line.queue.credit


def test_without_credit_for_an_urgent_message_one_that_is_begun_goes_on_but_none_begins() -> None:
    line = line_of(300, 400, priority=Priority.SNAPSHOT)
    line.take()
    line.queue.credit = line.queue.declared + charge_of(500) - 1
    line.push(500, priority=Priority.CONTROL)

    left = [number for number, _ in order(line.take_all())]
    line.queue.credit += 1
    left_then = [number for number, _ in order(line.take_all())]

    assert (left, left_then) == ([0, 0], [2] * 5)


def test_no_more_messages_are_open_than_the_limit() -> None:
    line = line_of(*[1] * (OPEN_MESSAGES_MAX + 2))

    first, *others = line.take_all()
    assert len(others) == OPEN_MESSAGES_MAX - 1
    line.acknowledge(first)

    assert order(line.take_all()) == [(OPEN_MESSAGES_MAX, 0)]
