"""A worker of benchmark `defaults`, as a process: a script tuned for DDP, or its two lines changed.

``python -m benchmarks.defaults.member TASK STEPS RANK WORKERS FOLDER``, with gradwire's master and
a key in ``GRADWIRE_*``. Each line of its standard input is a JSON object with method, rate and
seed; it answers with what came of it. It ends with its parent.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from benchmarks.convergence.member import wire_bytes
from benchmarks.defaults.tasks import TASKS, Task, samples_of
from benchmarks.programs import announce

GRADWIRE: Final = "gradwire"
DDP: Final = "ddp"


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

        share = self._gradwire if method == GRADWIRE else self._ddp
        with share(model, optimizer, f"{rate} {seed}", begin, outcome) as (trained, step):
            began = perf_counter()
            for _ in range(task.steps):
                optimizer.zero_grad()
                loss = task.loss(trained, task.draw(random))
                loss.backward()  # type: ignore[no-untyped-call]
                if task.clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), task.clip)
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
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        run: str,
        begin: Any,
        outcome: dict[str, Any],
    ) -> Iterator[Any]:
        # Two lines: this one, and session.step(). A name for the run, because there are many here.
        with gradwire.join(model, optimizer=optimizer, run=run) as session:
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
            )

    @contextmanager
    def _ddp(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        run: str,
        begin: Any,
        outcome: dict[str, Any],
    ) -> Iterator[Any]:
        wrapped = DistributedDataParallel(model)
        begin()
        yield wrapped, lambda: None


def main() -> None:
    """Train until the parent ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("steps", type=int)
    parser.add_argument("rank", type=int)
    parser.add_argument("workers", type=int)
    parser.add_argument("folder", help="where the processes of a group meet")
    options = parser.parse_args()
    torch.set_num_threads(1)
    announce(ready=True)
    store = f"file://{options.folder}/store"
    dist.init_process_group("gloo", store, rank=options.rank, world_size=options.workers)
    task = replace(TASKS[options.task], steps=options.steps)
    member = Member(task, options.rank, options.workers)
    for line in sys.stdin:
        announce(**member.train(**json.loads(line)))


if __name__ == "__main__":
    main()
