"""Entries of the log: whole or not at all, in order, bounded; and the names of logs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.limits import charge_of
from gradwire_protocol.messages.admission import LogName, incarnation_of
from gradwire_protocol.messages.link import EntriesReceived
from gradwire_protocol.messages.updates import (
    PART_BYTES_MAX,
    WAITING_SUMS_BYTES_MAX,
    Entries,
    EntriesAssembly,
    Span,
)
from support.wording import naming

ELEMENTS = 60


def span_of(start: int, updates: int, parts: int = 1) -> Span:
    return Span(start, {0: start + updates}, updates, parts, {0: 0})


def messages_of(start: int, stop: int, bodies: list[bytes], number: int) -> list[EntriesReceived]:
    """Return a sum as its parts, which are numbered from `number` on."""
    span = span_of(start, stop - start, len(bodies))
    *others, last = bodies
    entries = [*(Entries(stop, body, None) for body in others), Entries(stop, last, span)]
    return [EntriesReceived(each, number + i) for i, each in enumerate(entries)]


def whole_in(counts: list[int], came: set[int]) -> int:
    """Return how many of the first sums are here, of so many parts each."""
    number = 0
    for whole, count in enumerate(counts):
        if not came.issuperset(range(number, number + count)):
            return whole
        number += count
    return len(counts)


@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    updates=st.integers(1, 3),
    data=st.data(),
)
def test_whatever_the_order_of_parts_what_is_taken_is_whole_and_follows(
    counts: list[int], updates: int, data: st.DataObject
) -> None:
    sent: list[EntriesReceived] = []
    expected = []
    for i, count in enumerate(counts):
        start = i * updates
        bodies = [b"%d of %d" % (part, i) for part in range(count)]
        sent += messages_of(start, start + updates, bodies, len(sent))
        expected.append((span_of(start, updates, count), bodies, len(sent) - 1))
    assembly = EntriesAssembly(ELEMENTS)

    position, taken = 0, []
    came: set[int] = set()
    for each in data.draw(st.permutations(sent)):
        assembly.add(each.entries, each.number)
        came.add(each.number)
        while (stop := assembly.after(position)) is not None:
            span, bodies, number = assembly.take(stop)
            taken.append((span, sorted(bodies), number))
            position = stop
        assert len(taken) == whole_in(counts, came)

    assert taken == expected


def test_between_what_is_here_and_what_follows_there_may_be_own_updates_and_no_gap() -> None:
    assembly = EntriesAssembly(ELEMENTS)
    assembly.add(Entries(9, b"", span_of(4, 3)), 1)

    assert assembly.after(3) is None
    assert [assembly.after(position) for position in (4, 5, 6)] == [9, 9, 9]


WHOLE = Entries(9, b"whole", span_of(4, 5))
PART = Entries(9, b"a part of another one", None)
LARGE = Entries(9, bytes(WAITING_SUMS_BYTES_MAX), None)
MOST = 2 * WAITING_SUMS_BYTES_MAX + charge_of(PART_BYTES_MAX)


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ((WHOLE, WHOLE), ("second last part",)),
        ((WHOLE, PART), ("more than 1",)),
        ((PART, WHOLE), ("more than 1",)),
        ((Entries(9, b"", span_of(5, 5)),), (5, 9)),
        ((LARGE, LARGE), (2 * charge_of(WAITING_SUMS_BYTES_MAX), MOST)),
    ],
    ids=["again", "a part too many", "the same, before it", "too many updates", "too many bytes"],
)
def test_entries_that_cannot_be_are_refused(
    entries: tuple[Entries, ...], named: tuple[object, ...]
) -> None:
    assembly = EntriesAssembly(ELEMENTS)
    *first, last = entries
    for number, each in enumerate(first):
        assembly.add(each, number)

    with pytest.raises(InvalidMessageError, match=naming("Entries", *named)):
        assembly.add(last, len(first))


def test_what_was_taken_does_not_count_any_more() -> None:
    assembly = EntriesAssembly(ELEMENTS)

    for stop in range(1, 5):
        body = bytes(WAITING_SUMS_BYTES_MAX)
        assembly.add(Entries(stop, body, span_of(stop - 1, 1)), stop)
        assembly.take(stop)

    assert assembly.after(4) is None


# Names of logs.


@given(
    positions=st.lists(st.integers(0, 100), min_size=2, max_size=2).map(sorted),
    at=st.integers(0, 120),
)
def test_a_log_is_the_same_as_its_continuation_up_to_where_that_begins(
    positions: list[int], at: int
) -> None:
    first, second = positions
    run = LogName(1 << 32)
    one = run.continued(first, 10.0)
    other = run.continued(second, 11.0)
    after_one = one.continued(second, 12.0)

    assert one.shares(one, at)
    assert run.shares(one, at) == one.shares(run, at) == (at <= first)
    assert run.shares(other, at) == other.shares(run, at) == (at <= second)
    assert one.shares(other, at) == other.shares(one, at) == (at <= first)
    assert one.shares(after_one, at) == (at <= second)
    for unknown in ((run, after_one), (other, after_one)):
        assert not unknown[0].shares(unknown[1], at)


def test_each_master_that_continues_a_run_names_its_log_anew() -> None:
    run = LogName()
    second = run.continued(7, 1_000.5)
    third = second.continued(9, 1_000.6)

    assert (second.base, second.parts_at) == (run.id, 7)
    assert (third.base, third.parts_at) == (second.id, 9)
    assert [incarnation_of(each.id) for each in (run, second, third)] == [0, 1, 2]
    assert run.continued(7, 1_000.500_001) != second, "two masters that begin at once"
