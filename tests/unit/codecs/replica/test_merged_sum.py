"""Sums of updates: they come to the same, whatever is in them."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import NOTHING, Update, decode
from gradwire_codecs.arrays import Int64Array
from gradwire_codecs.format.header import INT32_MAX, MULTIPLE_MAX
from gradwire_codecs.format.update import DenseUpdate, split_update
from gradwire_codecs.replica.merged_sum import SORTED_PORTION, MergedSum

ELEMENTS = 400
FEW = int(ELEMENTS * SORTED_PORTION) // 5
"""So many hits of each of five are sorted; twice as many are not."""


def total(updates: Sequence[Update]) -> Int64Array:
    """Return what updates come to, one after the other."""
    found = np.zeros(ELEMENTS, np.int64)
    for update in updates:
        found[update.index] += update.change
    return found


def summed(updates: Sequence[Update]) -> list[Update]:
    """Return what a sum makes of them."""
    merged = MergedSum(ELEMENTS)
    for update in updates:
        merged.add(update)
    assert len(merged) == len(updates)
    return merged.take()


@st.composite
def updates(draw: st.DrawFn, hits_max: int) -> Update:
    """Return an update of some of the elements."""
    index = draw(st.lists(st.integers(0, ELEMENTS - 1), unique=True, max_size=hits_max).map(sorted))
    multiple = draw(st.sampled_from([1, 3, 1000, MULTIPLE_MAX]))
    most = min(INT32_MAX // multiple, 5)
    counts = [draw(st.integers(1, most)) * draw(st.sampled_from([-1, 1])) for _ in index]
    return Update(0, ELEMENTS, multiple, np.array(index, np.uint32), np.array(counts, np.int32))


@given(several=st.lists(updates(FEW), max_size=5) | st.lists(updates(2 * FEW), max_size=5))
def test_a_sum_comes_to_the_same_in_one_update_that_can_be_sent(several: list[Update]) -> None:
    merged = summed(several)

    assert (total(merged) == total(several)).all()
    assert len(merged) <= max(1, sum(np.abs(total(several)) > INT32_MAX) and len(several))
    for update in merged:
        assert (np.diff(update.index.astype(np.int64)) > 0).all()
        assert update.count.all()
        bodies = split_update(update, 100)
        assert (total([decode(body, ELEMENTS) for body in bodies]) == total([update])).all()


def at(place: int, count: int, multiple: int = 1) -> Update:
    """Return an update of one element."""
    index, counts = np.array([place], np.uint32), np.array([count], np.int32)
    return Update(0, ELEMENTS, multiple, index, counts)


def test_what_cancels_out_is_nothing() -> None:
    assert summed([at(7, 5), at(7, -5)]) == []
    assert summed([decode(NOTHING, ELEMENTS), decode(NOTHING, ELEMENTS)]) == []
    assert summed([]) == []


def test_one_that_changes_something_stays_as_it_is() -> None:
    alone = at(7, 5)

    assert summed([decode(NOTHING, ELEMENTS), alone]) == [alone]


@pytest.mark.parametrize("sign", [1, -1])
def test_what_leaves_32_bits_is_not_added_up(sign: int) -> None:
    both = [at(7, sign * INT32_MAX), at(7, 2 * sign)]

    assert summed(both) == both


def test_updates_of_one_threshold_have_a_sum_of_that_threshold() -> None:
    [merged] = summed([at(7, 2, 700), at(9, 1, 700)])

    assert merged.multiple == 700


def test_dense_updates_are_added_like_any() -> None:
    counts = np.arange(ELEMENTS, dtype=np.int64) % 5 - 2
    dense = DenseUpdate(0, ELEMENTS, 3, counts.astype(np.int8))

    [merged] = summed([dense, at(0, 1)])

    assert (total([merged]) == total([dense, at(0, 1)])).all()


def test_a_sum_that_was_taken_begins_again() -> None:
    merged = MergedSum(ELEMENTS)
    merged.add(at(7, 5))
    merged.take()
    merged.add(at(9, 1))

    [update] = merged.take()

    assert update.index.tolist() == [9]
