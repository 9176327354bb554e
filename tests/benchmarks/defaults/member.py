"""A worker of benchmark `defaults`, as a process: a script tuned for DDP, or its two lines changed.

``python -m benchmarks.defaults.member TASK STEPS RANK WORKERS FOLDER``, with gradwire's master and
a key in ``GRADWIRE_*``. Each line of its standard input is a JSON object with method, rate and
seed; it answers with what came of it. It ends with its parent.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from benchmarks.convergence.member import serve, wire_bytes
from benchmarks.convergence.tasks import samples_of
from benchmarks.defaults.central import at_the_master
from benchmarks.defaults.tasks import TASKS, Task
from benchmarks.rivals.hivemind_averaging import hivemind_averaging
from benchmarks.rivals.torchft_diloco import torchft_diloco
from gradwire_protocol.messages.modes.mode import CENTRAL, Mode

GRADWIRE: Final = "gradwire"
"""The method of its defaults; a mode as text is one as well."""
DDP: Final = "ddp"

Part: TypeAlias = tuple[nn.Module, Callable[[], None]]
"""The model to train, and what follows the optimizer's step."""

Share: TypeAlias = Callable[
    [nn.Module, torch.optim.Optimizer, str, Callable[[], None], dict[str, Any]],
    AbstractContextManager[Part],
]
"""Makes a part of a model, its optimizer, the name of the run, what to call when all is set up, and
where to put what came of it."""

RIVALS: Final[Mapping[str, Share]] = {
    "torchft diloco": torchft_diloco,
    "hivemind averaging": hivemind_averaging,
}
"""Methods beside DDP, each where its package is installed."""


class Member:
    """One process.

    Parameters
    ----------
    task : Task
    rank, workers : int
    """

    def __init__(self, task: Task, rank: int, workers: int) -> None:
        self._task, self._rank, self._workers = task, rank, workers

    def train(self, method: str, rate: float, seed: int) -> dict[str, Any]:
        """Train as told, beside the others; return the loss of the model at the end, and the rest.

        Bytes are those of all processes, from when all take part until all hold the final model.
        """
        task, model = self._task, self._task.new_model(seed)
        optimizer = task.optimizer(model, rate)
        schedule = task.schedule(optimizer, task.steps)
        random = samples_of(seed, self._rank)
        outcome: dict[str, Any] = {}
        before = 0

        def begin() -> None:
            nonlocal before
            dist.barrier()
            before = wire_bytes()

        shares: Mapping[str, Share] = {DDP: self._ddp, **RIVALS}
        share = shares.get(method, partial(self._gradwire, method))
        with share(model, optimizer, f"{method} {rate} {seed}", begin, outcome) as (trained, step):
            began = perf_counter()
            for _ in range(task.steps):
                optimizer.zero_grad()
                loss = task.loss(trained, task.draw(random))
                loss.backward()  # type: ignore[no-untyped-call]
                if task.clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), task.clip)
                if not is_central(method):
                    optimizer.step()
                step()
                schedule(loss.item())
            outcome["seconds"] = perf_counter() - began
        dist.barrier()
        outcome["megabytes"] = (wire_bytes() - before) / 1e6
        return {"loss": task.evaluate(model), **outcome}

    @contextmanager
    def _gradwire(
        self,
        method: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        run: str,
        begin: Callable[[], None],
        outcome: dict[str, Any],
    ) -> Iterator[Part]:
        # Two lines: this one, and session.step(). A name for the run, because there are many here.
        mode: Mode | str | None = None if method == GRADWIRE else method
        ours: torch.optim.Optimizer | None = optimizer
        if is_central(method):
            mode = at_the_master(method, self._task, optimizer, self._workers)
            ours = None
        with gradwire.join(model, optimizer=ours, run=run, mode=mode) as session:
            session.wait(self._workers)
            begin()
            yield model, session.step
            stats = session.stats
            outcome.update(
                delay=stats.delay_steps,
                staleness=stats.staleness,
                age=stats.residual_age_steps,
                density=stats.density,
                scale=stats.scale,
                bound=stats.staleness_bound,
            )

    @contextmanager
    def _ddp(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        run: str,
        begin: Callable[[], None],
        outcome: dict[str, Any],
    ) -> Iterator[Part]:
        wrapped = DistributedDataParallel(model)
        begin()
        yield wrapped, lambda: None


def is_central(method: str) -> bool:
    """Return whether the master has the optimizer."""
    return method.startswith(CENTRAL)


if __name__ == "__main__":
    serve(TASKS, lambda *which: Member(*which).train)
