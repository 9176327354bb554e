"""What is due of the curves of a run, for files that only grow."""

import math
from collections.abc import Mapping

import numpy as np
import pytest

from gradwire_protocol.messages.operating.scalars import Logged, pack_points
from gradwire_server.series import series as module
from gradwire_server.series import tail as tail_module
from gradwire_server.series.series import Series
from gradwire_server.series.tail import ABSENT_SECONDS, POINTS, Tail

NAMES = {0: b"zero", 1: b"one"}


class Curves:
    """Series, and what a tail has said is due of them."""

    def __init__(self) -> None:
        self.series = Series()
        self.tail = Tail()
        self._numbers = 0

    def log(self, rank: int, step: int, values: Mapping[str, float], at: float = 0.0) -> None:
        self._numbers += 1
        points = pack_points([(i, step, 0, value) for i, value in enumerate(values.values())])
        self.series.add(rank, NAMES[rank], Logged(self._numbers, tuple(values), points, 0), at)

    def write(
        self, at: float = 0.0, *, is_over: bool = False
    ) -> dict[tuple[int | None, str], list[int]]:
        """Write what is due; return the steps of each curve."""
        written: dict[tuple[int | None, str], list[int]] = {}
        for shown in self.tail.due(self.series.copy(), at, is_over=is_over):
            if shown is not None:
                steps = shown.curve.step.tolist()
                assert len(steps) <= POINTS
                written.setdefault((shown.rank, shown.series), []).extend(steps)
                self.tail.note(shown.rank, shown.series, steps[-1] + shown.curve.steps)
        return written


def test_a_step_is_due_once_when_its_worker_has_gone_on() -> None:
    curves = Curves()
    for step in (1, 2, 3):
        curves.log(0, step, {"loss": 1.0})

    assert curves.write() == {(None, "loss"): [1, 2], (0, "loss"): [1, 2]}
    assert curves.write() == {}

    curves.log(0, 4, {"accuracy": 1.0})
    assert curves.write() == {(None, "loss"): [3], (0, "loss"): [3]}


def test_at_the_end_everything_is_due() -> None:
    curves = Curves()
    curves.log(0, 1, {"loss": 1.0})

    assert curves.write() == {}
    assert curves.write(is_over=True) == {(None, "loss"): [1], (0, "loss"): [1]}


def test_the_last_step_of_a_worker_that_logs_no_more_is_due_after_a_while() -> None:
    curves = Curves()
    curves.log(0, 1, {"loss": 1.0})

    assert curves.write(ABSENT_SECONDS) == {}
    assert not curves.tail.is_settled(curves.series, ABSENT_SECONDS)
    assert curves.write(ABSENT_SECONDS + 1) == {(None, "loss"): [1], (0, "loss"): [1]}
    assert curves.tail.is_settled(curves.series, ABSENT_SECONDS + 1)


def test_the_mean_waits_for_the_slowest_worker_until_that_one_is_absent() -> None:
    curves = Curves()
    for step in range(1, 6):
        curves.log(0, step, {"loss": 1.0})
    for step in range(1, 4):
        curves.log(1, step, {"loss": 1.0})

    assert curves.write()[None, "loss"] == [1, 2]

    curves.log(0, 6, {"loss": 1.0}, at=ABSENT_SECONDS + 1)
    assert curves.write(ABSENT_SECONDS + 1)[None, "loss"] == [3, 4, 5]


def test_a_worker_that_counts_from_the_beginning_holds_up_nothing_and_goes_back_nowhere() -> None:
    curves = Curves()
    for step in range(1, 6):
        curves.log(0, step, {"loss": 1.0})
        curves.log(1, step, {"loss": 1.0})
    assert curves.write()[None, "loss"] == [1, 2, 3, 4]

    curves.log(1, 1, {"loss": 9.0}, at=9.0)  # another process has taken the place of rank 1
    curves.log(0, 6, {"loss": 1.0}, at=9.0)

    assert curves.write(9.0) == {(None, "loss"): [5], (0, "loss"): [5]}


def test_what_comes_late_for_a_step_that_is_written_is_left_out() -> None:
    curves = Curves()
    for step in (1, 2, 3):
        curves.log(0, step, {"loss": 1.0})
    curves.write()

    curves.log(0, 1, {"loss": 5.0, "held-out": 5.0})

    assert curves.write() == {(None, "held-out"): [1], (0, "held-out"): [1]}


def test_of_what_is_lost_everything_is_due_once_more() -> None:
    curves = Curves()
    for step in (1, 2, 3):
        curves.log(0, step, {"loss": 1.0})
    curves.write()

    curves.tail.forget(0)

    assert curves.write() == {(0, "loss"): [1, 2]}


def test_files_grow_by_half_of_a_board_whenever_the_steps_double() -> None:
    series, tail = Series(), Tail()
    sums: list[int] = []
    points_written = 0
    steps = np.arange(0, 2**16, 4)
    for number, start in enumerate(range(0, len(steps), 1024), 1):
        part = steps[start : start + 1024]
        packed = pack_points([(0, int(step), 0, 1.0) for step in part])
        series.add(0, b"zero", Logged(number, ("loss",), packed, 0), float(number))
        for shown in tail.due(series.copy(), float(number), is_over=False):
            if shown is not None and shown.rank == 0:
                points_written += len(shown.curve.step)
                tail.note(0, "loss", int(shown.curve.step[-1]) + shown.curve.steps)
        sums.append(points_written)

    doublings = math.log2(2**16 / module.COLUMNS_MAX)
    assert module.COLUMNS_MAX / 4 < sums[-1] <= module.COLUMNS_MAX * (1 + doublings / 2)
    assert sums == sorted(sums)


def test_with_many_series_neighbours_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "POINTS_MAX", 2**16)
    series = Series()
    steps, names = 256, tuple(f"s{number}" for number in range(200))
    for step in range(steps):
        points = pack_points([(i, step, 0, float(step)) for i in range(len(names))])
        series.add(0, b"zero", Logged(step + 1, names, points, 0), float(step))

    shown = [each for each in Tail().due(series, float(steps), is_over=True) if each is not None]

    assert 2**14 <= sum(len(each.curve.step) for each in shown) <= 2**16
    assert {each.curve.steps for each in shown} == {2}


def test_a_copy_stays_as_it_is() -> None:
    curves = Curves()
    curves.log(0, 1, {"loss": 1.0})
    copied = curves.series.copy()

    for step in range(2, 100):
        curves.log(0, step, {"loss": 1.0, "more": 1.0}, at=9.0)

    assert (copied.taken, copied.names(), copied.fronts()[0].step) == (1, ["loss"], 1)
