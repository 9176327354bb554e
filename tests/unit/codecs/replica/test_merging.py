"""Several updates as one."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import Update
from gradwire_codecs.arrays import Int32Array
from gradwire_codecs.format.header import INT32_MAX
from gradwire_codecs.format.update import decode, pack_update
from gradwire_codecs.replica import merging
from gradwire_codecs.replica.merging import merge

WINDOW = 2**14
ELEMENTS = 2 * WINDOW + 5

Hits = dict[int, int]


@pytest.fixture(autouse=True, scope="module")
def small_windows() -> Iterator[None]:
    """So that a small vector has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "WINDOW", WINDOW)
        patch.setattr(merging, "_spare", [])
        yield


def update_of(hits: Hits, multiple: int) -> Update:
    index = np.array(sorted(hits), np.uint32)
    count = np.array([hits[i] for i in sorted(hits)], np.int32)
    return Update(0, ELEMENTS, multiple, index, count)


def sum_of(updates: Sequence[Update]) -> Int32Array:
    total = np.zeros(ELEMENTS, np.int64)
    for update in updates:
        total[update.index] += update.change
    return total.astype(np.int32)


counts = st.integers(-9, 9).filter(bool)
some_hits = st.dictionaries(st.integers(0, ELEMENTS - 1), counts, max_size=40)
updates_of_some = st.lists(st.builds(update_of, some_hits, st.integers(1, 1000)), min_size=1)


@given(updates_of_some)
def test_a_sum_changes_what_its_updates_change_one_after_the_other(updates: list[Update]) -> None:
    merged = merge(updates, ELEMENTS)

    assert merged is not None
    np.testing.assert_array_equal(merged.change_of_range(), sum_of(updates))
    assert merged.count.all()
    if merged.hits:
        decoded = decode(pack_update(merged), ELEMENTS)
        np.testing.assert_array_equal(decoded.change_of_range(), merged.change_of_range())


@given(updates_of_some)
def test_an_update_and_its_opposite_are_nothing(updates: list[Update]) -> None:
    opposite = [Update(u.start, u.stop, u.multiple, u.index, -u.count) for u in updates]

    merged = merge([*updates, *opposite], ELEMENTS)

    assert merged is not None
    assert merged.hits == 0


@given(updates_of_some, st.integers(1, 9))
def test_a_common_threshold_stays_one(updates: list[Update], factor: int) -> None:
    same = [Update(u.start, u.stop, 7 * factor, u.index, u.count) for u in updates]

    merged = merge(same, ELEMENTS)

    assert merged is not None
    assert merged.hits == 0 or merged.multiple % (7 * factor) == 0


def test_what_no_update_expresses_has_no_sum() -> None:
    largest = update_of({5: INT32_MAX}, 1)

    assert merge([largest, update_of({5: 1}, 1)], ELEMENTS) is None
    assert merge([largest, update_of({5: -1}, 1)], ELEMENTS) is not None


def test_a_sum_that_there_is_not_leaves_nothing_behind() -> None:
    largest = update_of({5: INT32_MAX, ELEMENTS - 1: 1}, 1)
    assert merge([largest, largest], ELEMENTS) is None

    merged = merge([update_of({7: 1}, 1), update_of({9: 1}, 1)], ELEMENTS)

    assert merged is not None
    assert merged.index.tolist() == [7, 9]
