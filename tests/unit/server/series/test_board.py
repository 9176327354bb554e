"""The series of one worker, in buckets that become wider as its steps go on."""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.messages.operating.scalars import POINT
from gradwire_server.series.board import Board
from support.curves import buckets_of

COLUMNS = 16
NAMES = ("loss", "rate")

Scalar = tuple[int, int, float]
"""Number of the series, step, value."""

SCALARS = st.tuples(
    st.integers(0, len(NAMES) - 1),
    st.integers(0, 300) | st.integers(10**6, 10**6 + 50),
    st.integers(-1000, 1000).map(float),
)


def add(board: Board, scalars: Sequence[Scalar], seconds: float = 1.0) -> None:
    points = np.array([(series, step, 0, value) for series, step, value in scalars], POINT)
    board.add(NAMES, points, np.full(len(points), seconds))


def board_of(*batches: Sequence[Scalar], columns: int = COLUMNS) -> Board:
    board = Board(columns)
    board.open(NAMES)
    for number, batch in enumerate(batches):
        add(board, batch, float(number))
    return board


@given(
    batches=st.lists(st.lists(SCALARS, max_size=20), max_size=8),
    narrowed=st.sampled_from([COLUMNS, COLUMNS // 2, COLUMNS // 8]),
)
def test_every_scalar_is_in_the_bucket_of_its_step(
    batches: list[list[Scalar]], narrowed: int
) -> None:
    board = board_of(*batches)
    board.narrow(narrowed)

    for number, name in enumerate(NAMES):
        expected = defaultdict(list)
        for series, step, value in (scalar for batch in batches for scalar in batch):
            if series == number:
                expected[step // board.width * board.width].append(value)
        found = buckets_of(board.curve(name))
        assert [bucket.step for bucket in found] == sorted(expected)
        assert len(found) <= narrowed
        for bucket in found:
            values = expected[bucket.step]
            assert (bucket.low, bucket.high, bucket.count) == (
                min(values), max(values), len(values)
            )  # fmt: skip
            assert bucket.mean == pytest.approx(sum(values) / len(values))
            assert bucket.steps == board.width


@given(last=st.integers(0, 10**6))
def test_buckets_are_no_wider_than_they_have_to_be(last: int) -> None:
    board = board_of([(0, 0, 1.0), (0, last, 1.0)])

    assert board.width == 1 or last >= board.width // 2 * COLUMNS


def test_a_bucket_tells_when_its_last_scalar_was_logged() -> None:
    board = board_of([(0, 3, 1.0)], [(0, 3, 2.0), (1, 4, 0.0)], [(0, 5, 1.0)])

    assert [(b.step, b.seconds) for b in buckets_of(board.curve("loss"))] == [(3, 1.0), (5, 2.0)]


def test_a_nan_is_kept() -> None:
    board = board_of([(0, 3, 1.0), (0, 3, math.nan), (0, 4, math.inf), (1, 4, 2.0)])

    first, second = buckets_of(board.curve("loss"))

    assert math.isnan(first.mean)
    assert second.mean == math.inf
    assert buckets_of(board.curve("rate"))[0].mean == 2.0


def test_a_series_may_begin_late() -> None:
    board = Board(COLUMNS)
    board.open(["loss"])
    board.add(["loss"], np.array([(0, 5, 0, 1.0)], POINT), np.zeros(1))
    board.open(["rate"])
    board.add(["rate", "loss"], np.array([(0, 6, 0, 2.0), (1, 6, 0, 3.0)], POINT), np.zeros(2))

    assert [(b.step, b.mean) for b in buckets_of(board.curve("loss"))] == [(5, 1.0), (6, 3.0)]
    assert [(b.step, b.mean) for b in buckets_of(board.curve("rate"))] == [(6, 2.0)]
    assert [*board] == ["loss", "rate"]
