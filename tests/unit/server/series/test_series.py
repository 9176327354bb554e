"""What the workers of a run have logged, in bounded memory."""

import math
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.operating.scalars import POINTS_MAX, STEP_MAX, Logged, pack_points
from gradwire_server.series import series as module
from gradwire_server.series.series import CELLS_MAX, Series
from support.curves import buckets_in

WORKER, OTHER = b"worker", b"other"


def logged(number: int, step: int, values: Mapping[str, float], **fields: Any) -> Logged:
    points = pack_points([(i, step, 0, value) for i, value in enumerate(values.values())])
    said: dict[str, Any] = {"names": tuple(values), "points": points, "dropped": 0}
    return Logged(number, **{**said, **fields})


def shown(series: Series) -> list[tuple[str, int | None, int, float]]:
    return [
        (name, rank, bucket.step, bucket.mean)
        for (name, rank), buckets in buckets_in(series).items()
        for bucket in buckets
    ]


def test_each_worker_s_series_and_the_mean_of_all_are_shown() -> None:
    series = Series()
    series.add(0, WORKER, logged(1, 5, {"loss": 1.0, "rate": 8.0}), 0.0)
    series.add(3, OTHER, logged(1, 5, {"loss": 3.0}), 0.0)
    series.add(3, OTHER, logged(2, 6, {"loss": 4.0}), 0.0)

    assert shown(series) == [
        ("loss", None, 5, 2.0),
        ("loss", None, 6, 4.0),
        ("loss", 0, 5, 1.0),
        ("loss", 3, 5, 3.0),
        ("loss", 3, 6, 4.0),
        ("rate", None, 5, 8.0),
        ("rate", 0, 5, 8.0),
    ]
    assert (series.taken, series.dropped) == (4, 0)


def test_a_worker_that_logs_more_often_counts_no_more_in_the_mean() -> None:
    series = Series()
    for number in range(1, 4):
        series.add(0, WORKER, logged(number, 5, {"loss": 1.0}), 0.0)
    series.add(1, OTHER, logged(1, 5, {"loss": 3.0}), 0.0)

    assert shown(series)[0] == ("loss", None, 5, 2.0)


def test_what_comes_twice_counts_once_in_whatever_order() -> None:
    series = Series()
    for number in (2, 1, 2, 3, 1, 70, 70, 6):
        series.add(0, WORKER, logged(number, number, {"loss": 1.0}), 0.0)

    assert [step for _, rank, step, _ in shown(series) if rank == 0] == [1, 2, 3, 70]
    assert series.taken == 4


def test_another_worker_of_a_rank_begins_with_numbers_of_its_own() -> None:
    series = Series()
    series.add(0, WORKER, logged(1, 1, {"loss": 1.0}), 0.0)
    series.add(0, OTHER, logged(1, 2, {"loss": 2.0}), 0.0)

    assert [step for _, rank, step, _ in shown(series) if rank == 0] == [1, 2]


def test_who_sends_more_than_its_share_has_the_rest_dropped() -> None:
    series = Series()
    full = logged(1, 0, {"loss": 1.0}, points=pack_points([(0, 1, 0, 1.0)] * POINTS_MAX))
    for number in range(1, 9):
        series.add(0, WORKER, Logged(number, full.names, full.points, 0), 10.0)
    assert (series.taken, series.dropped) == (4 * POINTS_MAX, 4 * POINTS_MAX)

    series.add(0, WORKER, Logged(9, full.names, full.points, 5), 11.0)

    assert (series.taken, series.dropped) == (5 * POINTS_MAX, 4 * POINTS_MAX + 5)


def test_with_many_series_each_has_fewer_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COLUMNS_MAX", 64)
    monkeypatch.setattr(module, "CELLS_MAX", 1024)
    monkeypatch.setattr(module, "SERIES_MAX", 1024 // 32)
    series = Series()
    for number in range(40):
        values = {f"s{number}": float(number)}
        series.add(number % 4, WORKER, logged(number + 1, 1000 * number, values), 0.0)
        cells = sum(board.cells for board in series._boards.values())
        assert cells <= 1024

    assert len(series.names()) == 32
    assert series.dropped == 8
    assert {mean for _, _, _, mean in shown(series)} == set(map(float, range(32)))


def test_a_name_without_room_takes_none_of_the_others_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SERIES_MAX", 2)
    series = Series()
    series.add(0, WORKER, logged(1, 1, {"a": 1.0, "b": 2.0}), 0.0)
    series.add(0, WORKER, logged(2, 2, {"a": 3.0, "c": 4.0, "b": 5.0}), 0.0)

    mine = [(name, step, mean) for name, rank, step, mean in shown(series) if rank == 0]
    assert mine == [("a", 1, 1.0), ("a", 2, 3.0), ("b", 1, 2.0), ("b", 2, 5.0)]
    assert (series.taken, series.dropped) == (4, 1)


def test_the_time_is_that_of_logging_whatever_a_worker_s_clock_says() -> None:
    series = Series()
    points = pack_points([(0, 1, 1500, 1.0), (0, 2, 500, 1.0)])
    series.add(0, WORKER, logged(1, 0, {"loss": 1.0}, points=points), 100.0)
    series.add(0, WORKER, logged(2, 3, {"loss": 1.0}), 101.0)

    seconds = [bucket.seconds for bucket in buckets_in(series)["loss", 0]]
    assert seconds == pytest.approx([0.0, 1.0, 2.5])


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"points": bytes(17)}, "17 bytes are no whole points"),
        ({"points": pack_points([(1, 0, 0, 1.0)])}, "series 1 of 1"),
        ({"names": ("a", "a")}, "a name for a second time"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, Any], complaint: str) -> None:
    series = Series()

    with pytest.raises(InvalidMessageError, match=complaint):
        series.add(0, WORKER, logged(1, 1, {"loss": 1.0}, **fields), 0.0)

    assert (series.taken, series.names()) == (0, [])


