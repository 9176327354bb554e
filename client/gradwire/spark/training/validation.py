"""`Validation`: the loss on held-out rows while training goes on, and when to stop.

The driver takes part as an observer, so no worker stops for it. The rows are in its memory.
"""

from collections.abc import Callable
from math import nan
from typing import Any, Final

import torch
from torch import nn

import gradwire
from gradwire.session.early_stopping import EarlyStopping
from gradwire.spark.data.batches import Batch
from gradwire.spark.recipe import Recipe

ROWS: Final = 4_096
"""Rows that go through the model at once."""


class Validation:
    """Judges the model after each epoch, and keeps the best one.

    Parameters
    ----------
    recipe : Recipe
    rows : Batch
        What was held out.
    limits : mapping, optional
        Of `EarlyStopping`; None looks without ever stopping.
    join : callable
        Takes a module, and returns an observer's session with it.
    stop : callable
        Has all workers end their training.
    epochs_before : int
        Epochs that were over when this job began, because it goes on from a checkpoint.
    """

    def __init__(
        self,
        recipe: Recipe,
        rows: Batch,
        limits: dict[str, Any] | None,
        join: Callable[[nn.Module], gradwire.Session],
        stop: Callable[[], object],
        *,
        epochs_before: int = 0,
    ) -> None:
        self._recipe = recipe
        self._rows = rows
        self._model = recipe.make_model()
        self._stop = stop
        self._early = None if limits is None else EarlyStopping(**limits)
        self._epochs_before = epochs_before
        self.scores = [nan] * epochs_before
        """After each epoch; NaN for those before this job, whose models are gone."""
        self.best: dict[str, torch.Tensor] | None = None
        """Parameters and buffers of the best model; None without limits."""
        self._session = join(self._model)

    @property
    def reason(self) -> str | None:
        """Why training was stopped; None if it was not."""
        return None if self._early is None else self._early.reason

    @property
    def best_epoch(self) -> int | None:
        """Which epoch had the best model, from 1 on; None without limits."""
        return None if self._early is None else self._epochs_before + self._early.best_at

    def catch_up(self) -> None:
        """Apply what workers have sent since the last time."""
        self._session.pull()

    def judge(self) -> float:
        """Score the model as it is now."""
        self._session.pull()
        score = self._loss()
        self.scores.append(score)
        if self._early is not None:
            if self._early.note(score):
                self._stop()
            if self._early.is_best:
                self.best = copied_state(self._model)
        return score

    def close(self) -> None:
        """Leave the run."""
        self._session.close("the training is over")

    def _loss(self) -> float:
        self._model.eval()
        total = weight = 0.0
        with torch.no_grad():
            for start in range(0, len(self._rows), ROWS):
                part = self._rows.rows(slice(start, start + ROWS))
                losses = self._recipe.losses_of(self._model(*part.inputs), part)
                weights = torch.ones(len(part)) if part.weights is None else part.weights
                total += float((losses * weights).sum())
                weight += float(weights.sum())
        return total / weight if weight else float("nan")


def copied_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers, each with memory of its own: a run has all in one block."""
    return {name: each.detach().cpu().clone() for name, each in model.state_dict().items()}
