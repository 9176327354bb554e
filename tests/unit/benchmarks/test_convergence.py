"""Benchmark `convergence` runs, on few steps; what it measures there means nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.convergence import simulated
from benchmarks.convergence.comparison import FULL, figures_of, show_rates
from benchmarks.convergence.drawing import draw_comparisons
from benchmarks.convergence.outcome import LAST, Outcome
from benchmarks.convergence.results import (
    DDP,
    GRADWIRE,
    ONE_PROCESS,
    POWER_SGD,
    Comparison,
    Runs,
)
from benchmarks.convergence.tasks import TASKS

SHORT = {name: replace(task, steps=4) for name, task in TASKS.items()}


def test_workers_that_take_turns_know_everything_and_late_ones_do_not() -> None:
    task = SHORT["regression"]

    serial, late = (simulated.train(task, 1e-2, 0, 3, delay=delay) for delay in (0, 3))

    assert list(serial.losses) != list(late.losses)
    assert late.loss > serial.loss


def test_what_was_compared_is_judged_shown_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = _comparison(ours=0.9, theirs=1.0)

    figures = figures_of(done, FULL)

    show_rates(done, FULL)
    assert "0.9" in capsys.readouterr().out
    loss, sent, *_ = figures
    assert loss.ratio == pytest.approx(0.9)
    assert sent.ratio == pytest.approx(1.0)
    assert loss.met
    assert not sent.met
    assert not figures_of(_comparison(ours=1.1, theirs=1.0), FULL)[0].met
    draw_comparisons([done], FULL.workers, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def _outcome(loss: float) -> Outcome:
    losses = [loss] * (LAST + 1)
    return Outcome(steps=range(1, LAST + 2), losses=losses, megabytes=3.0, seconds=1.0)


def _runs(loss: float) -> Runs:
    return Runs({0.1: [_outcome(loss), _outcome(loss)]})


def _comparison(*, ours: float, theirs: float) -> Comparison:
    return Comparison(
        SHORT["digits"],
        {GRADWIRE: _runs(ours), DDP: _runs(theirs), POWER_SGD: _runs(1.0), ONE_PROCESS: _runs(1.0)},
        {GRADWIRE: _runs(ours), ONE_PROCESS: _runs(theirs)},
        {delay: [_outcome(1.0), _outcome(1.0)] for delay in FULL.delays},
        0.1,
    )
