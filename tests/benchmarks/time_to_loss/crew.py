"""Workers of `time-to-loss`: forks of one process, as importing takes each longer than training.

``python -m benchmarks.time_to_loss.crew``. Each line of its standard input is an `Order` as a JSON
object. It answers with the bytes that the link has carried each time that the model is looked at,
as ``{"carried": ...}``, and then with what came of it, or with ``{"error": ...}``. It ends with its
parent.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from traceback import format_exc
from typing import Any, Final

import torch

from benchmarks.convergence.tasks import samples_of
from benchmarks.defaults.tasks import TASKS, Task
from benchmarks.programs import READ_SECONDS_MAX, announce
from benchmarks.time_to_loss.cells import Cell
from benchmarks.time_to_loss.member import train
from gradwire_codecs.warm_up import warm_up
from gradwire_udp.process import end_with_parent
from support.namespaces import DEVICE, Machine

START_SECONDS: Final = 0.3
"""Until all have heard when they begin."""

FORK: Final = get_context("fork")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to train, and where."""

    cell: Cell
    machines: Sequence[Machine]
    """One for each worker."""
    environ: Mapping[str, str]
    """Variables of the workers."""
    folder: str
    """Where the processes of a group meet."""
    pids: Sequence[int]
    """Of other processes whose machines send something, each on one of its own."""
    points: int
    """How often the model is looked at."""

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Order":
        """Return what `dataclasses.asdict` has made of one."""
        machines = [Machine(**machine) for machine in plain["machines"]]
        return cls(**{**plain, "cell": Cell(**plain["cell"]), "machines": machines})


def follow(order: Order) -> dict[str, Any]:
    """Train with as many forks as there are machines; return what came of it."""
    _prepare(TASKS[order.cell.task])
    pairs = [FORK.Pipe() for _ in order.machines]
    workers = [
        FORK.Process(target=_work, args=(order, rank, theirs), daemon=True)
        for rank, (_, theirs) in enumerate(pairs)
    ]
    try:
        for worker, (_, theirs) in zip(workers, pairs, strict=True):
            worker.start()
            theirs.close()  # so that it ends here where the worker ends
        pipes = [ours for ours, _ in pairs]
        for pipe in pipes:
            _next(pipe)  # it takes part
        begins = time.monotonic() + START_SECONDS
        for pipe in pipes:
            pipe.send(begins)
        pids = [*order.pids, *(worker.pid for worker in workers if worker.pid)]
        found: list[dict[str, Any]] = []
        """What the first worker says, before its time where its training has diverged."""
        for point in range(order.points + 1):
            due = begins + order.cell.seconds * point / order.points
            time.sleep(max(0.0, due - time.monotonic()))
            found += [_next(pipe) for pipe in pipes if pipe.poll()]
            announce(carried=sum(map(_sent_bytes, pids)))
        return found[0] if found else _next(pipes[0])
    except (RuntimeError, OSError) as error:  # the next order may go well
        return {"error": str(error)}
    finally:
        # Those that are left go on, or wait for the first one.
        for worker in workers:
            worker.kill()
            worker.join()


def _prepare(task: Task) -> None:
    """Have read and imported what each fork would: samples, and what torch's optimizers need."""
    task.draw(samples_of(0, 0))
    task.held_out()
    model = task.new_model(0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    task.optimizer(model, task.rates[0]).step()


def _next(pipe: Connection) -> dict[str, Any]:
    """Return what a worker says next.

    Raises
    ------
    RuntimeError
        If it fails, or takes too long.
    """
    if not pipe.poll(READ_SECONDS_MAX):
        raise RuntimeError(f"a worker has said nothing for {READ_SECONDS_MAX:g} s")
    try:
        said: dict[str, Any] = pipe.recv()
    except EOFError:
        raise RuntimeError("a worker has ended without a word") from None
    if "error" in said:
        raise RuntimeError(said["error"])
    return said


def _work(order: Order, rank: int, pipe: Connection) -> None:
    """Be a worker."""
    end_with_parent(os.getppid(), signal.SIGKILL)
    order.machines[rank].enter()
    os.environ.update(order.environ)
    try:
        train(order.cell, rank, order.machines[rank].address, order.folder, order.points, pipe)
    except Exception:
        with suppress(OSError):
            pipe.send({"error": format_exc()})


def _sent_bytes(pid: int) -> int:
    """Return what the machine of a process has sent so far."""
    for line in Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()[2:]:
        device, _, counts = line.partition(":")
        if device.strip() == DEVICE:
            return int(counts.split()[8])
    raise RuntimeError(f"process {pid} has no device {DEVICE}")


def main() -> None:
    """Do what the parent says, until it ends."""
    torch.set_num_threads(1)
    warm_up()
    announce(ready=True)
    for line in sys.stdin:
        announce(**follow(Order.from_plain(json.loads(line))))


if __name__ == "__main__":
    main()
