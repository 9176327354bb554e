"""Sums of contributions: nothing is lost in a mean, whoever contributes and however it rounds."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gradwire_codecs import Update
from gradwire_codecs.arrays import Int64Array
from gradwire_codecs.format.dense import COUNT_MAX
from gradwire_codecs.format.header import INT32_MAX, MULTIPLE_MAX
from gradwire_codecs.format.update import DenseUpdate
from gradwire_codecs.replica.outer_step import OuterSum, look_ahead
from gradwire_codecs.replica.round_sum import (
    RANGE_ELEMENTS_MAX,
    RANGE_ELEMENTS_MIN,
    RoundSum,
    _take_counts,
    ranges_of,
)

ELEMENTS = 12
RANGES = [(0, 5), (5, ELEMENTS)]

MULTIPLES = st.sampled_from([1, 3, 1000, MULTIPLE_MAX])


@st.composite
def updates(draw: st.DrawFn) -> Update:
    """Return an update of some elements of the vector."""
    multiple = draw(MULTIPLES)
    most = min(INT32_MAX // multiple, 500)
    start = draw(st.integers(0, ELEMENTS - 1))
    stop = draw(st.integers(start + 1, ELEMENTS))
    counts = draw(
        st.dictionaries(
            st.integers(start, stop - 1), st.integers(-most, most).filter(bool), min_size=1
        )
    )
    index = np.array(sorted(counts), np.uint32)
    count = np.array([counts[i] for i in index.tolist()], np.int32)
    return Update(start, stop, multiple, index, count)


def with_counts(update: Update) -> Update:
    """Return the same update with a count for each element, if its counts fit a byte."""
    if np.abs(update.count).max() > COUNT_MAX:
        return update
    counts = np.zeros(update.length, np.int8)
    counts[update.index - np.uint32(update.start)] = update.count
    return DenseUpdate(update.start, update.stop, update.multiple, counts)


def in_a_list(update: Update) -> Update:
    """Return the same update by the positions of its hits."""
    return Update(update.start, update.stop, update.multiple, update.index, update.count)


ROUNDS = st.lists(st.lists(updates(), min_size=1, max_size=5), min_size=1, max_size=4)


def dense(update: Update) -> Int64Array:
    values = np.zeros(ELEMENTS, np.int64)
    values[update.index] = update.change
    return values


def relayed(means: Sequence[Update]) -> Int64Array:
    return sum((dense(mean) for mean in means), np.zeros(ELEMENTS, np.int64))


@given(rounds=ROUNDS, magnitude_max=st.sampled_from([None, 7, 127]))
def test_what_rounding_leaves_goes_into_the_next_round(
    rounds: list[list[Update]], magnitude_max: int | None
) -> None:
    total = RoundSum(ELEMENTS, RANGES)
    left = np.zeros(ELEMENTS, np.int64)
    for contributions in rounds:
        for update in contributions:
            total.add(update)
        means = total.take_mean(len(contributions), magnitude_max)

        left += relayed([*contributions]) - len(contributions) * relayed(means)
        assert total._total.tolist() == left.tolist()
        for mean in means:
            assert np.abs(mean.change.astype(np.int64)).max() <= INT32_MAX
            assert (mean.start, mean.stop) in RANGES
            if magnitude_max is not None and mean.multiple < MULTIPLE_MAX:
                assert np.abs(mean.count).max() <= magnitude_max


@given(rounds=ROUNDS, magnitude_max=st.sampled_from([7, 127]), is_outer=st.booleans())
def test_a_count_for_each_element_adds_up_to_what_a_list_of_hits_does(
    rounds: list[list[Update]], magnitude_max: int, *, is_outer: bool
) -> None:
    """With any mixture of both, in the sum and in its means."""
    in_lists, in_counts = (
        OuterSum(ELEMENTS, RANGES, rate=0.7, momentum=0.9)
        if is_outer
        else RoundSum(ELEMENTS, RANGES)
        for _ in range(2)
    )
    for contributions in rounds:
        for update in contributions:
            in_lists.add(update)
            in_counts.add(with_counts(update))
        means = in_counts.take_mean(len(contributions), magnitude_max)

        listed = in_lists.take_mean(len(contributions), magnitude_max)
        assert relayed(means).tolist() == relayed(listed).tolist()
        ahead, expected = np.zeros(ELEMENTS, np.int32), np.zeros(ELEMENTS, np.int32)
        look_ahead([in_a_list(mean) for mean in means], 0.9, expected)
        look_ahead(means, 0.9, ahead)
        assert ahead.tolist() == expected.tolist()
        assert all(mean.hits for mean in means)
        assert in_counts._total.tolist() == in_lists._total.tolist()


@given(
    values=arrays(np.int64, ELEMENTS, elements=st.integers(-(2**47), 2**47)),
    unit=st.integers(1, 2**40),
)
def test_counts_are_exact_for_sums_of_any_size(values: Int64Array, unit: int) -> None:
    total, counts = values.copy(), np.empty(ELEMENTS, np.int8)

    _take_counts(total, unit, counts)

    nearest = [min((abs(value) + unit // 2) // unit, 127) for value in values.tolist()]
    assert np.abs(counts).tolist() == nearest
    assert (total + counts.astype(np.int64) * unit).tolist() == values.tolist()
    assert (np.sign(counts) * np.sign(values) >= 0).all()


@given(contributions=st.lists(updates(), min_size=1, max_size=5))
def test_the_first_mean_is_the_mean_to_half_a_unit(contributions: list[Update]) -> None:
    total, workers = RoundSum(ELEMENTS, RANGES), len(contributions)
    for update in contributions:
        total.add(update)

    means = total.take_mean(workers, None)

    exact = relayed(contributions) / workers
    unit = np.ones(ELEMENTS)
    for start, stop in RANGES:
        finest = min(
            (u.multiple for u in contributions if u.start < stop and u.stop > start), default=1
        )
        unit[start:stop] = max(finest // workers, 1)
    assert (np.abs(relayed(means) - exact) <= unit / 2).all()


@given(contributions=st.lists(updates(), min_size=1, max_size=5))
def test_the_last_mean_leaves_less_than_a_quantum_of_each(contributions: list[Update]) -> None:
    total, workers = RoundSum(ELEMENTS, RANGES), len(contributions)
    for update in contributions:
        total.add(update)

    means = total.take_mean(workers, 7)
    last = total.take_mean(workers, 7, is_last=True)

    exact = relayed(contributions) / workers
    assert (np.abs(relayed([*means, *last]) - exact) <= 0.5).all()


@given(
    sizes=st.lists(
        st.sampled_from([1, 7, RANGE_ELEMENTS_MIN, RANGE_ELEMENTS_MAX, 3 * RANGE_ELEMENTS_MAX + 1]),
        min_size=1,
        max_size=20,
    )
)
def test_ranges_cover_the_vector_and_are_neither_tiny_nor_too_large(sizes: list[int]) -> None:
    ranges = ranges_of(sizes)

    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == sum(sizes)
    assert max(stop - start for start, stop in ranges) <= RANGE_ELEMENTS_MAX
    small = [stop - start for start, stop in ranges if stop - start < RANGE_ELEMENTS_MIN]
    large = sum(size >= RANGE_ELEMENTS_MIN for size in sizes)
    assert len(small) <= 2 * large + 1
