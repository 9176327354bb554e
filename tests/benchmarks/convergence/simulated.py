"""Many workers in one process, with a delay that is chosen: what a network makes of training.

Everything but the network is the client's own: the codec, the thresholds, the measured delays, and
the control of the optimizer. A delay of 1 step means that what peers sent in step t is applied
before step t + 1, which is what synchronous training sees; with 0 the workers take turns, and every
one knows all that the others did.
"""

from collections import deque
from collections.abc import Sequence
from math import nan
from time import perf_counter
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import nn

from benchmarks.convergence.outcome import Outcome, evaluated_after
from benchmarks.convergence.tasks import Task, samples_of
from benchmarks.unconnected import UnconnectedSharing
from gradwire.features.optimizer_control import OptimizerControl
from gradwire.optimizer.delays import Delays
from gradwire.optimizer.momentum import Lag, added_lag, network_factor
from gradwire.optimizer.scale import Agreement, scale_factor
from gradwire.optimizer.torch_scale import optimizer_scale
from gradwire.replica.stats import Tally
from gradwire.settings.settings import Settings
from gradwire_codecs import CodecError
from gradwire_codecs.arrays import Float32Array

DIVERGED: Final = 1e3
"""A loss above it is not going to come back."""


class Steps(Protocol):
    """A schedule of the learning rate."""

    def step(self) -> None:
        """Set the rate of the next step."""


