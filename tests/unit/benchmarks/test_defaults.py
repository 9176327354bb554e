"""Benchmark `defaults`: its tasks learn, and its figures say what was measured."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from benchmarks.defaults import simulated
from benchmarks.defaults.comparison import (
    BYTES_AIM,
    QUICK,
    Comparison,
    figures_of,
    geometric_mean,
    mean_loss,
)
from benchmarks.defaults.tasks import TASKS


def outcome(loss: float, megabytes: float = 1.0) -> dict[str, Any]:
    return {"loss": loss, "megabytes": megabytes}


@pytest.mark.parametrize("name", ["softmax", "lstm"])
def test_one_simulated_worker_trains_what_ddp_trains(name: str) -> None:
    task = replace(TASKS[name], steps=5)
    rate = task.rates[1]

    ours, theirs = simulated.gradwire(task, rate, 1, 1), simulated.ddp(task, rate, 1, 1)

    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    assert theirs["megabytes"] == 0.0


def test_figures_are_of_the_best_rate_and_of_all_tasks_together() -> None:
    one, held_back = TASKS["softmax"], TASKS["gpt"]
    done = [
        Comparison(one, 4, 0.1, [outcome(1.0, 120.0)] * 2, [outcome(1.0), outcome(1.02)]),
        Comparison(held_back, 4, 0.1, [outcome(1.0, 30.0)] * 2, [outcome(2.0), outcome(0.5)]),
    ]

    figures = {figure.figure: figure for figure in figures_of(done, replace(QUICK, seeds=2))}

    loss = figures["loss, softmax, 4 workers, with keys"]
    assert loss.ratio == pytest.approx(1.01)
    assert loss.met
    sent = figures["sent with DDP, softmax, 4 workers, with keys"]
    assert (sent.ratio, sent.met) == (120.0, True)
    assert BYTES_AIM > 30.0
    assert not figures["sent with DDP, gpt, 4 workers, with keys"].met
    chosen, others = list(figures.values())[-2:]
    assert chosen.value == pytest.approx(np.sqrt(1.02))
    assert others.value == pytest.approx(1.0)


def test_what_diverges_meets_no_aim() -> None:
    task = TASKS["softmax"]
    done = Comparison(task, 4, 0.1, [outcome(1.0, 99.0)], [outcome(nan)])

    assert mean_loss(done.gradwire) == inf
    assert geometric_mean(done.ratios) == inf
    assert [figure.met for figure in figures_of([done], QUICK)] == [False, True, False]
