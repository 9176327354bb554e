"""Outgoing messages: cut anew where the path has become narrower, and delivered all the same."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import Priority
from gradwire_protocol.limits import charge_of
from gradwire_protocol.wire.frames import SHAPES_MAX
from support.insides import messages_of
from support.queueing import Line, Sent, line_of, order

# Another shape.


def test_what_is_too_large_is_cut_anew_and_sent_from_its_beginning() -> None:
    line = line_of(250, 400)
    sent = line.take(2)

    line.queue.reshape(60)

    again = line.take_all()
    assert [number for number, _ in order(again)] == [0] * 5 + [1] * 7
    line.acknowledge(*sent, *again)
    assert line.complete == [0, 1]
    assert line.queue.bytes_queued == 0


def test_only_what_may_have_arrived_in_part_is_another_shape() -> None:
    line = line_of(250, 400)
    line.take()

    line.queue.reshape(60)

    shapes = []
    while (message := line.queue.next_message()) is not None:
        shapes.append((message.shaped.number, message.shaped.shape))
        line.take(100)
    assert shapes == [(0, 1), (1, 0)]


def test_what_fits_stays_as_it_is() -> None:
    line = line_of(60, 250)
    message = line.queue.next_message()
    assert message is not None
    sent = line.take_all()

    line.queue.reshape(100)

    assert line.queue.next_message() is None
    line.queue.reshape(60)
    line.acknowledge(sent[0])
    assert line.complete == [0]


def test_a_message_is_not_cut_more_often_than_its_header_can_say() -> None:
    line = line_of(400)
    shapes = []
    for fragment_bytes in range(96, 96 - 4 * (SHAPES_MAX + 2), -4):
        line.take()
        line.queue.reshape(fragment_bytes)
        message = line.queue.next_message()
        assert message is not None
        shapes.append(message.shaped.shape)

    assert shapes == [*range(1, SHAPES_MAX), *[SHAPES_MAX - 1] * 3]


# Whatever happens.


@given(
    messages=st.lists(
        st.tuples(st.sampled_from(Priority), st.integers(0, 3), st.integers(1, 900)),
        min_size=1,
        max_size=25,
    ),
    spare=st.integers(0, 2000),
    most=st.integers(1, 12),
    seed=st.integers(0, 2**32),
    narrow=st.lists(st.sampled_from([48, 60, 80]), max_size=3),
)
def test_everything_arrives_once_and_in_order_as_long_as_the_credit_allows_the_largest(
    messages: list[tuple[Priority, int, int]],
    spare: int,
    most: int,
    seed: int,
    narrow: list[int],
) -> None:
    """Fragments get lost, some only seemingly, and what has arrived is released some time."""
    window = charge_of(max(size for *_, size in messages)) + spare
    line, random = line_of(credit=window), Random(seed)
    waiting = [*messages]
    flying, begun, released = list[Sent](), list[int](), 0
    while waiting or flying or line.queue.bytes_queued:
        for priority, stream, size in waiting[:3]:
            line.push(size, priority=priority, stream=stream)
        del waiting[:3]
        while sent := line.take(random.randint(1, most)):
            flying += sent
            begun += [number for _, number, _ in sent if number not in begun]
            assert line.queue.declared <= line.queue.credit
        assert flying, "something is on its way, or something can begin"
        if narrow and random.random() < 0.1:
            line.queue.reshape(narrow.pop())
        random.shuffle(flying)
        for _ in range(random.randint(1, len(flying))):
            fragment = flying.pop()
            if random.random() < 0.3:
                line.lose(fragment)
                if random.random() < 0.5:
                    continue
            line.acknowledge(fragment)
        for number in line.complete[released:]:
            line.queue.credit += charge_of(messages[number][2])
        released = len(line.complete)

    assert sorted(line.complete) == [*range(len(messages))]
    for stream in range(4):
        of_stream = [number for number in begun if messages[number][1] == stream]
        assert of_stream == sorted(of_stream)
    assert line.queue.declared == sum(charge_of(size) for *_, size in messages)


@given(
    sizes=st.lists(st.integers(1, 900), min_size=4, max_size=40),
    most=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_what_has_begun_is_overtaken_from_one_check_to_the_next_and_no_longer(
    sizes: list[int], most: int, seed: int
) -> None:
    """New messages of any urgency come all the time; fragments get lost, and some arrive late."""
    line, random = line_of(), Random(seed)
    flying, begun, waiting = list[Sent](), set[int](), set[int]()
    for size in sizes:
        line.push(size, priority=random.choice([*Priority]))
        moved = set[int]()
        for _ in range(random.randint(0, 4)):
            message = line.queue.next_message()
            assert message is None or message.overdue or not waiting & left_in(line)
            sent = line.take(most)
            flying += sent
            moved |= {number for _, number, _ in sent}
        random.shuffle(flying)
        for _ in range(random.randint(0, len(flying))):
            fragment = flying.pop()
            moved.add(fragment[1])
            if random.random() < 0.3:
                line.lose(fragment)
            else:
                line.acknowledge(fragment)
                waiting.discard(fragment[1])
        line.queue.check_progress()
        waiting |= (begun & left_in(line)) - moved
        begun = left_in(line)

    line.acknowledge(*flying, *line.take_all())
    assert sorted(line.complete) == [*range(len(sizes))]


def left_in(line: Line) -> set[int]:
    """Return the messages that have begun and of which something is left to send."""
    messages = messages_of(line.queue)
    return {each.shaped.number for each in messages if each.begun and each.packets_left}
