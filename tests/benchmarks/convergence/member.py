"""A worker of benchmark `convergence`, as a process: it trains as it is told to.

``python -m benchmarks.convergence.member TASK STEPS RANK WORKERS FOLDER``, with gradwire's master
and a key in ``GRADWIRE_*``. Each line of its standard input is a JSON object with method, rate and
seed of one run; it answers with what came of it. It ends with its parent.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire
from benchmarks.convergence.outcome import Outcome, evaluated_after
from benchmarks.convergence.tasks import TASKS, Task, samples_of
from benchmarks.programs import announce
from benchmarks.rivals.ddp_hooks import BUCKET_MEGABYTES, FIRST_COMPRESSED_STEP

GRADWIRE: Final = "gradwire"
DDP: Final = "ddp"
POWER_SGD: Final = "powersgd"

POWER_SGD_RANK: Final = 1
"""Of the matrices that PowerSGD sends; its hook's default."""

Part: TypeAlias = tuple[nn.Module, Callable[[], object], Callable[[], AbstractContextManager[None]]]
"""The model to train, what follows the optimizer's step, and what an evaluation is made in."""

Training: TypeAlias = Callable[
    [nn.Module, torch.optim.Optimizer, str], AbstractContextManager[Part]
]
"""Makes a part of a model, its optimizer and the name of the run."""


class Member:
    """One process.

    Parameters
    ----------
    task : Task
    rank, workers : int
    """

    def __init__(self, task: Task, rank: int, workers: int) -> None:
        self._task, self._rank, self._workers = task, rank, workers

    def answer(self, method: str, rate: float, seed: int) -> dict[str, Any]:
        """Train as told; return what came of it as plain values."""
        return self.train(method, rate, seed).to_dict()

    def train(self, method: str, rate: float, seed: int) -> Outcome:
        """Train as told, beside the others.

        Bytes are those of the steps, from when all take part until all have made their last one.
        What it takes to begin and to finish depends on no rate and no method as much as on how
        short a run is.
        """
        task, model = self._task, self._task.new_model(seed)
        optimizer = task.make_optimizer(model, rate)
        schedule = task.make_schedule(optimizer)
        random = samples_of(seed, self._rank)
        points = evaluated_after(task.steps)
        losses: list[float] = []
        parts: Mapping[str, Training] = {
            GRADWIRE: self._gradwire,
            DDP: partial(self._parallel, power_sgd=False),
            POWER_SGD: partial(self._parallel, power_sgd=True),
        }
        training = parts[method]
        seconds = 0.0
        with training(model, optimizer, f"{task.name} {rate} {seed}") as part:
            trained, after_step, evaluating = part
            dist.barrier()
            before = wire_bytes()
            for step in range(1, task.steps + 1):
                began = perf_counter()
                optimizer.zero_grad()
                task.loss_of(trained, task.draw(random)).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                after_step()
                schedule.step()
                seconds += perf_counter() - began
                if step in points[:-1]:
                    with evaluating():
                        losses.append(task.evaluate(model))
            dist.barrier()
            sent = wire_bytes() - before
        losses.append(task.evaluate(model))  # now that everything has come
        return Outcome(steps=points, losses=losses, megabytes=sent / 1e6, seconds=seconds)

    @contextmanager
    def _gradwire(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, run: str
    ) -> Iterator[Part]:
        with gradwire.join(model, optimizer=optimizer, run=run) as session:
            session.wait(self._workers)
            yield model, session.step, partial(session.paused, shared=True)

    @contextmanager
    def _parallel(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, run: str, *, power_sgd: bool
    ) -> Iterator[Part]:
        wrapped = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MEGABYTES)
        if power_sgd:
            state = powerSGD_hook.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=POWER_SGD_RANK,
                start_powerSGD_iter=FIRST_COMPRESSED_STEP,
            )
            wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        yield wrapped, lambda: None, nullcontext


def wire_bytes() -> int:
    """Return what has gone over the devices of this network namespace, in either direction."""
    total = 0
    for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines()[2:]:
        device, _, counts = line.partition(":")
        received, sent = (int(counts.split()[column]) for column in (0, 8))
        total += sent if device.strip() == "lo" else received + sent  # lo receives what it sends
    return total


def serve(
    tasks: Mapping[str, Any], member: Callable[[Any, int, int], Callable[..., dict[str, Any]]]
) -> None:
    """Train as the parent says, line by line, until it ends.

    Parameters
    ----------
    tasks : mapping
        By name.
    member : callable
        Made of a task, our rank and the number of workers; returns what trains.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=tasks)
    parser.add_argument("steps", type=int)
    parser.add_argument("rank", type=int)
    parser.add_argument("workers", type=int)
    parser.add_argument("folder", help="where the processes of a group meet")
    options = parser.parse_args()
    torch.set_num_threads(1)
    announce(ready=True)
    store = f"file://{options.folder}/store"
    dist.init_process_group("gloo", store, rank=options.rank, world_size=options.workers)
    task = replace(tasks[options.task], steps=options.steps)
    train = member(task, options.rank, options.workers)
    for line in sys.stdin:
        announce(**train(**json.loads(line)))


if __name__ == "__main__":
    serve(TASKS, lambda *which: Member(*which).answer)
