"""Sums of updates from the master: whole or not at all, and only where they fit."""

import pytest

from gradwire.worker.peer_sequences import PeerSequences, Sum, SumAssembly
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_protocol.messages.updates import PART_ELEMENTS, Conflated, EncodedUpdate, Span
from support.wording import naming

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
        sums.add_part(PARTS[place])
    whole = sums.span
    total = sums.take_sum()

    assert spans == [None, None, None]
    assert whole == SPAN
    assert sorted(total.bodies) == [b"first", b"second", b"third"]
    assert (total.versions, total.updates) == ({0: 6, 1: 1}, 3)
    assert sums.span is None


def test_sums_come_one_after_the_other_and_may_be_of_nothing() -> None:
    sums = SumAssembly(ELEMENTS)

    totals = []
    for after in (5, 6):
        sums.add_part(Conflated(0, b"", Span({0: after - 1}, {0: after}, 1, 1)))
        totals.append(sums.take_sum())

    assert totals == [Sum((), {0: 5}, 1), Sum((), {0: 6}, 1)]


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ([Conflated(ELEMENTS, b"?", None)], ("part", ELEMENTS)),
        ([Conflated(3 * PART_ELEMENTS, b"?", None)], ("part", 3 * PART_ELEMENTS)),
        ([Conflated(1, b"?", None)], ("part", "element 1")),
        ([PARTS[0], PARTS[0]], ("part", "element 0")),
        ([PARTS[2], Conflated(0, b"?", SPAN)], ("second last",)),
        ([Conflated(0, b"?", Span({0: 1}, {0: 2}, 1, 1)), PARTS[1]], ("more than 1",)),
    ],
)
def test_what_is_no_part_of_a_sum_is_refused(
    parts: list[Conflated], named: tuple[object, ...]
) -> None:
    sums = SumAssembly(ELEMENTS)

    def add_all() -> None:
        for part in parts:
            sums.add_part(part)

    with pytest.raises(InvalidMessageError, match=naming(*named)):
        add_all()


def begun(versions: dict[int, int], **waiting: int) -> PeerSequences:
    """Return what has come of rank 0: four updates, and one that waits perhaps."""
    sequences = PeerSequences()
    sequences.begin_with({0: 4, **versions})
    for sequence in waiting.values():
        update = EncodedUpdate(sequence, 0, b"x")
        sequences.accept_update(UpdateReceived(0, update, None, 0))  # type: ignore[arg-type]
    return sequences


def test_a_sum_may_begin_where_the_worker_has_got_to() -> None:
    begun({}).check_follows(SPAN, 2)
    begun({1: 0, 7: 9}, later=7).check_follows(SPAN, 2)
    begun({3: 8}).check_follows(Span({3: 8}, {3: 9}, 1, 1), 2)


@pytest.mark.parametrize(
    ("span", "waiting", "named"),
    [
        (Span({0: 4}, {0: 6, 1: 1}, 3, 1), {}, ("contains",)),
        (Span({0: 4, 2: 0}, {0: 6, 2: 1}, 3, 1), {}, ("contains",)),
        (Span({0: 5}, {0: 6}, 1, 1), {}, ("updates 6 to 6", "rank 0", 4)),
        (Span({0: 3}, {0: 6}, 3, 1), {}, ("updates 4 to 6", "rank 0", 4)),
        (Span({0: 4}, {0: 4}, 3, 1), {}, ("updates 5 to 4", "rank 0", 4)),
        (Span({1: 1}, {1: 2}, 1, 1), {}, ("updates 2 to 2", "rank 1", 0)),
        (SPAN, {"sooner": 6}, ("update 6", "rank 0")),
    ],
)
def test_a_sum_with_which_something_would_be_missing_or_twice_there_is_refused(
    span: Span, waiting: dict[str, int], named: tuple[object, ...]
) -> None:
    with pytest.raises(InvalidMessageError, match=naming(*named)):
        begun({}, **waiting).check_follows(span, 2)
