"""A worker of benchmark `time-to-loss`: it trains for as long as it is told to.

A step takes as long as that of a slower model would, and its forward pass a third of that: what is
computed is done within these times, and the rest is slept. So DistributedDataParallel can send
during the backward pass, two thirds of a step. It could not overlap more.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.convergence.tasks import samples_of
from benchmarks.defaults import member
from benchmarks.defaults.member import Part, Share, is_central
from benchmarks.defaults.tasks import TASKS, Task
from benchmarks.rivals.ddp import data_parallel
from benchmarks.rivals.sparse_loco import sparse_loco
from benchmarks.rivals.torchft_diloco import torchft_diloco
from benchmarks.time_to_loss.cells import Cell
from benchmarks.time_to_loss.methods import EVERY, SPARSE_LOCO, SPARSE_LOCO_SENDERS, TORCHFT
from gradwire.errors import DivergedError, NonFiniteError

FORWARD: Final = 1 / 3
"""Part of a step."""

State: TypeAlias = dict[str, Tensor]


class Watch:
    """Remembers what a model was at some times, evenly until the end.

    Parameters
    ----------
    model : nn.Module
    begins : float
        When the first step begins.
    seconds : float
        Until the end.
    points : int
    """

    def __init__(self, model: nn.Module, begins: float, seconds: float, points: int) -> None:
        self.states: list[State] = []
        self.steps = 0
        """Made until the end."""
        self._model, self._points = model, points
        self._begins, self._seconds = begins, seconds
        self._latest = self._copy()

    def look(self, now: float) -> bool:
        """Look at the model after a step; return whether there is time for another one.

        A step that has ended too late does not count.
        """
        while len(self.states) < self._points and self._due(len(self.states) + 1) < now:
            self.states.append(self._latest)
        if len(self.states) == self._points:
            return False
        self._latest = self._copy()
        self.steps += 1
        return True

    def part(self, now: float) -> float:
        """Return which part of the time is over."""
        return (now - self._begins) / self._seconds

    def _due(self, point: int) -> float:
        return self._begins + self._seconds * point / self._points

    def _copy(self) -> State:
        return {name: tensor.clone() for name, tensor in self._model.state_dict().items()}


class Member(member.Member):
    """One process.

    Parameters
    ----------
    task : Task
        With as many steps as a worker makes that waits for nothing.
    rank : int
    cell : Cell
    address : str
        Of the machine that it runs on.
    pipe : Connection
        To who wants to know what comes of it.
    """

    def __init__(self, task: Task, rank: int, cell: Cell, address: str, pipe: Connection) -> None:
        super().__init__(task, rank, cell.workers)
        self._cell, self._address, self._pipe = cell, address, pipe
        self._late = 0

    def run(self, points: int) -> None:
        """Train until the time is over; as the first worker, say what came of it."""
        cell, task = self._cell, self._task
        model = task.new_model(cell.seed)
        optimizer = task.optimizer(model, cell.rate)
        begins = inf

        def begin() -> None:
            nonlocal begins
            task.loss(deepcopy(model), task.draw(samples_of(0, 0))).backward()  # type: ignore[no-untyped-call]
            self._pipe.send({"ready": True})
            begins = self._pipe.recv()

        share = self._share()
        with share(model, optimizer, f"{cell.method} {cell.rate}", begin, {}) as (trained, step):
            watch = Watch(model, begins, cell.seconds, points)
            try:
                self._train(model, trained, optimizer, step, watch, begins)
            except (DivergedError, NonFiniteError) as error:
                print(error, file=sys.stderr)
            if self._rank == 0:
                judged = task.new_model(cell.seed)
                losses = [_loss_of(task, judged, state) for state in watch.states]
                losses += [inf] * (points - len(losses))
                self._pipe.send({"losses": losses, "steps": watch.steps, "late": self._late})
            with suppress(EOFError):
                self._pipe.recv()  # nothing: it is ended, or who wanted to know is gone
            os._exit(0)

    def _train(
        self,
        model: nn.Module,
        trained: nn.Module,
        optimizer: torch.optim.Optimizer,
        share: Callable[[], None],
        watch: Watch,
        begins: float,
    ) -> None:
        """Make steps until the time is over, or until the training has diverged."""
        cell, task = self._cell, self._task
        random = samples_of(cell.seed, self._rank)
        schedule = task.schedule(optimizer, task.steps)
        scheduled = 0
        _sleep_until(begins)
        now = time.monotonic()
        while watch.look(now):
            before = _busy_seconds()
            optimizer.zero_grad()
            loss = task.loss(trained, task.draw(random))
            self._late += _busy_seconds() - before > FORWARD * cell.step_seconds
            _sleep_until(now + FORWARD * cell.step_seconds)
            loss.backward()  # type: ignore[no-untyped-call]
            _sleep_until(now + cell.step_seconds)
            if task.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), task.clip)
            if not is_central(cell.method):
                optimizer.step()
            share()
            now = time.monotonic()
            # A rate follows the time, as in a script that knows how many steps it will make.
            while scheduled < min(watch.part(now), 1.0) * task.steps:
                schedule(loss.item())
                scheduled += 1

    def _share(self) -> Share:
        """Return what makes the model a part of what all train."""
        method = self._cell.method
        if self._cell.is_ours:
            return partial(self._gradwire, method)
        shares: Mapping[str, Share] = {
            TORCHFT: partial(torchft_diloco, every=EVERY, host=self._address),
            SPARSE_LOCO: partial(sparse_loco, over_senders=False),
            SPARSE_LOCO_SENDERS: partial(sparse_loco, over_senders=True),
        }
        return shares.get(method, partial(_parallel, method))


@contextmanager
def _parallel(
    method: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: str,
    begin: Callable[[], None],
    outcome: dict[str, Any],
) -> Iterator[Part]:
    wrapped = data_parallel(model, method)
    begin()
    yield wrapped, lambda: None


def _loss_of(task: Task, model: nn.Module, state: State) -> float:
    """Return the loss on what is held out; infinite where there is none."""
    model.load_state_dict(state)
    loss = task.evaluate(model)
    return loss if isfinite(loss) else inf


def _busy_seconds() -> float:
    """Return how long this thread has computed or waited for a processor.

    DistributedDataParallel waits for buffers in the forward pass, which is not the machine's fault.
    """
    computed, waited, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    return (int(computed) + int(waited)) / 1e9


def _sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - time.monotonic()))


def train(cell: Cell, rank: int, address: str, folder: str, points: int, pipe: Connection) -> None:
    """Train as one of the workers of a cell, and end this process.

    It says that it takes part, is told when to begin, as a time of the monotonic clock, and, as the
    first worker, says what came of it.

    Parameters
    ----------
    cell : Cell
    rank : int
    address : str
        Of the machine that it runs on.
    folder : str
        Where the processes of a group meet.
    points : int
        How often the model is looked at.
    pipe : Connection
    """
    if not cell.is_ours:
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", store, rank=rank, world_size=cell.workers)
    task = replace(TASKS[cell.task], steps=cell.steps)
    Member(task, rank, cell, address, pipe).run(points)
