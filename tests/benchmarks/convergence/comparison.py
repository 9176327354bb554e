"""Gradient sharing beside synchronous training: loss at equal samples, and what goes over the wire.

Every method trains the same models on the same samples from the same first parameters, at each of a
few learning rates, with several seeds; its figure is the mean over the seeds at its own best rate.
Four workers are real processes. Sixteen are simulated in one, with the delay that synchronous
training has and with longer ones; what they send is counted, without headers.
"""

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from statistics import fmean, pstdev
from typing import Final

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.convergence import alone, simulated
from benchmarks.convergence.drawing import draw_comparisons
from benchmarks.convergence.outcome import Outcome
from benchmarks.convergence.processes import Beyond, processes
from benchmarks.convergence.results import (
    DDP,
    GRADWIRE,
    ONE_PROCESS,
    POWER_SGD,
    PROCESSES,
    WITH_MASTERS,
    WITH_RELAYS,
    Comparison,
    Runs,
    mean_loss,
)
from benchmarks.convergence.tasks import TASKS, Task
from benchmarks.figures import Figure, at_most, beside, within
from benchmarks.masters import form
from support.namespaces import can_have_machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    tasks: Sequence[Task] = tuple(TASKS.values())
    rates: int | None = None
    """How many of a task's learning rates are tried, the lowest ones; None: all."""
    seeds: int = 3
    workers: int = 4
    """Real processes."""
    more_workers: int = 16
    """Simulated ones."""
    delays: Sequence[int] = (0, 1, 2, 3, 5, 9)
    """Steps until peers have an update: with 4 workers, a staleness of 0, 2, 6, 10, 18 and 34."""
    beyond: Sequence[str] = ("digits",)
    """The tasks that are trained with relays and with several masters as well."""
    pooled: bool = True
    """Whether what one process does is done by a pool of them, or by this one."""
    keys: bool = True
    """Whether gradwire's master and workers have keys."""


FULL: Final = Plan()
QUICK: Final = Plan(
    tasks=(replace(TASKS["regression"], steps=4),),
    rates=1,
    seeds=1,
    workers=2,
    more_workers=3,
    delays=(0, 1, 5, 9),
    beyond=("regression",),
    pooled=False,
)

DELAY_AIMED_AT: Final = 5

BEYOND: Final[Mapping[str, Beyond]] = {WITH_RELAYS: "relays", WITH_MASTERS: "masters"}
"""By what figures call it."""

BYTES_AIM: Final = 1 / 60
"""Of what DDP sends."""


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    if not can_have_machines():
        print("no network namespaces here: nobody can count what is sent", file=sys.stderr)
        return []
    return [figure for done in compare(plan) for figure in figures_of(done, plan)]


_compared: list[Comparison] = []
"""Curves are more than figures can hold."""


def draw(figures: list[Figure], folder: Path, plan: Plan) -> None:
    """Draw what was compared last."""
    draw_comparisons(_compared, plan.workers, folder / "convergence.png")


def compare(plan: Plan) -> Iterator[Comparison]:
    """Train everything; show the losses of every rate."""
    _compared.clear()
    with _executor(pooled=plan.pooled) as pool, Progress() as shown:
        for task in plan.tasks:
            rates = task.rates[: plan.rates]
            more = [task.more_workers * rate for rate in rates]
            beyond = BEYOND if task.name in plan.beyond else {}
            trained = 4 * len(rates) + 2 * len(more) + len(plan.delays) + len(beyond)
            count = trained * plan.seeds
            bar = shown.add_task(task.name, total=count)
            grid = partial(_grid, seeds=plan.seeds, advance=partial(shown.advance, bar))
            workers, more_workers = plan.workers, plan.more_workers
            four = {ONE_PROCESS: grid(_in(pool, alone.train, task, workers), rates)}
            with processes(task.name, task.steps, workers, keys=plan.keys) as started:
                for method, called in PROCESSES.items():
                    four[method] = grid(_now(partial(started.train, called)), rates)
            sixteen = {
                ONE_PROCESS: grid(_in(pool, alone.train, task, more_workers), more),
                GRADWIRE: grid(_in(pool, simulated.train, task, more_workers), more),
            }
            best = [four[GRADWIRE].best_rate]
            delayed = {
                delay: grid(_in(pool, simulated.train, task, workers, delay), best).best
                for delay in plan.delays
            }
            beyond_one = {
                name: grid(_now(partial(_train_beyond, task, plan, kind)), best).best
                for name, kind in beyond.items()
            }
            seconds = _in(pool, alone.train, task, 1)(best[0], 0)().seconds / task.steps
            done = Comparison(task, four, sixteen, delayed, beyond_one, seconds)
            _compared.append(done)
            show_rates(done, plan)
            yield done


def _train_beyond(task: Task, plan: Plan, kind: Beyond, rate: float, seed: int) -> Outcome:
    """Train with processes of its own: a master that relays stand before serves one run."""
    with processes(task.name, task.steps, plan.workers, keys=plan.keys, beyond=kind) as started:
        return started.train(PROCESSES[GRADWIRE], rate, seed)


@contextmanager
def _executor(*, pooled: bool) -> Iterator[Executor]:
    """Have processes of one thread each, or this one."""
    if pooled:
        # A process that has used torch's threads cannot be forked.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(mp_context=context, initializer=_one_thread) as pool:
            yield pool
    else:
        with ThreadPoolExecutor(1, initializer=_one_thread) as thread:
            yield thread


