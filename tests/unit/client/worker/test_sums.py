"""Sums from the master: whole or not at all, less our own part, and bounded."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.worker.sums import Sum, SumAssembly
from gradwire.worker.update_log import OwnUpdate
from gradwire_codecs import Replica, Update
from gradwire_codecs.format.update import pack_update
from gradwire_codecs.replica.merging import merge
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.link import PartReceived
from gradwire_protocol.messages.updates import WAITING_SUMS_BYTES_MAX, Conflated, Span
from support.wording import naming

ELEMENTS = 60
SPAN = Span({0: 4, 1: 0}, {0: 6, 1: 1}, 3, 3, {})
PARTS = (
    PartReceived(Conflated(9, b"first", None), 20),
    PartReceived(Conflated(9, b"second", None), 21),
    PartReceived(Conflated(9, b"third", SPAN), 22),
)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_sum_is_there_when_all_its_parts_are_in_whatever_order(order: tuple[int, ...]) -> None:
    sums = SumAssembly(ELEMENTS)

    complete = []
    for place in order:
        complete.append(sums.complete)
        sums.add_part(PARTS[place])

    assert complete == [[], [], []]
    assert sums.complete == [(9, SPAN)]
    bodies, number = sums.take(9)
    assert (sorted(bodies), number) == ([b"first", b"second", b"third"], 22)
    assert sums.complete == []


def test_several_sums_may_be_on_their_way_and_one_may_be_of_nothing() -> None:
    sums = SumAssembly(ELEMENTS)
    spans = {stop: Span({0: stop - 2}, {0: stop}, 2, 1, {}) for stop in (8, 6, 4)}

    for number, (stop, span) in enumerate(spans.items()):
        sums.add_part(PartReceived(Conflated(stop, b"", span), number))

    assert sums.complete == [(stop, spans[stop]) for stop in (4, 6, 8)]
    assert sums.take(6) == ([], 1)


def test_what_is_no_part_of_a_sum_is_refused() -> None:
    other = PartReceived(Conflated(9, b"?", Span({0: 1}, {0: 2}, 1, 1, {})), 23)
    large = PartReceived(Conflated(9, bytes(WAITING_SUMS_BYTES_MAX), None), 24)
    cases = (
        ((PARTS[2], other), ("second last",)),
        ((other, PARTS[0]), ("more than 1",)),
        ((large, large, large), ("bytes of sums wait", 3 * WAITING_SUMS_BYTES_MAX)),
    )
    for parts, named in cases:
        sums = SumAssembly(ELEMENTS)

        def add_all(sums: SumAssembly = sums, parts: tuple[PartReceived, ...] = parts) -> None:
            for part in parts:
                sums.add_part(part)

        with pytest.raises(InvalidMessageError, match=naming(*named)):
            add_all()


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
    body = pack_update(total) if total.hits else b""
    mine = [OwnUpdate(3 + i, 0, pack_update(each)) for i, each in enumerate(own)]
    after = {1: len(others)} | ({2: 2 + len(own)} if own else {})
    span = Span({1: 0, 2: 2}, after, len(others) + len(own), 1, {})
    summed = Sum([body], span, mine, 2)
    replica, expected = Replica.zeros(ELEMENTS), Replica.zeros(ELEMENTS)

    for change in summed.changes(ELEMENTS):
        replica.apply(change)
    for update in others:
        expected.apply(update)

    assert replica.values.tolist() == expected.values.tolist()
    assert (summed.updates, summed.versions) == (len(others), {1: len(others)})


def test_the_staleness_of_its_updates_is_as_it_would_be_one_by_one_in_the_mean() -> None:
    # Of ranks 0 and 1, three each in turn; the last of each knew the two before of the other.
    span = Span({0: 5, 1: 5, 2: 9}, {0: 8, 1: 8}, 6, 1, {0: 7 + 9, 1: 7 + 9})

    staleness = Sum([], span, (), 2).staleness({0: 5, 1: 5, 2: 9})

    assert staleness == {0: (0.5, 3), 1: (0.5, 3)}