class Trained(Protocol):
    """What members train."""

    def new_model(self, seed: int) -> nn.Module:
        """Return the model that all begin with."""

    def draw(self, random: np.random.Generator, /) -> Any:
        """Return the samples of one worker's step."""

    def loss_of(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the loss of a batch."""

    def make_optimizer(self, model: nn.Module, rate: float, /) -> torch.optim.Optimizer:
        """Return an optimizer."""

    def make_schedule(self, optimizer: torch.optim.Optimizer, /) -> Steps:
        """Return the schedule of an optimizer's rate."""


class Member:
    """One of the workers.

    Parameters
    ----------
    task, rate, seed, rank
        What it trains.
    workers : int
        How many there are.
    settings : Settings
    """

    def __init__(
        self,
        task: Trained,
        rate: float,
        seed: int,
        rank: int,
        *,
        workers: int,
        settings: Settings,
    ) -> None:
        self.model = task.new_model(seed)
        self._task, self._workers, self._settings = task, workers, settings
        self._random = samples_of(seed, rank)
        self._sharing = UnconnectedSharing(self.model, settings, workers)
        self._optimizer = task.make_optimizer(self.model, rate)
        self._schedule = task.make_schedule(self._optimizer)
        self._scale = settings.scale
        if self._scale == "auto":
            self._scale = optimizer_scale(self._optimizer)
        self._agreement = Agreement(self._sharing.feedback)
        self._delays = Delays()
        self.applied = dict.fromkeys(range(workers), 0)
        """Updates of each worker, its own included."""
        self._rank = rank
        self.tally = Tally()
        OptimizerControl(
            self._optimizer,
            lag=self._lag if settings.momentum == "auto" else None,
            factors=[self._factor],
            tally=self.tally,
        )

    def train(self) -> tuple[list[bytes], int]:
        """Train a step; return what is to be sent of it, and what it was based on."""
        based_on = self._others(self._rank)
        self._optimizer.zero_grad()
        loss = self._task.loss_of(self.model, self._task.draw(self._random))
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._schedule.step()
        self._agreement.note_change(based_on, self._workers - 1)
        bodies = self._sharing.encode()
        self._agreement.note_rest(based_on)
        residual = self._residual_size() if self._delays.wants_residual else None
        feedback = self._sharing.feedback
        sent = feedback.quanta_sent * float(feedback.replica.quantum)
        self._delays.note_step(sent, residual)
        self.applied[self._rank] += 1
        return bodies, based_on

    def apply(self, rank: int, bodies: list[bytes], based_on: int) -> None:
        """Apply what a peer has sent."""
        self._sharing.apply(bodies)
        self._delays.note_update(rank, self._others(rank) - based_on)
        self.applied[rank] += 1

    @property
    def shared(self) -> torch.Tensor:
        """The shared parameters, as one vector."""
        replica = self._sharing.feedback.replica
        return torch.from_numpy(replica.values * replica.quantum)

    @property
    def last_residual(self) -> torch.Tensor:
        """What `finish()` would send of the residual, as one vector."""
        portion = self._delays.final_residual_portion(self._workers)
        return torch.from_numpy(self._residual() * np.float32(portion))

    @property
    def residual_age(self) -> float:
        """In steps."""
        return self._delays.residual_age_steps

    def _residual(self) -> Float32Array:
        return self._sharing.feedback.residual()

    def _residual_size(self) -> float:
        return float(np.abs(self._residual()).sum(dtype=np.float64))

    def _others(self, rank: int) -> int:
        return sum(self.applied.values()) - self.applied[rank]

    def _lag(self) -> Lag:
        return added_lag(
            residual_age=self._delays.residual_age_steps,
            network_delay=self._delays.network_delay_steps(self._workers),
            world_size=self._workers,
            is_local=not self._sharing.feedback.stores_residual,
        )

    def _factor(self) -> float:
        factor = scale_factor(
            self._scale, self._workers, self._delays.staleness, self._agreement.value
        )
        if self._settings.momentum == "auto":
            delay = self._delays.network_delay_steps(self._workers)
            factor *= network_factor(delay, self._workers)
        return factor


def train(
    task: Task,
    rate: float,
    seed: int,
    workers: int,
    *,
    delay: int = 1,
) -> Outcome:
    """Train with so many workers, with the settings that a user gets.

    Parameters
    ----------
    task, rate, seed
        What, with which learning rate, and with which samples.
    workers : int
    delay : int
        Steps until an update of a peer is applied; with 0, workers take turns.
    """
    settings = Settings(master="none")
    members = [
        Member(task, rate, seed, rank, workers=workers, settings=settings)
        for rank in range(workers)
    ]
    points = evaluated_after(task.steps)
    waiting: deque[list[tuple[list[bytes], int]]] = deque()
    losses: list[float] = []
    sent, began = 0, perf_counter()
    try:
        for step in range(1, task.steps + 1):
            updates = []
            for rank, member in enumerate(members):
                update = member.train()
                updates.append(update)
                if not delay:
                    _apply(members, rank, *update)
            sent += sum(len(body) for bodies, _ in updates for body in bodies)
            if delay:
                waiting.append(updates)
            if len(waiting) >= delay > 0:
                for rank, update in enumerate(waiting.popleft()):
                    _apply(members, rank, *update)
            if step in points:
                losses.append(evaluate(task, members))
                if not losses[-1] < DIVERGED:
                    break
    except CodecError:
        pass  # a parameter has left the range of the quantum
    losses += [nan] * (len(points) - len(losses))
    return Outcome(
        steps=points,
        losses=losses,
        megabytes=workers * sent / 1e6,  # to the master once, and to all others
        seconds=(perf_counter() - began) / workers,
    )


def evaluate(task: Task, members: Sequence[Member]) -> float:
    """Return the loss of the shared parameters, with averaged buffers, as after a finish."""
    return task.evaluate(final_model(task, members, members[0].shared))


def final_model(task: Trained, members: Sequence[Member], shared: torch.Tensor) -> nn.Module:
    """Return a model with these parameters, given as one vector, and averaged buffers."""
    model = task.new_model(0)
    with torch.no_grad():
        at = 0
        for parameter in model.parameters():
            parameter.copy_(shared[at : at + parameter.numel()].view(parameter.shape))
            at += parameter.numel()
        theirs = [dict(member.model.named_buffers()) for member in members]
        for name, buffer in model.named_buffers():
            values = torch.stack([buffers[name] for buffers in theirs])
            buffer.copy_(values.mean(0) if buffer.is_floating_point() else values.amax(0))
    return model


def _apply(members: Sequence[Member], rank: int, bodies: list[bytes], based_on: int) -> None:
    for other, member in enumerate(members):
        if other != rank:
            member.apply(rank, bodies, based_on)
