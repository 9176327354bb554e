"""`InOrder` is sorting, done while the items come."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import InOrder


@given(
    first=st.integers(0, 10),
    n=st.integers(0, 30),
    repeats=st.lists(st.integers(0, 40), max_size=30),
    order=st.randoms(use_true_random=False),
)
def test_items_come_out_once_and_in_order(
    first: int, n: int, repeats: list[int], order: Random
) -> None:
    """Every number from `first` on once, some more than once, some from before."""
    numbers = [*range(first, first + n), *(r for r in repeats if r < first + n)]
    order.shuffle(numbers)
    items = InOrder[str](first)

    came_out: list[str] = []
    pushed = set[int]()
    for number in numbers:
        assert items.is_duplicate(number) == (number < first or number in pushed)
        pushed.add(number)
        came_out += items.insert(number, f"item {number}")
        assert len(items) == len(pushed - set(range(first))) - len(came_out)

    assert came_out == [f"item {number}" for number in range(first, first + n)]
    assert items.expected == first + n
    assert len(items) == 0


def test_the_first_of_two_items_with_one_number_counts() -> None:
    items = InOrder[str](1)

    items.insert(2, "first")
    items.insert(2, "second")

    assert items.insert(1, "a") == ["a", "first"]


def test_what_is_passed_over_is_not_waited_for() -> None:
    items = InOrder[str](1)
    items.insert(6, "f")
    items.insert(8, "h")

    assert items.lowest_waiting == 6
    assert items.skip_to(4) == []
    assert items.is_duplicate(3)
    assert items.skip_to(6) == ["f"]
    assert (items.expected, items.lowest_waiting) == (7, 8)
    assert items.insert(7, "g") == ["g", "h"]
    assert items.lowest_waiting is None


def test_what_waits_cannot_be_passed_over() -> None:
    items = InOrder[str](1)
    items.insert(3, "c")

    with pytest.raises(AssertionError):
        items.skip_to(4)
    with pytest.raises(AssertionError):
        items.skip_to(0)
