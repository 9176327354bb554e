"""More workers than a machine has cores for: in one process, nothing late, with gradwire and DDP.

Codec, thresholds, measured delays and the control of the optimizer are the client's own, as in the
simulated part of benchmark `convergence`. DDP's step is computed as what it is: one model, and the
mean of the gradients of all workers' samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.convergence.simulated import Member, final_model
from benchmarks.convergence.tasks import samples_of
from benchmarks.defaults.schedules import Schedule
from benchmarks.defaults.tasks import Batch, Task
from gradwire.settings.settings import Settings
from gradwire_codecs import CodecError

FLOAT_BYTES = 4


@dataclass(slots=True)
class Script:
    """A task as one member trains it."""

    task: Task
    loss: float = field(init=False, default=nan)
    """Of the last step."""
    _schedule: Schedule | None = field(init=False, default=None)

    def new_model(self, seed: int) -> nn.Module:
        """Return the model that all begin with."""
        return self.task.new_model(seed)

    def draw(self, random: np.random.Generator, /) -> Batch:
        """Return the samples of one worker's step."""
        return self.task.draw(random)

    def loss_of(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch."""
        loss = self.task.loss(model, batch)
        self.loss = loss.item()
        return loss

    def make_optimizer(self, model: nn.Module, rate: float, /) -> torch.optim.Optimizer:
        """Return an optimizer, which clips the gradients if the task says so."""
        optimizer = self.task.optimizer(model, rate)
        clip = self.task.clip

        def clipped(*_: object) -> None:
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)

        optimizer.register_step_pre_hook(clipped)
        return optimizer

    def make_schedule(self, optimizer: torch.optim.Optimizer, /) -> "Script":
        """Return the schedule of an optimizer's rate."""
        self._schedule = self.task.schedule(optimizer, self.task.steps)
        return self

    def step(self) -> None:
        """Set the rate of the next step."""
        assert self._schedule is not None
        self._schedule(self.loss)


def ddp(task: Task, rate: float, seed: int, workers: int) -> dict[str, Any]:
    """Train with DDP; return the loss at the end, and what a dense ring all-reduce would send."""
    script, model = Script(task), task.new_model(seed)
    optimizer = script.make_optimizer(model, rate)
    schedule = script.make_schedule(optimizer)
    randoms = [samples_of(seed, rank) for rank in range(workers)]
    loss = nan
    for _ in range(task.steps):
        optimizer.zero_grad()
        losses = []
        for random in randoms:
            part = script.loss_of(model, task.draw(random)) / workers
            part.backward()  # type: ignore[no-untyped-call]
            losses.append(script.loss)
        script.loss = fmean(losses)
        if not isfinite(script.loss):
            break
        optimizer.step()
        schedule.step()
    else:
        loss = task.evaluate(model)
    elements = sum(parameter.numel() for parameter in model.parameters())
    dense = 2 * (workers - 1) * FLOAT_BYTES * elements * task.steps
    return {"loss": loss, "megabytes": dense / 1e6}


def gradwire(task: Task, rate: float, seed: int, workers: int) -> dict[str, Any]:
    """Train with gradwire as it comes; return the loss at the end, and what was sent."""
    settings = Settings(master="none")
    members = [
        Member(Script(task), rate, seed, rank, workers=workers, settings=settings)
        for rank in range(workers)
    ]
    sent, loss = 0, nan
    try:
        for _ in range(task.steps):
            updates = [member.train() for member in members]
            sent += sum(len(body) for bodies, _ in updates for body in bodies)
            for rank, update in enumerate(updates):
                for other, member in enumerate(members):
                    if other != rank:
                        member.apply(rank, *update)
        loss = task.evaluate(final_model(Script(task), members, _final(members)))
    except CodecError:
        pass  # a parameter has left the range of the quantum
    return {
        "loss": loss,
        "megabytes": workers * sent / 1e6,  # to the master once, and to all others
        "age": fmean(member.residual_age for member in members),
    }


def _final(members: Sequence[Member]) -> torch.Tensor:
    shared: torch.Tensor = members[0].shared + sum(member.last_residual for member in members)
    return shared
