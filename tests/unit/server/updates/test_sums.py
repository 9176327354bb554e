"""Sums: exact, whole, and no part of them that nothing has changed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import NOTHING, Replica, Update, decode, encode
from gradwire_codecs.arrays import Int32Array
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.updates import PART_ELEMENTS, Conflated, Span
from gradwire_server.updates.sums import PARTS_UNDER_WAY_MAX, Sum, SumFeed
from support.puppet import Puppet

SMALL = 20


def update_of(counts: Int32Array, multiple: int = 1) -> Update:
    index = np.flatnonzero(counts)
    return Update(
        0,
        len(counts),
        multiple,
        index.astype(np.uint32),
        counts[index].astype(np.int32),
    )


def at(element: int, count: int, elements: int) -> Update:
    return Update(0, elements, 1, np.array([element], np.uint32), np.array([count], np.int32))


class Recording:
    """A link that keeps what it is to send."""

    def __init__(self) -> None:
        self.parts: list[Conflated] = []

    def send_conflated(self, part: Conflated) -> None:
        self.parts.append(part)


def all_parts(total: Sum) -> list[Conflated]:
    link = Recording()
    feed = SumFeed(total, link)  # type: ignore[arg-type]
    while not feed.on_delivered():
        pass
    return link.parts


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 8), parts=st.integers(1, 3))
def test_its_parts_change_what_its_updates_do(seed: int, n: int, parts: int) -> None:
    random = np.random.default_rng(seed)
    elements = PART_ELEMENTS * (parts - 1) + int(random.integers(1, PART_ELEMENTS))
    one_by_one, at_once, total = Replica.zeros(elements), Replica.zeros(elements), Sum(elements)
    for sequence in range(1, n + 1):
        change = np.zeros(elements, np.float32)
        change[random.integers(elements, size=50)] = random.normal(0, 0.01, 50)
        for body in encode(change, Replica.zeros(elements), threshold=0.005):
            one_by_one.apply(body)
            assert total.add_update(sequence % 2, 1 + (sequence - 1) // 2, decode(body, elements))

    sent = all_parts(total)
    for part in sent:
        if part.body:
            update = decode(part.body, elements)
            at_once.apply(update)
            assert update.start == part.start
            assert update.length <= PART_ELEMENTS

    assert at_once.digest() == one_by_one.digest()
    assert [part.span is None for part in sent] == [True] * (len(sent) - 1) + [False]
    assert sent[-1].span == Span(total.before, total.after, total.updates, len(sent))


def test_parts_that_nothing_has_changed_are_left_out() -> None:
    elements = 10 * PART_ELEMENTS
    total = Sum(elements)
    total.add_update(0, 8, at(3 * PART_ELEMENTS + 1, 7, elements))
    total.add_update(1, 2, at(5 * PART_ELEMENTS, 7, elements))
    total.add_update(0, 9, at(3 * PART_ELEMENTS + 1, -7, elements))

    [part] = all_parts(total)

    assert part.start == 5 * PART_ELEMENTS
    assert part.span == Span({0: 7, 1: 1}, {0: 9, 1: 2}, 3, 1)


def test_a_sum_says_what_the_last_update_in_it_says_of_its_origin_s_steps() -> None:
    total = Sum(SMALL)
    for rank, sequence, clock in [(0, 3, 7), (1, 5, 0), (0, 4, 9), (0, 5, 0)]:
        clocks = {rank: clock} if clock else {}
        assert total.add_update(rank, sequence, decode(NOTHING, SMALL), clocks)

    [part] = all_parts(total)

    assert part == Conflated(0, b"", Span({0: 2, 1: 4}, {0: 5, 1: 5}, 4, 1, {0: 9}))


def test_updates_of_one_threshold_have_a_sum_of_that_threshold() -> None:
    total = Sum(SMALL)
    counts = np.zeros(SMALL, np.int32)
    counts[[2, 5, 9]] = 1, -1, 2
    for sequence in (1, 2):
        total.add_update(0, sequence, update_of(counts, 700))

    [part] = all_parts(total)
    update = decode(part.body, SMALL)

    assert update.multiple == 1400
    assert update.count.tolist() == [1, -1, 2]


def test_a_sum_may_be_larger_than_any_threshold() -> None:
    total = Sum(SMALL)
    total.add_update(0, 1, at(3, 2**26, SMALL))

    [part] = all_parts(total)
    update = decode(part.body, SMALL)

    assert update.multiple == 1
    assert update.count.tolist() == [2**26]


def test_of_what_has_cancelled_out_versions_are_told() -> None:
    total = Sum(SMALL)
    total.add_update(0, 8, at(3, 7, SMALL))
    total.add_update(0, 9, at(3, -7, SMALL))

    assert all_parts(total) == [Conflated(0, b"", Span({0: 7}, {0: 9}, 2, 1))]


def test_what_would_leave_the_range_is_not_added() -> None:
    total = Sum(SMALL)
    largest = np.zeros(SMALL, np.int32)
    largest[[2, 5]] = 2**31 - 1, -(2**31 - 1)

    assert total.add_update(0, 1, update_of(largest))
    assert not total.add_update(1, 1, at(5, -1, SMALL))
    assert total.add_update(1, 1, at(5, 1, SMALL))

    [part] = all_parts(total)
    replica = Replica.zeros(SMALL)
    replica.apply(part.body)
    assert replica.values[[2, 5]].tolist() == [2**31 - 1, -(2**31 - 2)]
    assert part.span == Span({0: 0, 1: 0}, {0: 1, 1: 1}, 2, 1)


def test_no_more_parts_are_under_way_than_a_few() -> None:
    parts = PARTS_UNDER_WAY_MAX + 3
    elements = parts * PART_ELEMENTS
    first = np.arange(0, elements, PART_ELEMENTS, dtype=np.uint32)
    total, link = Sum(elements), Recording()
    total.add_update(0, 1, Update(0, elements, 1, first, np.ones(parts, np.int32)))

    feed = SumFeed(total, link)  # type: ignore[arg-type]
    under_way, complete = [len(link.parts)], []
    for delivered in range(1, parts + 1):
        complete.append(feed.on_delivered())
        under_way.append(len(link.parts) - delivered)

    assert under_way == [*[PARTS_UNDER_WAY_MAX] * 4, *reversed(range(PARTS_UNDER_WAY_MAX))]
    assert complete == [False] * (parts - 1) + [True]


def test_parts_arrive_over_a_connection_and_take_no_more_than_they_say() -> None:
    connection = Puppet().connection
    total = Sum(SMALL)
    total.add_update(0, 1, at(3, 7, SMALL))

    feed = SumFeed(total, Link(connection))

    assert 0 < connection.bytes_queued <= feed.nbytes
    assert feed.on_delivered()
    assert feed.nbytes == 0
