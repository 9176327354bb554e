"""Schedules of the learning rate, as scripts have them."""

from typing import Protocol

from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
)


class Schedule(Protocol):
    """Sets the rate of the next step."""

    def __call__(self, loss: float) -> None:
        """Go on after a step whose loss was this."""


def _stepped(scheduler: LRScheduler) -> Schedule:
    def step(loss: float) -> None:
        scheduler.step()

    return step


def constant(optimizer: Optimizer, steps: int) -> Schedule:
    """Leave the rate as it is."""
    return _stepped(LambdaLR(optimizer, lambda _: 1.0))


def warm_up(optimizer: Optimizer, steps: int) -> Schedule:
    """Begin with a tenth of the rate, and stay at it after a tenth of the steps."""
    return _stepped(LinearLR(optimizer, start_factor=0.1, total_iters=steps // 10))


def cosine(optimizer: Optimizer, steps: int) -> Schedule:
    """Go down to 0."""
    return _stepped(CosineAnnealingLR(optimizer, steps))


def one_cycle(optimizer: Optimizer, steps: int) -> Schedule:
    """Go up, then down to nearly 0; momentum stays."""
    [rate] = {group["lr"] for group in optimizer.param_groups}
    return _stepped(OneCycleLR(optimizer, rate, total_steps=steps + 1, cycle_momentum=False))


def plateau(optimizer: Optimizer, steps: int) -> Schedule:
    """Halve the rate where the mean loss of a twentieth of the steps is no better."""
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    every, losses = max(steps // 20, 1), []

    def step(loss: float) -> None:
        losses.append(loss)
        if len(losses) == every:
            scheduler.step(sum(losses) / every)
            losses.clear()

    return step
