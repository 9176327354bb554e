"""Entries of the log as a worker takes them: what others have changed, and how late."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradwire.worker.sums import Sum
from gradwire.worker.update_log import OwnUpdate
from gradwire_codecs import Replica, Update
from gradwire_codecs.format.update import pack_update
from gradwire_codecs.replica.merging import merge
from gradwire_protocol.messages.updates import Span

ELEMENTS = 60
OURS = 2


@st.composite
def updates(draw: st.DrawFn) -> Update:
    index = np.array(sorted(draw(st.sets(st.integers(0, ELEMENTS - 1), min_size=1))), np.uint32)
    counts = st.integers(-9, 9).filter(bool)
    count = draw(st.lists(counts, min_size=len(index), max_size=len(index)))
    return Update(0, ELEMENTS, draw(st.integers(1, 5)), index, np.array(count, np.int32))


@given(st.lists(updates(), min_size=1, max_size=4), st.lists(updates(), max_size=3))
def test_what_a_sum_changes_has_no_part_of_ours(others: list[Update], own: list[Update]) -> None:
    total = merge([*others, *own], ELEMENTS)
    assert total is not None
    bodies = [pack_update(total)] if total.hits else []
    mine = [OwnUpdate(3 + i, 0, pack_update(each)) for i, each in enumerate(own)]
    after = {1: len(others)} | ({OURS: 2 + len(own)} if own else {})
    count = len(others) + len(own)
    summed = Sum(count, bodies, Span(0, after, count, 1, {}), {1: 0, OURS: 2}, mine, OURS)
    replica, expected = Replica.zeros(ELEMENTS), Replica.zeros(ELEMENTS)

    for change in summed.changes(ELEMENTS):
        replica.apply(change)
    for update in others:
        expected.apply(update)

    assert replica.values.tolist() == expected.values.tolist()
    assert (summed.updates, summed.versions) == (len(others), {1: len(others)})


def test_only_a_single_update_has_an_origin() -> None:
    one = Sum(7, [], Span(6, {1: 4}, 1, 1, {}), {1: 3}, (), OURS)
    two = Sum(7, [], Span(5, {1: 4}, 2, 1, {}), {1: 2}, (), OURS)

    assert (one.origin, two.origin) == (1, None)


def test_a_result_of_a_round_contains_contributions_ours_as_well() -> None:
    span = Span(0, {9: 1}, 1, 1, {}, closes={0: 5, OURS: 4})

    assert Sum(1, [], span, {9: 0}, (), OURS).versions == {9: 1, 0: 5, OURS: 4}


def test_the_staleness_of_its_updates_is_as_it_would_be_one_by_one_in_the_mean() -> None:
    # Of ranks 0 and 1, three each in turn; the last of each knew the two before of the other.
    span = Span(10, {0: 8, 1: 8}, 6, 1, {0: 7 + 9, 1: 7 + 9})

    staleness = Sum(16, [], span, {0: 5, 1: 5}, (), OURS).staleness({0: 5, 1: 5, OURS: 9})

    assert staleness == {0: (0.5, 3), 1: (0.5, 3)}