def test_the_bound_is_that_of_200_workers_with_100_series_each() -> None:
    assert module.SERIES_MAX >= 200 * 100
    assert CELLS_MAX * 28 <= 32 * 2**20


def test_the_mean_is_in_the_widest_buckets_of_any_worker() -> None:
    series = Series()
    series.add(0, WORKER, logged(1, 3, {"loss": 1.0}), 0.0)
    for number, step in enumerate((0, 1, 2, 3, 4, 5, 40_000), 1):
        series.add(1, OTHER, logged(number, step, {"loss": float(step)}), 0.0)

    [mean, *others] = buckets_in(series)["loss", None]
    steps = mean.steps
    assert steps == buckets_in(series)["loss", 1][0].steps > 5
    assert (mean.mean, mean.low, mean.high, mean.count) == ((1.0 + 2.5) / 2, 0.0, 5.0, 7)
    assert [(each.step, each.mean) for each in others] == [(40_000 // steps * steps, 40_000.0)]


@pytest.mark.parametrize("first", [0, 1])
def test_a_nan_of_any_worker_shows_in_the_mean(first: int) -> None:
    series = Series()
    for rank, value in ((first, math.nan), (1 - first, 1.0)):
        series.add(rank, WORKER, logged(1, 3, {"loss": value}), 0.0)

    [mean] = buckets_in(series)["loss", None]
    assert all(map(math.isnan, (mean.mean, mean.low, mean.high)))


@pytest.mark.parametrize("points_max", [100, 1_000, 10**6])
def test_a_page_has_a_limit_and_all_of_the_time(points_max: int) -> None:
    series = Series()
    for rank in range(3):
        for step in range(500):
            message = logged(step + 1, step, {"a": float(step), "b": 1.0})
            series.add(rank, bytes([rank]), message, float(step))

    found = [shown for shown in series.curves(points_max) if shown is not None]

    assert sum(len(shown.curve.step) for shown in found) <= points_max + len(found)
    for shown in found:
        assert shown.curve.step[0] == 0
        assert shown.curve.step[-1] + shown.curve.steps >= 500
        assert shown.curve.count.sum() == (500 if shown.rank is not None else 1500)
        if shown.series == "a":
            assert shown.curve.low[0] == 0.0
            assert shown.curve.high[-1] == 499.0


def test_a_worker_has_room_for_no_more_names_than_it_may_have() -> None:
    series = Series()
    for number in range(5):
        values = {f"s{number}.{i}": 1.0 for i in range(200)}
        series.add(0, WORKER, logged(number + 1, 1, values), 0.0)

    assert len(series.names()) == 256
    assert (series.taken, series.dropped) == (256, 744)


def test_the_scalar_that_came_last_is_known_by_worker() -> None:
    series = Series()
    points = pack_points([(0, 5, 0, 1.0), (1, 5, 0, 8.0), (0, 6, 0, 2.0)])
    series.add(0, WORKER, Logged(1, ("loss", "rate"), points, 0), 0.0)
    series.add(3, OTHER, logged(1, 9, {"loss": 3.0}), 0.0)
    series.add(0, WORKER, logged(2, 4, {"rate": 7.0}), 1.0)

    assert series.newest(0) == {"loss": (6, 2.0), "rate": (4, 7.0)}
    assert series.newest(3) == {"loss": (9, 3.0)}
    assert series.newest(7) == {}


def test_workers_whose_steps_are_far_apart_have_a_mean_that_takes_no_more_memory() -> None:
    """One counts from 0; another one logs the seconds since 1970 in place of steps."""
    series = Series()
    for rank, steps in enumerate(((0, 1, 2), (STEP_MAX - 1, STEP_MAX), (1, 1_790_000_000))):
        for number, step in enumerate(steps, 1):
            series.add(rank, bytes([rank]), logged(number, step, {"loss": float(rank)}), 0.0)

    tracemalloc.start()
    found = buckets_in(series)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 2**20
    width = found["loss", 2][0].steps
    mean = found["loss", None]
    assert {bucket.steps for bucket in mean} == {width}
    assert [(bucket.step, bucket.count) for bucket in mean] == [
        (0, 4), (1_790_000_000 // width * width, 1), (STEP_MAX // width * width, 2)
    ]  # fmt: skip
    assert [bucket.mean for bucket in mean] == [1.0, 2.0, 1.0]


def test_names_are_those_of_now() -> None:
    series = Series()
    found = []
    for number, name in enumerate("ba", 1):
        series.add(0, WORKER, logged(number, 1, {name: 1.0}), 0.0)
        found.append(list(series.names()))

    assert found == [["b"], ["a", "b"]]
