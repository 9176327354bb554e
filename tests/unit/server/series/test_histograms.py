"""How the parameters of a run are distributed, in bounded memory."""

import json
from collections.abc import Collection
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.operating.histograms import HISTOGRAM, QUANTITIES, Histograms
from gradwire_server.series.histograms import FRAMES_MAX
from gradwire_server.series.series import Series
from support.distributions import histograms, shown_in, steps_in

WORKER, OTHER = b"worker", b"other"


def add(
    series: Series,
    rank: int,
    message: Histograms,
    now: float,
    *,
    worker: bytes = WORKER,
    present: Collection[int] = (0, 1, 2),
) -> None:
    series.add_histograms(rank, worker, message, now, present)


def test_the_newest_and_those_before_it_are_shown_by_tensor_and_quantity() -> None:
    series = Series()
    for number in (1, 2, 3):
        add(series, 0, histograms(number, 10 * number, "weight", "bias"), 10.0 * number)

    found = shown_in(series)
    assert list(found) == [(name, each) for name in ("weight", "bias") for each in QUANTITIES]
    for shown in found.values():
        assert [each["step"] for each in shown] == [10, 20, 30]
        assert [each["seconds"] for each in shown] == [0.0, 10.0, 20.0]
    assert shown_in(series, history=False)["bias", "update"] == [
        {
            "layer": "bias",
            "quantity": "update",
            "step": 30,
            "seconds": 20.0,
            "rank": 0,
            "elements": 32,
            "nan": 0,
            "infinite": 0,
            "lowest": 0.0,
            "highest": 30.0,
            "mean": 0.0,
            "deviation": 0.0,
            "bins": [1] * 32,
        }
    ]
    assert json.loads(json.dumps(found["bias", "update"])) == found["bias", "update"]


@pytest.mark.parametrize("count", [10, FRAMES_MAX + 1, 1_000])
def test_a_long_run_keeps_some_of_all_its_time(count: int) -> None:
    series = Series()
    for number in range(1, count + 1):
        add(series, 0, histograms(number, 100 * number, "weight"), float(number))

    steps = steps_in(series, "weight")
    assert len(steps) <= FRAMES_MAX + 1
    assert (steps[0], steps[-1]) == (100, 100 * count)
    apart = {b - a for a, b in pairwise(steps[:-1])}
    assert len(apart) == 1, "evenly far apart"
    assert len(steps) > min(count, FRAMES_MAX) // 2
    assert series.histograms.taken == count


def test_what_comes_twice_counts_once_in_whatever_order() -> None:
    series = Series()
    for now, number in enumerate((2, 1, 2, 3, 1, 70, 70, 6)):
        add(series, 0, histograms(number, number, "weight"), float(now))

    assert steps_in(series, "weight") == [1, 2, 3, 70]
    assert (series.histograms.taken, series.histograms.dropped) == (4, 0)


def test_the_lowest_rank_that_takes_part_says_it_for_all() -> None:
    series = Series()
    add(series, 1, histograms(1, 10, "weight"), 1.0)
    add(series, 2, histograms(1, 11, "weight"), 1.0)
    add(series, 0, histograms(1, 12, "weight"), 1.0)
    add(series, 1, histograms(2, 13, "weight"), 2.0)
    assert steps_in(series, "weight") == [10, 12]
    assert series.histograms.dropped == 2

    add(series, 2, histograms(2, 14, "weight"), 3.0, present=(1, 2))

    assert steps_in(series, "weight") == [10, 12, 14]
    assert [each["rank"] for each in shown_in(series)["weight", "residual"]] == [1, 0, 2]


def test_another_worker_of_a_rank_begins_with_numbers_of_its_own() -> None:
    series = Series()
    add(series, 0, histograms(1, 1, "weight"), 1.0)
    add(series, 0, histograms(1, 2, "weight"), 2.0, worker=OTHER)

    assert steps_in(series, "weight") == [1, 2]


def test_what_comes_too_fast_is_dropped_and_counted_with_what_workers_left_out() -> None:
    series = Series()
    for number in range(1, 8):
        add(series, 0, histograms(number, number, "weight", dropped=10), 1.0)

    assert (series.histograms.taken, series.histograms.dropped) == (4, 73)


def test_the_time_is_that_of_the_run_s_series() -> None:
    series = Series()
    add(series, 0, histograms(1, 1, "weight", age=1_500), 100.0)
    add(series, 0, histograms(2, 2, "weight", age=500), 103.0)

    assert [each["seconds"] for each in shown_in(series)["weight", "update"]] == [0.0, 4.0]


def changed(**fields: Any) -> bytes:
    """Return the histograms of a tensor, with something wrong with the second one."""
    found = np.frombuffer(histograms(1, 1, "weight").histograms, HISTOGRAM).copy()
    for name, value in fields.items():
        found[name][1] = value
    return found.tobytes()


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"histograms": bytes(HISTOGRAM.itemsize - 1)}, "167 bytes are no whole histograms"),
        ({"histograms": changed(layer=1)}, "tensor 1 of 1"),
        ({"histograms": changed(quantity=3)}, "quantity 3"),
        ({"histograms": changed(quantity=0)}, "two of the same quantity"),
        ({"histograms": changed(mean=np.nan)}, "not finite"),
        ({"histograms": changed(highest=np.inf)}, "not finite"),
        ({"histograms": changed(nan=1)}, "more values than"),
        ({"names": ("weight", "weight")}, "a name for a second time"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, Any], complaint: str) -> None:
    series = Series()

    with pytest.raises(InvalidMessageError, match=complaint):
        add(series, 0, histograms(1, 1, "weight", **fields), 1.0)

    assert shown_in(series) == {}


@given(st.binary(max_size=3 * HISTOGRAM.itemsize), st.sampled_from(["", "weight"]))
def test_any_bytes_are_taken_or_refused(data: bytes, name: str) -> None:
    series = Series()
    message = Histograms(1, 1, 0, 1, (name,), data, 0)
    try:
        add(series, 0, message, 1.0)
    except InvalidMessageError:
        return
    for shown in shown_in(series).values():
        json.dumps(shown, allow_nan=False)