Start = Callable[[float, int], Callable[[], Outcome]]
"""Begins a run with a rate and a seed; returns what waits for its outcome."""


def _in(
    pool: Executor,
    train: Callable[..., Outcome],
    task: Task,
    workers: int,
    delay: int | None = None,
) -> Start:
    """Run in a process of a pool, several at a time."""
    options = {} if delay is None else {"delay": delay}
    return lambda rate, seed: (
        pool.submit(named, train, task.name, task.steps, rate, seed, workers, options).result
    )


def named(
    train: Callable[..., Outcome],
    task: str,
    steps: int,
    rate: float,
    seed: int,
    workers: int,
    options: Mapping[str, object],
) -> Outcome:
    """Train a task that is known by its name: functions of a task do not travel."""
    return train(replace(TASKS[task], steps=steps), rate, seed, workers, **options)


def _now(train: Callable[[float, int], Outcome]) -> Start:
    """Run at once, one after the other."""
    return lambda rate, seed: partial(train, rate, seed)


def _grid(start: Start, rates: Sequence[float], *, seeds: int, advance: Callable[[], None]) -> Runs:
    begun = {rate: [start(rate, seed) for seed in range(seeds)] for rate in rates}
    by_rate: dict[float, list[Outcome]] = {}
    for rate, waits in begun.items():
        by_rate[rate] = []
        for wait in waits:
            by_rate[rate].append(wait())
            advance()
    return Runs(by_rate)


def _one_thread() -> None:
    torch.set_num_threads(1)


def figures_of(done: Comparison, plan: Plan) -> list[Figure]:
    """Return the figures of one task."""
    seeds = plan.seeds
    of_processes = f"{plan.workers} workers, {form(keys=plan.keys)}"
    task, four, sixteen = done.task.name, done.four, done.sixteen
    ours, ddp = four[GRADWIRE], four[DDP]
    figures = [
        at_most(f"loss, {task}, {of_processes}", ours.loss, "", DDP, ddp.loss, aim=1.0,
                runs=seeds),
        at_most(f"sent, {task}, {of_processes}", ours.megabytes, "MB", DDP, ddp.megabytes,
                aim=BYTES_AIM, runs=seeds),
    ]  # fmt: skip
    for method in (ONE_PROCESS, POWER_SGD):
        rival = four[method]
        figures.append(
            beside(f"loss, {task}, {of_processes}", ours.loss, "", method, rival.loss,
                   runs=seeds)
        )  # fmt: skip
        if rival.megabytes:
            figures.append(
                beside(f"sent, {task}, {of_processes}", ours.megabytes, "MB", method,
                       rival.megabytes, runs=seeds)
            )  # fmt: skip
    rival = sixteen[ONE_PROCESS]
    figures.append(
        at_most(f"loss, {task}, {plan.more_workers} workers, simulated", sixteen[GRADWIRE].loss, "",
                ONE_PROCESS, rival.loss, aim=1.01, runs=seeds)
    )  # fmt: skip
    figures += [_beyond(done, name, plan) for name in done.beyond]
    return figures + [_delayed(done, delay, plan) for delay in plan.delays[1:]]


def _beyond(done: Comparison, method: str, plan: Plan) -> Figure:
    """Compare with one master: no worse than the worst of its seeds."""
    alone = done.four[GRADWIRE]
    return within(
        f"loss, {done.task.name}, {plan.workers} workers, {form(keys=plan.keys)}, {method}",
        mean_loss(done.beyond[method]), "", "with one master", alone.loss,
        aim=max(outcome.loss for outcome in alone.best), runs=plan.seeds,
    )  # fmt: skip


def _delayed(done: Comparison, delay: int, plan: Plan) -> Figure:
    seeds = plan.seeds
    name = f"loss, {done.task.name}, {plan.workers} workers, {delay} steps late, simulated"
    serial = mean_loss(done.delayed[0])
    late = mean_loss(done.delayed[delay])
    rival = "taking turns: nothing is late"
    if delay == DELAY_AIMED_AT:
        return at_most(name, late, "", rival, serial, aim=1.05, runs=seeds)
    if delay > DELAY_AIMED_AT:
        # It has learned something: it was no better than guessing before the first step.
        first = fmean(outcome.losses[0] for outcome in done.delayed[delay])
        return within(name, late, "", rival, serial, aim=first, runs=seeds)
    return beside(name, late, "", rival, serial, runs=seeds)


def show_rates(done: Comparison, plan: Plan) -> None:
    """Print the loss at every rate: mean and standard deviation over the seeds."""
    table = Table(title=f"{done.task.name}: loss at each learning rate", title_justify="left")
    table.add_column("method")
    for column in ("rate", "loss", "seeds differ by", "MB"):
        table.add_column(column, justify="right")
    for workers, methods in ((plan.workers, done.four), (plan.more_workers, done.sixteen)):
        for method, runs in methods.items():
            for rate, outcomes in runs.by_rate.items():
                losses = [outcome.loss for outcome in outcomes]
                table.add_row(
                    f"{method}, {workers} workers",
                    f"{rate:g}{' *' if rate == runs.best_rate else ''}",
                    f"{fmean(losses):.4f}",
                    f"{pstdev(losses):.4f}" if all(map(isfinite, losses)) else "diverged",
                    f"{fmean(outcome.megabytes for outcome in outcomes):.4g}",
                )
    Console(width=120).print(table)
