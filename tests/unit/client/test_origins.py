"""Sums of updates from the master: whole or not at all, and only where they fit."""

import pytest

from gradwire.origins import Sum, SumAssembly, check_follows
from gradwire_protocol import InOrder, InvalidMessageError
from gradwire_protocol.link import UpdateReceived
from gradwire_protocol.messages import PART_ELEMENTS, Conflated, Span

ELEMENTS = 2 * PART_ELEMENTS + 7
SPAN = Span({0: 4, 1: 0}, {0: 6, 1: 1}, 3, 3)
PARTS = (
    Conflated(0, b"first", None),
    Conflated(PART_ELEMENTS, b"second", None),
    Conflated(2 * PART_ELEMENTS, b"third", SPAN),
)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_sum_is_there_when_all_its_parts_are_in_whatever_order(order: tuple[int, ...]) -> None:
    sums = SumAssembly(ELEMENTS)

    spans = []
    for place in order:
        spans.append(sums.span)
        sums.add(PARTS[place])
    whole = sums.span
    total = sums.take()

    assert spans == [None, None, None]
    assert whole == SPAN
    assert sorted(total.bodies) == [b"first", b"second", b"third"]
    assert (total.versions, total.updates) == ({0: 6, 1: 1}, 3)
    assert sums.span is None


def test_sums_come_one_after_the_other_and_may_be_of_nothing() -> None:
    sums = SumAssembly(ELEMENTS)

    totals = []
    for after in (5, 6):
        sums.add(Conflated(0, b"", Span({0: after - 1}, {0: after}, 1, 1)))
        totals.append(sums.take())

    assert totals == [Sum((), {0: 5}, 1), Sum((), {0: 6}, 1)]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([Conflated(ELEMENTS, b"?", None)], "a part from element 131079 on, of 131079"),
        ([Conflated(3 * PART_ELEMENTS, b"?", None)], "a part from element 196608 on"),
        ([Conflated(1, b"?", None)], "a part from element 1 on"),
        ([PARTS[0], PARTS[0]], "a part from element 0 on"),
        ([PARTS[2], Conflated(0, b"?", SPAN)], "a second last part"),
        (
            [Conflated(0, b"?", Span({0: 1}, {0: 2}, 1, 1)), PARTS[1]],
            "more than 1 parts",
        ),
    ],
)
def test_what_is_no_part_of_a_sum_is_refused(parts: list[Conflated], says: str) -> None:
    sums = SumAssembly(ELEMENTS)

    def add_all() -> None:
        for part in parts:
            sums.add(part)

    with pytest.raises(InvalidMessageError, match=says):
        add_all()


def origins(**waiting: int) -> dict[int, InOrder[UpdateReceived]]:
    """Return what has come of rank 0: four updates, and one that waits perhaps."""
    origin: InOrder[UpdateReceived] = InOrder(5)
    for sequence in waiting.values():
        origin.push(sequence, None)  # type: ignore[arg-type]
    return {0: origin}


def test_a_sum_may_begin_where_the_worker_has_got_to() -> None:
    check_follows(SPAN, 2, {}, origins())
    check_follows(SPAN, 2, {1: 0, 7: 9}, origins(later=7))
    check_follows(Span({3: 8}, {3: 9}, 1, 1), 2, {3: 8}, {})


@pytest.mark.parametrize(
    ("span", "waiting", "says"),
    [
        (Span({0: 4}, {0: 6, 1: 1}, 3, 1), {}, "it does not say what it contains"),
        (Span({0: 4, 2: 0}, {0: 6, 2: 1}, 3, 1), {}, "it does not say what it contains"),
        (Span({0: 5}, {0: 6}, 1, 1), {}, "updates 6 to 6 of rank 0; 4 are here"),
        (Span({0: 3}, {0: 6}, 3, 1), {}, "updates 4 to 6 of rank 0; 4 are here"),
        (Span({0: 4}, {0: 4}, 3, 1), {}, "updates 5 to 4 of rank 0; 4 are here"),
        (Span({1: 1}, {1: 2}, 1, 1), {}, "updates 2 to 2 of rank 1; 0 are here"),
        (SPAN, {"sooner": 6}, "update 6 of rank 0, which came by itself"),
    ],
)
def test_a_sum_with_which_something_would_be_missing_or_twice_there_is_refused(
    span: Span, waiting: dict[str, int], says: str
) -> None:
    with pytest.raises(InvalidMessageError, match=says):
        check_follows(span, 2, {}, origins(**waiting))
