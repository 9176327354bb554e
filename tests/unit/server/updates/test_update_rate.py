"""The update rate: a rate in the long run, a burst at once, and everything in order."""

import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.updates.update_rate import BURST_SECONDS, BURST_UPDATES_MIN, UpdateRate


def passing(pace: UpdateRate[int], now: float) -> list[int]:
    """Return what passes at this moment."""
    passed = []
    while (item := pace.pop(now)) is not None:
        passed.append(item)
    return passed


@given(
    per_second=st.floats(0.1, 1e6),
    waits=st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 200)), max_size=20),
)
def test_no_span_of_time_lets_more_through_than_a_burst_and_the_rate(
    per_second: float, waits: list[tuple[float, int]]
) -> None:
    pace, now, pushed = UpdateRate[int](per_second), 0.0, 0
    passed: list[tuple[float, int]] = []

    for wait, items in waits:
        now += wait
        for _ in range(items):
            pace.push(pushed)
            pushed += 1
        passed += [(now, item) for item in passing(pace, now)]
        assert (pace.next_at is None) == (not len(pace))

    assert [item for _, item in passed] == list(range(len(passed)))
    assert len(pace) == pushed - len(passed)
    burst = max(BURST_UPDATES_MIN, per_second * BURST_SECONDS)
    # From item i to item j, j - i + 1 <= burst + (t_j - t_i) * per_second + 1: all pairs at once.
    ahead = [count - at * per_second for count, (at, _) in enumerate(passed)]
    for least, here in zip(accumulate(ahead, min), ahead, strict=True):
        assert here - least <= burst


@given(per_second=st.floats(0.1, 1e6), start=st.floats(0.0, 1e9))
def test_at_the_time_it_names_the_next_one_passes(per_second: float, start: float) -> None:
    pace = UpdateRate[int](per_second)
    for item in range(int(2 * max(BURST_UPDATES_MIN, per_second)) % 3000 + 200):
        pace.push(item)
    passing(pace, start)

    for _ in range(3):
        at = pace.next_at
        if at is not None:
            assert pace.pop(math.nextafter(at, -math.inf)) is None
            assert pace.pop(at) is not None


@pytest.mark.parametrize("waiting", [0, 3])
def test_what_is_dropped_is_counted(waiting: int) -> None:
    pace = UpdateRate[int](1.0)
    for item in range(waiting):
        pace.push(item)

    assert pace.clear() == waiting
    assert (len(pace), pace.next_at) == (0, None)
