"""Benchmark `convergence` runs, on few steps; what it measures there means nothing."""

import pickle
from dataclasses import replace
from math import isfinite, nan
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.convergence import alone, simulated
from benchmarks.convergence.comparison import FULL, figures_of, named, show_rates
from benchmarks.convergence.drawing import draw_comparisons
from benchmarks.convergence.outcome import LAST, Outcome, evaluated_after
from benchmarks.convergence.results import (
    DDP,
    GRADWIRE,
    ONE_PROCESS,
    POWER_SGD,
    WITH_MASTERS,
    WITH_RELAYS,
    Comparison,
    Runs,
)
from benchmarks.convergence.tasks import BATCH, TASKS, Task, samples_of

SHORT = {name: replace(task, steps=4) for name, task in TASKS.items()}


@pytest.mark.processor_seconds(20, "it trains for real; 10 s on a slow machine")
@pytest.mark.parametrize("task", SHORT.values(), ids=SHORT)
def test_every_task_is_trained_by_one_process_and_by_simulated_workers(task: Task) -> None:
    dense = alone.train(task, task.rates[0], 0, 2)
    shared = simulated.train(task, task.rates[0], 0, 2)

    assert all(map(isfinite, [*dense.losses, *shared.losses]))
    assert list(dense.steps) == list(shared.steps) == [1, 2, 3, 4]
    assert dense.megabytes == 0 < shared.megabytes


@pytest.mark.parametrize("task", SHORT.values(), ids=SHORT)
def test_every_seed_has_its_model_and_every_rank_its_samples(task: Task) -> None:
    first, again, other = (task.new_model(seed).state_dict() for seed in (0, 0, 1))

    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not all(torch.equal(value, other[name]) for name, value in first.items())
    inputs, targets = task.draw(samples_of(0, 0))
    assert len(inputs) == BATCH
    assert torch.equal(inputs, task.draw(samples_of(0, 0))[0])
    assert not torch.equal(inputs, task.draw(samples_of(0, 1))[0])
    assert len(targets) % BATCH == 0


def test_what_a_pool_is_told_can_travel_and_is_the_task_that_was_meant() -> None:
    options = {"delay": 0}

    sent = pickle.dumps((named, (simulated.train, "regression", 4, 1e-2, 0, 2, options)))

    function, arguments = pickle.loads(sent)
    assert list(function(*arguments).steps) == [1, 2, 3, 4]


def test_workers_that_take_turns_know_everything_and_late_ones_do_not() -> None:
    task = SHORT["regression"]

    serial, late = (simulated.train(task, 1e-2, 0, 3, delay=delay) for delay in (0, 3))

    assert list(serial.losses) != list(late.losses)
    assert late.loss > serial.loss


def test_a_training_that_diverges_has_no_loss_from_there_on() -> None:
    outcome = simulated.train(SHORT["regression"], 1e4, 0, 2)

    assert len(outcome.losses) == len(outcome.steps)
    assert not isfinite(outcome.loss)


def test_a_run_is_evaluated_evenly_and_after_its_last_step() -> None:
    assert list(evaluated_after(3)) == [1, 2, 3]
    points = evaluated_after(300)
    assert points[-1] == 300
    assert set(np.diff(points)) == {10}


def test_the_best_rate_is_one_that_does_not_diverge() -> None:
    runs = Runs({0.1: [_outcome(2.0)], 0.2: [_outcome(1.0)], 0.4: [_outcome(nan)]})

    assert runs.best_rate == 0.2
    assert runs.loss == 1.0


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
    beyond = {figure.figure.rpartition(", ")[2]: figure.met for figure in figures}
    assert beyond[WITH_RELAYS]
    assert not beyond[WITH_MASTERS]
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
        {WITH_RELAYS: [_outcome(ours)] * 2, WITH_MASTERS: [_outcome(ours + 0.01)] * 2},
        0.1,
    )
