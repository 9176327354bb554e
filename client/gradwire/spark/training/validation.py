"""`Validation`: the loss on held-out rows after each epoch, and when to stop.

The master grants no item of an epoch before the driver has the model that the last one has led to.
The driver joins as an observer for that, and computes the loss while workers train on. The rows are
in its memory.
"""

from collections.abc import Callable
from math import nan
from typing import Any, Final

import torch
from torch import nn

from gradwire.session.early_stopping import EarlyStopping
from gradwire.spark.data.batches import Batch
from gradwire.spark.recipe import Recipe

ROWS: Final = 4_096
"""Rows that go through the model at once."""


class Validation:
    """Judges the model of each epoch that has ended, once, and keeps the best one.

    Parameters
    ----------
    recipe : Recipe
    rows : Batch
        What was held out.
    limits : mapping, optional
        Of `EarlyStopping`; None looks without ever stopping.
    read : callable
        Gives a module the parameters and buffers that the run has now.
    grant : callable
        Has the master grant the items of so many epochs.
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
        read: Callable[[nn.Module], object],
        grant: Callable[[int], object],
        stop: Callable[[], object],
        *,
        epochs_before: int = 0,
    ) -> None:
        self._recipe = recipe
        self._rows = rows
        self._model = recipe.make_model()
        self._read = read
        self._grant = grant
        self._stop = stop
        self._early = None if limits is None else EarlyStopping(**limits)
        self.scores = [nan] * epochs_before
        """After each epoch; NaN for those whose models are gone: of an earlier job, for one."""
        self.best: dict[str, torch.Tensor] | None = None
        """Parameters and buffers of the best model; None without limits."""
        self._judged: list[int] = []
        """Which epochs were judged, from 1 on."""
        grant(epochs_before + 1)

    @property
    def reason(self) -> str | None:
        """Why training was stopped; None if it was not."""
        return None if self._early is None else self._early.reason

    @property
    def best_epoch(self) -> int | None:
        """Which epoch had the best model, from 1 on; None without limits."""
        if self._early is None or not self._early.best_at:
            return None
        return self._judged[self._early.best_at - 1]

    def judge(self, epoch: int) -> float | None:
        """Score the model as it is now, which is that of an epoch that has ended, from 1 on.

        Returns None where that was done before, or training was stopped. An epoch between that
        nobody has seen end has no score: a master that was started again forgets what not to grant.
        """
        if epoch <= len(self.scores) or self.reason is not None:
            return None
        self._read(self._model)
        self._grant(epoch + 1)
        score = self._loss()
        self.scores += [nan] * (epoch - 1 - len(self.scores)) + [score]
        self._judged.append(epoch)
        if self._early is not None:
            if self._early.note(score):
                self._stop()
            if self._early.is_best:
                self.best = copied_state(self._model)
        return score

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
