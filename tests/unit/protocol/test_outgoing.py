"""Outgoing messages: cut into fragments, urgent ones first, never beyond the credit."""

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import Priority
from gradwire_protocol.limits import MESSAGE_OVERHEAD_BYTES, OPEN_MESSAGES_MAX
from gradwire_protocol.outgoing import Fragment, OutgoingMessage, SendQueue

FRAGMENT_BYTES = 100
PLENTY = 2**30


def message(payload: bytes = b"x", number: int = 0) -> OutgoingMessage:
    """Return a message in fragments of 100 bytes."""
    return OutgoingMessage(0, number, 1, payload, FRAGMENT_BYTES)


def queue_of(
    *messages: OutgoingMessage, priority: Priority = Priority.UPDATE, credit: int = PLENTY
) -> SendQueue:
    """Return a queue with these messages."""
    queue = SendQueue()
    queue.credit = credit
    for each in messages:
        queue.push(each, priority)
    return queue


def take(queue: SendQueue) -> Fragment | None:
    """Send the next fragment."""
    fragment = queue.peek()
    if fragment is not None:
        queue.take(fragment)
    return fragment


def take_all(queue: SendQueue) -> list[Fragment]:
    """Send all that may be sent."""
    fragments = []
    while (fragment := take(queue)) is not None:
        fragments.append(fragment)
    return fragments


# Messages.


@given(payload=st.binary(min_size=1, max_size=1000))
def test_fragments_are_the_message_in_order(payload: bytes) -> None:
    fragments = take_all(queue_of(message(payload)))

    assert b"".join(f.payload for f in fragments) == payload
    assert [f.offset for f in fragments] == [*range(0, len(payload), FRAGMENT_BYTES)]
    assert all(len(f.payload) == FRAGMENT_BYTES for f in fragments[:-1])


def test_nothing_is_copied() -> None:
    payload = bytes(250)

    fragments = take_all(queue_of(message(payload)))

    assert all(f.payload.obj is payload for f in fragments)


def test_a_message_is_complete_when_every_fragment_is_acknowledged() -> None:
    outgoing = message(bytes(250))

    completes = [outgoing.on_acked(index) for index in (2, 0, 0, 1, 1)]

    assert completes == [False, False, False, True, False]
    assert outgoing.complete


# What goes next.


def test_messages_leave_in_order_of_urgency() -> None:
    queue = queue_of()
    messages = {priority: message(bytes(150), number=priority) for priority in Priority}
    for priority in (Priority.SNAPSHOT, Priority.UPDATE, Priority.CONTROL):
        queue.push(messages[priority], priority)

    left = [(f.message.number, f.index) for f in take_all(queue)]

    assert left == [
        (Priority.CONTROL, 0),
        (Priority.CONTROL, 1),
        (Priority.UPDATE, 0),
        (Priority.UPDATE, 1),
        (Priority.SNAPSHOT, 0),
        (Priority.SNAPSHOT, 1),
    ]


def test_an_urgent_message_overtakes_one_that_is_half_sent() -> None:
    snapshot, control = message(bytes(300), number=1), message(number=2)
    queue = queue_of(snapshot, priority=Priority.SNAPSHOT)
    take(queue)

    queue.push(control, Priority.CONTROL)

    left = [(f.message.number, f.index) for f in take_all(queue)]
    assert left == [(2, 0), (1, 1), (1, 2)]


def test_messages_of_one_priority_leave_in_the_order_they_came() -> None:
    queue = queue_of(*(message(number=n) for n in range(5)))

    assert [f.message.number for f in take_all(queue)] == [0, 1, 2, 3, 4]


def test_what_was_lost_goes_before_anything_new() -> None:
    snapshot, control = message(bytes(300)), message()
    queue = queue_of(snapshot, priority=Priority.SNAPSHOT)
    first = take(queue)
    assert first is not None
    queue.push(control, Priority.CONTROL)

    queue.on_lost(first)

    assert queue.peek() == first
    assert queue.take(first) is True, "it was sent before"
    assert queue.peek() == Fragment(control, 0)
    assert queue.take(Fragment(control, 0)) is False


