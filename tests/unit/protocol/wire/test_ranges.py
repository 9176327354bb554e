"""`RangeSet` does what a plain set of integers does."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.wire.ranges import RangeSet

RANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda r: (r[0], r[0] + r[1])),
    max_size=30,
)


def runs_of(numbers: set[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers, the plain way."""
    starts = sorted(n for n in numbers if n - 1 not in numbers)
    stops = sorted(n + 1 for n in numbers if n + 1 not in numbers)
    return list(zip(starts, stops, strict=True))


def range_set(ranges: Iterable[tuple[int, int]]) -> RangeSet:
    numbers = RangeSet()
    for start, stop in ranges:
        numbers.add_range(start, stop)
    return numbers


@given(ranges=RANGES)
def test_a_range_set_holds_what_was_added(ranges: list[tuple[int, int]]) -> None:
    numbers, plain = RangeSet(), set[int]()

    for start, stop in ranges:
        brings_something_new = numbers.add_range(start, stop)

        assert brings_something_new == (not plain.issuperset(range(start, stop)))
        plain.update(range(start, stop))
        assert list(numbers) == runs_of(plain)

    assert list(numbers.descending()) == runs_of(plain)[::-1]
    assert len(numbers) == len(runs_of(plain))
    assert numbers.last_stop == max(plain, default=-1) + 1
    assert {n for n in range(-1, 80) if n in numbers} == plain


@given(ranges=RANGES, size=st.integers(1, 5))
def test_a_range_set_is_disjoint_from_a_range_if_it_holds_none_of_its_numbers(
    ranges: list[tuple[int, int]], size: int
) -> None:
    numbers = range_set(ranges)
    plain = {n for n in range(80) if n in numbers}

    for start in range(80):
        wanted = range(start, start + size)
        assert numbers.isdisjoint(wanted.start, wanted.stop) == plain.isdisjoint(wanted)


@given(ranges=RANGES.filter(bool))
def test_dropping_the_lowest_range_leaves_the_others(ranges: list[tuple[int, int]]) -> None:
    numbers = range_set(ranges)
    before = list(numbers)

    numbers.drop_lowest()

    assert list(numbers) == before[1:]
