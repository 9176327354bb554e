"""Each epoch is judged once, when it has ended, by the model that it has led to."""

from math import isnan
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: make frameworks")

import torch
from torch import nn

from gradwire.spark import Batch
from gradwire.spark.recipe import Recipe
from gradwire.spark.training.validation import Validation


class ARun:
    """A run whose only weight is what it has come to, so that the loss is its square."""

    def __init__(self, limits: dict[str, Any] | None = None, epochs_before: int = 0) -> None:
        self.weight = 0.0
        self.done: list[object] = []
        rows = Batch((torch.ones(2, 1),), (torch.zeros(2, 1),), None)
        recipe = Recipe(lambda: nn.Linear(1, 1, bias=False), nn.MSELoss(), None, None, 0)
        self.validation = Validation(
            recipe,
            rows,
            limits,
            self.read,
            lambda epochs: self.done.append(epochs),
            lambda: self.done.append("stop"),
            epochs_before=epochs_before,
        )

    def read(self, model: nn.Module) -> None:
        with torch.no_grad():
            model.weight.fill_(self.weight)  # type: ignore[operator]
        self.done.append("read")

    def judge(self, epoch: int, weight: float) -> float | None:
        self.weight = weight
        return self.validation.judge(epoch)


def test_an_epoch_is_judged_once_however_often_the_driver_looks() -> None:
    run = ARun()

    looks = [(0, 9.0), (1, 3.0), (1, 2.5), (1, 2.4), (2, 2.0), (2, 1.0)]
    said = [run.judge(epoch, weight) for epoch, weight in looks]

    assert said == [None, 9.0, None, None, 4.0, None]
    assert run.validation.scores == [9.0, 4.0]


def test_the_next_epoch_is_granted_once_the_parameters_were_read() -> None:
    run = ARun()

    run.judge(1, 1.0)

    assert run.done == [1, "read", 2]


def test_patience_counts_epochs_and_the_best_model_is_kept() -> None:
    run = ARun({"patience": 1})

    for epoch, weight in enumerate((3.0, 1.0, 2.0, 2.0, 0.0), start=1):
        for _ in range(5):
            run.judge(epoch, weight)

    assert run.validation.scores == [9.0, 1.0, 4.0, 4.0]
    assert run.done.count("stop") == 1
    assert run.validation.reason is not None
    assert run.validation.best_epoch == 2
    assert run.validation.best is not None
    assert run.validation.best["weight"].item() == 1.0


def test_an_epoch_that_nobody_has_seen_end_has_no_score() -> None:
    run = ARun({"patience": 9}, epochs_before=2)

    run.judge(2, 5.0)
    run.judge(4, 1.0)

    scores = run.validation.scores
    assert list(map(isnan, scores)) == [True, True, True, False]
    assert run.validation.best_epoch == 4
    assert run.done == [3, "read", 5]
