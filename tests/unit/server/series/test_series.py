"""What the workers of a run have logged, in bounded memory."""

import math
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.logged.scalars import (
    AGE_MAX,
    POINTS_MAX,
    SERIES_MAX,
    STEP_MAX,
    Logged,
)
from gradwire_server.series import series as module
from gradwire_server.series.board import BUCKET_BYTES
from gradwire_server.series.saved import CELLS_MAX, SAVED_MAX, SavedSeries
from gradwire_server.series.saved import SERIES_MAX as SERIES_OF_RUN_MAX
from gradwire_server.series.series import Series
from support.curves import buckets_of, curves_in, logged, means_in, points_of

WORKER, OTHER = b"worker", b"other"


def some(workers: int = 2, steps: int = 100) -> Series:
    series = Series()
    for step in range(steps):
        for rank in range(workers):
            values = {"loss": float(step + rank), "rate": 0.5}
            series.add(rank, bytes([rank]), logged(step + 1, step, values), float(step))
    return series


def test_each_worker_s_series_and_the_mean_of_all_are_shown() -> None:
    series = Series()
    series.add(0, WORKER, logged(1, 5, {"loss": 1.0, "rate": 8.0}), 0.0)
    series.add(3, OTHER, logged(1, 5, {"loss": 3.0}), 0.0)
    series.add(3, OTHER, logged(2, 6, {"loss": 4.0}), 0.0)

    assert list(means_in(series).items()) == [
        (("loss", None), [(5, 2.0), (6, 4.0)]),
        (("loss", 0), [(5, 1.0)]),
        (("loss", 3), [(5, 3.0), (6, 4.0)]),
        (("rate", None), [(5, 8.0)]),
        (("rate", 0), [(5, 8.0)]),
    ]
    assert (series.taken, series.dropped, series.ranks) == (4, 0, [0, 3])
    assert [shown.rank for shown in series.curves_of("loss", ranks=[3])] == [None, 3]
    assert list(series.curves_of("nothing")) == []


def test_a_scalar_lies_as_long_ago_as_it_is_old_by_the_clock_of_the_master() -> None:
    series = Series()
    for worker, now, ages in ((WORKER, 1_000.0, [1_500]), (OTHER, 1_003.0, [4_000, 500, AGE_MAX])):
        points = points_of((0, step, age, 1.0) for step, age in enumerate(ages))
        series.add(worker[0], worker, Logged(1, ("loss",), points.tobytes(), 0), now)

    assert series.began == 998.5
    found = {shown.rank: shown.curve.seconds.tolist() for shown in series.curves_of("loss")}
    assert found[WORKER[0]] == [0.0]
    assert found[OTHER[0]] == [0.5, 4.0, 0.0], "none lies before the beginning"


SCALARS = st.tuples(st.integers(0, 2), st.integers(0, 2000), st.integers(-100, 100).map(float))
"""Of a rank, a step, a value."""


@given(scalars=st.lists(SCALARS, min_size=1), points_max=st.sampled_from([4, 64, 4096]))
def test_the_mean_of_all_has_each_worker_s_mean_once(
    scalars: list[tuple[int, int, float]], points_max: int
) -> None:
    series = Series()
    for number, (rank, step, value) in enumerate(scalars, 1):
        series.add(rank, bytes([rank]), logged(number, step, {"loss": value}), 0.0)

    mean, *_ = series.curves_of("loss", points_max=points_max)

    assert mean.rank is None
    for bucket in buckets_of(mean.curve):
        by_rank: dict[int, list[float]] = {}
        for rank, step, value in scalars:
            if step // mean.curve.steps * mean.curve.steps == bucket.step:
                by_rank.setdefault(rank, []).append(value)
        means = [sum(values) / len(values) for values in by_rank.values()]
        assert bucket.mean == pytest.approx(sum(means) / len(means))
        assert bucket.count == sum(map(len, by_rank.values()))
        assert bucket.low == min(map(min, by_rank.values()))
        assert bucket.high == max(map(max, by_rank.values()))
    assert len(mean.curve.numbers) <= points_max


def test_a_nan_of_any_worker_shows_in_the_mean() -> None:
    series = Series()
    for rank, value in enumerate((1.0, math.nan)):
        series.add(rank, WORKER, logged(1, 3, {"loss": value}), 0.0)

    [mean] = buckets_of(curves_in(series)["loss", None])
    assert all(map(math.isnan, (mean.mean, mean.low, mean.high)))


def test_what_comes_twice_counts_once_and_another_worker_begins_anew() -> None:
    series = Series()
    for number in (1, 2, 2, 1, 70):
        series.add(0, WORKER, logged(number, number, {"loss": 1.0}), 0.0)
    series.add(0, OTHER, logged(1, 7, {"loss": 1.0}), 0.0)

    assert [step for step, _ in means_in(series)["loss", 0]] == [1, 2, 7, 70]
    assert series.taken == 4


def test_of_a_worker_that_sends_more_than_its_share_the_rest_is_dropped() -> None:
    series = Series()
    full = points_of([(0, 1, 0, 1.0)] * POINTS_MAX).tobytes()
    for number in range(1, 9):
        series.add(0, WORKER, Logged(number, ("loss",), full, 0), 10.0)
    assert (series.taken, series.dropped) == (4 * POINTS_MAX, 4 * POINTS_MAX)

    series.add(0, WORKER, Logged(9, ("loss",), full, 5), 11.0)

    assert (series.taken, series.dropped) == (5 * POINTS_MAX, 4 * POINTS_MAX + 5)