def test_what_was_only_late_is_not_sent_again() -> None:
    queue = queue_of(message(bytes(150)))
    first, second = take_all(queue)
    queue.on_lost(first)
    queue.on_lost(second)

    queue.on_acked(first)

    assert take_all(queue) == [second]


def test_what_was_acknowledged_cannot_be_lost() -> None:
    queue = queue_of(message())
    [fragment] = take_all(queue)
    queue.on_acked(fragment)

    queue.on_lost(fragment)

    assert queue.peek() is None


# Bounds.


def test_no_message_begins_without_credit_for_all_of_it() -> None:
    queue = queue_of(message(bytes(300)), credit=300 + MESSAGE_OVERHEAD_BYTES - 1)

    assert queue.peek() is None
    queue.credit += 1

    assert len(take_all(queue)) == 3
    assert queue.declared == 300 + MESSAGE_OVERHEAD_BYTES


def test_retransmission_needs_no_credit() -> None:
    queue = queue_of(message(bytes(300)), message(), credit=300 + MESSAGE_OVERHEAD_BYTES)
    first, *_ = take_all(queue)

    queue.on_lost(first)

    assert take_all(queue) == [first]
    assert queue.declared == queue.credit


def test_without_credit_for_an_urgent_message_one_that_is_begun_goes_on_but_none_begins() -> None:
    begun, next_one, urgent = message(bytes(300), 1), message(number=2), message(bytes(500), 3)
    queue = queue_of(begun, next_one, priority=Priority.SNAPSHOT)
    take(queue)
    queue.credit = queue.declared + 500 + MESSAGE_OVERHEAD_BYTES - 1
    queue.push(urgent, Priority.CONTROL)

    left = [f.message.number for f in take_all(queue)]
    queue.credit += 1
    left_then = [f.message.number for f in take_all(queue)]

    assert left == [1, 1]
    assert left_then == [3] * 5


def test_no_more_messages_are_open_than_the_limit() -> None:
    queue = queue_of(*(message(number=n) for n in range(OPEN_MESSAGES_MAX + 2)))

    first, *others = take_all(queue)
    assert len(others) == OPEN_MESSAGES_MAX - 1
    queue.on_acked(first)

    assert [f.message.number for f in take_all(queue)] == [OPEN_MESSAGES_MAX]


def test_bytes_are_queued_until_their_message_is_acknowledged_as_a_whole() -> None:
    queue = queue_of(message(bytes(150)), message(bytes(20)))
    assert queue.bytes_queued == 170
    first, second, third = take_all(queue)

    queued = []
    for fragment in (second, third, first):
        queue.on_acked(fragment)
        queued.append(queue.bytes_queued)

    assert queued == [170, 150, 0]


@given(
    sizes=st.lists(st.tuples(st.sampled_from(Priority), st.integers(1, 500)), max_size=20),
    credit=st.integers(0, 5000),
    more=st.integers(50, 5000),
)
def test_everything_is_sent_once_and_never_beyond_the_credit(
    sizes: list[tuple[Priority, int]], credit: int, more: int
) -> None:
    """Credit grows whenever the queue is stopped, until there is enough of it."""
    queue = queue_of(credit=credit)
    for number, (priority, size) in enumerate(sizes):
        queue.push(message(bytes(size), number), priority)

    left = take_all(queue)
    while queue.credit < sum(size + MESSAGE_OVERHEAD_BYTES for _, size in sizes):
        assert queue.declared <= queue.credit
        queue.credit += more
        left += take_all(queue)

    assert sorted((f.message.number, f.offset) for f in left) == [
        (number, offset)
        for number, (_, size) in enumerate(sizes)
        for offset in range(0, size, FRAGMENT_BYTES)
    ]
