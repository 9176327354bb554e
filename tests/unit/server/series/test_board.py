"""The series of one worker, in buckets that become wider as its steps go on."""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.messages.logged.scalars import STEP_MAX
from gradwire_server.series.board import Board
from support.curves import buckets_of, points_of

COLUMNS = 16
NAMES = ("loss", "rate")

Scalar = tuple[int, int, float]
"""Number of the series, step, value."""

SCALARS = st.tuples(
    st.integers(0, len(NAMES) - 1),
    st.integers(0, 300) | st.integers(10**6, 10**6 + 50) | st.integers(0, STEP_MAX),
    st.integers(-1000, 1000).map(float),
)


def board_of(*batches: Sequence[Scalar], columns: int = COLUMNS) -> Board:
    board = Board(columns)
    board.open(NAMES)
    for number, batch in enumerate(batches):
        points = points_of((series, step, 0, value) for series, step, value in batch)
        board.add(NAMES, points, np.full(len(points), float(number)))
    return board


@given(
    batches=st.lists(st.lists(SCALARS, max_size=20), max_size=8),
    narrowed=st.sampled_from([COLUMNS, COLUMNS // 2, COLUMNS // 8]),
    coarser=st.sampled_from([1, 2, 8]),
)
def test_a_bucket_is_what_was_logged_of_its_steps(
    batches: list[list[Scalar]], narrowed: int, coarser: int
) -> None:
    board = board_of(*batches)
    board.narrow(narrowed)

    for number, name in enumerate(NAMES):
        whole = board.curve(name)
        curve = whole.coarser(coarser * whole.steps)
        expected = defaultdict(list)
        for at, batch in enumerate(batches):
            for series, step, value in batch:
                if series == number:
                    expected[step // curve.steps * curve.steps].append((value, float(at)))
        found = buckets_of(curve)
        assert [bucket.step for bucket in found] == sorted(expected)
        assert len(found) <= narrowed
        for bucket in found:
            values, moments = zip(*expected[bucket.step], strict=True)
            assert (bucket.low, bucket.high) == (min(values), max(values))
            assert (bucket.count, bucket.seconds) == (len(values), max(moments))
            assert bucket.mean == pytest.approx(sum(values) / len(values))


@given(last=st.integers(0, STEP_MAX))
def test_buckets_are_no_wider_than_they_have_to_be(last: int) -> None:
    steps = board_of([(0, 0, 1.0), (0, last, 1.0)]).curve("loss").steps

    assert steps == 1 or last >= steps // 2 * COLUMNS


def test_a_series_of_few_steps_stays_fine_beside_one_of_many() -> None:
    board = board_of([(1, epoch, 0.5) for epoch in range(3)], [(0, 10**6, 1.0), (0, 0, 1.0)])

    assert board.curve("loss").steps > 2
    assert [bucket.step for bucket in buckets_of(board.curve("rate"))] == [0, 1, 2]


def test_a_nan_and_an_infinity_are_kept_in_their_buckets() -> None:
    board = board_of([(0, 3, 1.0), (0, 3, math.nan), (0, 4, math.inf), (0, 5, 2.0)])

    first, second, third = buckets_of(board.curve("loss"))

    assert all(map(math.isnan, (first.mean, first.low, first.high)))
    assert (second.mean, third.mean) == (math.inf, 2.0)


def test_what_came_last_is_known_also_where_steps_go_back() -> None:
    board = board_of([(0, 5, 1.0), (0, 6, 2.0)], [(1, 4, 7.0), (0, 2, 3.0)])

    assert board.newest() == {"loss": (2, 3.0), "rate": (4, 7.0)}
