"""Two workers that train a small model with whatever torch offers, and what has to come of it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from gradwire import Session
from support.local_master import LocalMaster
from support.sessions import delivered, finish, join

INPUTS = 6
EXAMPLES = 128
BATCH = 16


class TrainingWorker:
    """A module, a session and examples of its own of what all workers learn.

    Parameters
    ----------
    master : LocalMaster
    module : Module
        From `INPUTS` inputs to one output.
    seed : int
        Of its examples.
    target : object, optional
        What to join with, if that is not the module.
    **options
        Of `join`.
    """

    def __init__(
        self,
        master: LocalMaster,
        module: nn.Module,
        seed: int,
        target: object = None,
        **options: Any,
    ) -> None:
        self.module = module
        self._random = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(EXAMPLES, INPUTS, generator=self._random)
        self.outputs = self.inputs[:, :1] - self.inputs[:, 1:2] * self.inputs[:, 2:3].tanh()
        if "threshold" not in options:
            options = {"threshold": None, "target_density": 0.1, **options}
        self.session: Session = join(master, module if target is None else target, **options)

    def loss(self) -> Any:
        """Return the loss of a random batch, a tensor."""
        rows = torch.randint(EXAMPLES, (BATCH,), generator=self._random)
        return self._loss_of(self.inputs[rows], self.outputs[rows])

    @torch.no_grad()
    def full_loss(self) -> float:
        """Return the loss of all of its examples."""
        return float(self._loss_of(self.inputs, self.outputs))

    @property
    def updates_sent(self) -> int:
        """How many updates its session has sent."""
        return self.session.stats.updates_sent

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Train one batch the plain way."""
        optimizer.zero_grad()
        self.loss().backward()
        optimizer.step()
        self.share()

    def share(self) -> None:
        """End a step, no sooner than the master has what was sent.

        Steps as small as these could all be over before the network has its turn on a busy machine;
        then each worker learns everything alone, and both together go twice as far as they should.
        """
        self.session.step()
        delivered(self.session, self.updates_sent)

    def values(self) -> list[list[float]]:
        """Return what the module computes with."""
        return [p.detach().float().flatten().tolist() for p in self.module.parameters()]

    def _loss_of(self, inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        computed = self.module(inputs.to(next(self.module.parameters()).dtype))
        return nn.functional.mse_loss(computed.float(), outputs)


@contextmanager
def two_workers(
    master: LocalMaster,
    make: Callable[[], nn.Module],
    *,
    at_most: float = 0.5,
    target_of: Callable[[nn.Module], object] | None = None,
    **options: Any,
) -> Iterator[tuple[TrainingWorker, TrainingWorker]]:
    """Let two workers train, and check that they have learned and end with the same bits.

    Parameters
    ----------
    master : LocalMaster
    make : callable
        Returns a new module.
    at_most : float
        The loss at the end, as a part of that at the beginning.
    target_of : callable, optional
        Returns what to join with, if that is not the module.
    **options
        Of `join`.
    """
    workers = []
    for seed in (1, 2):
        torch.manual_seed(seed)  # the second worker begins with what the first one has
        module = make()
        target = None if target_of is None else target_of(module)
        workers.append(TrainingWorker(master, module, seed, target, **options))
    first, second = workers
    before = [worker.full_loss() for worker in workers]

    yield first, second

    assert min(worker.updates_sent for worker in workers) > 0
    finish(first.session, second.session)
    assert first.session.digest() == second.session.digest()
    assert first.values() == second.values()
    for worker, at_first in zip(workers, before, strict=True):
        assert worker.full_loss() < at_most * at_first


def train(
    workers: Sequence[TrainingWorker],
    optimizers: Sequence[torch.optim.Optimizer],
    steps: int,
) -> None:
    """Let each worker train so many batches, in turn."""
    for _ in range(steps):
        for worker, optimizer in zip(workers, optimizers, strict=True):
            worker.step(optimizer)


def mlp() -> nn.Sequential:
    """Return a module that can learn it."""
    return nn.Sequential(nn.Linear(INPUTS, 32), nn.Tanh(), nn.Linear(32, 1))


def adam(worker: TrainingWorker) -> torch.optim.Optimizer:
    """Return an optimizer for what a worker trains."""
    return torch.optim.Adam(worker.module.parameters(), lr=0.01, betas=(0.0, 0.99))


def compiled_and_run(module: nn.Module, backend: str) -> nn.Module:
    """Return a module compiled, and run once."""
    wrapper: Any = torch.compile(module, backend=backend)
    wrapper(torch.zeros(BATCH, INPUTS)).sum().backward()
    module.zero_grad()
    return cast(nn.Module, wrapper)