def test_200_workers_with_100_names_each_take_bounded_memory_and_what_is_left_out_is_counted() -> (
    None
):
    series, names = Series(), [f"s{i}" for i in range(100)]
    for number, step in enumerate((0, 10**6), 1):
        for rank in range(200):
            message = logged(number, step, dict.fromkeys(names, 1.0))
            series.add(rank, WORKER, message, float(number))

    kept = sum(board._cells.nbytes for board in series._boards.values())
    assert kept <= BUCKET_BYTES * CELLS_MAX <= 21 * 2**20
    assert series.taken + series.dropped == 2 * 200 * 100
    assert series.taken == 2 * SERIES_OF_RUN_MAX
    assert len(series.save().compressed()) < 2**20


def test_a_name_without_room_takes_none_of_the_others_with_it() -> None:
    series = Series()
    series.add(0, WORKER, logged(1, 1, {f"s{i}": 1.0 for i in range(SERIES_MAX - 1)}), 0.0)
    series.add(0, WORKER, logged(2, 2, {"new": 3.0, "too many": 4.0, "s7": 5.0}), 0.0)

    assert len(series.names()) == SERIES_MAX
    assert means_in(series)["s7", 0] == [(1, 1.0), (2, 5.0)]
    assert (series.taken, series.dropped) == (SERIES_MAX + 1, 1)


def test_the_time_is_that_of_logging() -> None:
    series = Series()
    points = points_of([(0, 1, 1500, 1.0), (0, 2, 500, 1.0)]).tobytes()
    series.add(0, WORKER, Logged(1, ("loss",), points, 0), 100.0)
    series.add(0, WORKER, logged(2, 3, {"loss": 1.0}), 101.0)

    assert series.began == 98.5
    assert curves_in(series)["loss", 0].seconds.tolist() == pytest.approx([0.0, 1.0, 2.5])


@pytest.mark.parametrize("points_max", [100, 1_000, 10**6])
def test_a_page_has_a_limit_and_all_of_the_time(points_max: int) -> None:
    found = list(some(steps=500).curves(points_max))

    assert sum(len(shown.curve.step) for shown in found) <= points_max + 2 * len(found)
    for shown in found:
        assert shown.curve.step[0] == 0
        assert shown.curve.step[-1] + shown.curve.steps >= 500
        assert shown.curve.count.sum() == (500 if shown.rank is not None else 1_000)


# Saved.


def saved_again(series: Series) -> Series:
    return Series.restored(SavedSeries.decompressed(series.save().compressed()))


def test_what_was_saved_is_there_again_and_goes_on() -> None:
    before = some()
    before.dropped = 7
    after = saved_again(before)
    assert (after.taken, after.dropped, after.began) == (before.taken, 7, None)

    for series, now in ((before, 100.0), (after, 5_000.0)):  # the master was started again
        series.add(0, b"back", logged(1, 100, {"loss": 1.0}), now)
        series.add(1, b"back", logged(1, 101, {"new": 1.0}), now + 1.0)

    assert means_in(after) == means_in(before)
    assert after.newest(0) == before.newest(0)
    seconds = curves_in(after)["loss", 0].seconds
    assert seconds.tolist() == pytest.approx([*range(100), 99.0])


def test_an_empty_series_is_saved_too() -> None:
    assert means_in(saved_again(Series())) == {}


def test_of_more_than_is_saved_neighbours_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAVED_MAX", 64)
    before = some()

    after = saved_again(before)

    for key, curve in curves_in(after).items():
        assert len(curve.step) <= 16
        assert curve.count.sum() == curves_in(before)[key].count.sum()


@pytest.mark.parametrize(
    "change",
    [
        {"widths": (3, 1, 1, 1)},
        {"widths": (2**32, 1, 1, 1)},
        {"counts": (99, 101, 100, 100)},
        {"counts": (1, 1, 1, 1)},
        {"names": ("loss", "loss", "loss", "rate")},
        {"ranks": (0, 0, 1)},
        {"buckets": bytes(6 * 8 * 400)},
        {"buckets": np.full((6, 400), np.nan).tobytes()},
        {"buckets": b"odd"},
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(change: dict[str, object]) -> None:
    saved = some().save()
    assert Series.restored(saved).taken == 400

    with pytest.raises(InvalidMessageError, match=r"^series: "):
        Series.restored(replace(saved, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"damaged", zlib.compress(b"damaged")])
def test_damage_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidMessageError):
        SavedSeries.decompressed(data)


def test_the_longest_names_and_most_buckets_fit_a_checkpoint() -> None:
    longest = tuple(f"{i:\U0001f600>64}" for i in range(SERIES_OF_RUN_MAX))
    saved = SavedSeries(
        1.0, 1, 1, (0,) * len(longest), longest, (2**32,) * len(longest), (8,) * len(longest),
        bytes(48 * SAVED_MAX),
    )  # fmt: skip

    assert SavedSeries.parse(saved.pack()) == saved
    assert STEP_MAX < 2**32
