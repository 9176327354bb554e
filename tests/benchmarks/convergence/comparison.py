"""Gradient sharing beside synchronous training: loss at equal samples, and what goes over the wire.

Every method trains the same models on the same samples from the same first parameters, at each of a
few learning rates, with several seeds; its figure is the mean over the seeds at its own best rate.
Four workers are real processes. Sixteen are simulated in one, with the delay that synchronous
training has and with longer ones; what they send is counted, without headers.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import isfinite, nan
from statistics import fmean, pstdev
from typing import Final

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.convergence import alone, member, simulated
from benchmarks.convergence.outcome import Outcome
from benchmarks.convergence.processes import processes
from benchmarks.convergence.tasks import TARGET_DENSITY, TASKS, Task
from benchmarks.figures import Figure, at_most, beside, within

WORKERS: Final = 4
MORE_WORKERS: Final = 16
SEEDS: Final = 3

ONE_PROCESS: Final = "one process, the batch of all"
DDP: Final = "DDP"
POWER_SGD: Final = "DDP, PowerSGD hook"
GRADWIRE: Final = "gradwire"
PROCESSES: Final = {DDP: member.DDP, POWER_SGD: member.POWER_SGD, GRADWIRE: member.GRADWIRE}
"""Methods of several processes, and what these call them."""

DELAYS: Final = (0, 1, 2, 3, 5, 9)
"""Steps until peers have an update: with 4 workers, a staleness of 0, 2, 6, 10, 18 and 34."""
DELAY_AIMED_AT: Final = 5

Settings = Mapping[str, object]
SETTINGS: Final[Settings] = {"target_density": TARGET_DENSITY}


@dataclass(frozen=True, slots=True)
class Runs:
    """What one method has come to, by learning rate: an outcome for each seed."""

    by_rate: Mapping[float, Sequence[Outcome]]

    @property
    def best_rate(self) -> float:
        """The rate with the lowest mean loss."""
        means = {rate: _mean_loss(outcomes) for rate, outcomes in self.by_rate.items()}
        return min(means, key=lambda rate: means[rate] if isfinite(means[rate]) else float("inf"))

    @property
    def best(self) -> Sequence[Outcome]:
        """What came of it."""
        return self.by_rate[self.best_rate]

    @property
    def loss(self) -> float:
        """Mean over the seeds."""
        return _mean_loss(self.best)

    @property
    def megabytes(self) -> float:
        """Mean over the seeds."""
        return fmean(outcome.megabytes for outcome in self.best)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One task, all methods."""

    task: Task
    four: Mapping[str, Runs]
    """By method."""
    sixteen: Mapping[str, Runs]
    delayed: Mapping[int, Sequence[Outcome]]
    """By delay, at gradwire's best rate: simulated, 4 workers."""
    seconds: float
    """What a step of one worker takes by itself."""


def run(tasks: Sequence[Task] = tuple(TASKS.values()), seeds: int = SEEDS) -> list[Figure]:
    """Measure."""
    return [figure for done in compare(tasks, seeds) for figure in figures_of(done, seeds)]


_compared: list[Comparison] = []
"""Curves are more than figures can hold."""


def compared() -> Sequence[Comparison]:
    """Return what was compared last, for a drawing."""
    return _compared


def compare(tasks: Sequence[Task], seeds: int) -> Iterator[Comparison]:
    """Train everything; show the losses of every rate."""
    _compared.clear()
    # A process that has used torch's threads cannot be forked.
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(mp_context=context, initializer=_one_thread) as pool,
        Progress() as shown,
    ):
        for task in tasks:
            rates = task.rates
            more = [task.more_workers * rate for rate in rates]
            count = (4 * len(rates) + 2 * len(more) + len(DELAYS)) * seeds
            bar = shown.add_task(task.name, total=count)
            grid = partial(_grid, seeds=seeds, advance=partial(shown.advance, bar))
            four = {ONE_PROCESS: grid(_in(pool, alone.train, task, WORKERS), rates)}
            for method, called in PROCESSES.items():
                with processes(called, task, WORKERS) as started:
                    four[method] = grid(_now(started.train), rates)
            sixteen = {
                ONE_PROCESS: grid(_in(pool, alone.train, task, MORE_WORKERS), more),
                GRADWIRE: grid(_in(pool, simulated.train, task, MORE_WORKERS, SETTINGS), more),
            }
            best = [four[GRADWIRE].best_rate]
            delayed = {
                delay: grid(_in(pool, simulated.train, task, WORKERS, SETTINGS, delay), best).best
                for delay in DELAYS
            }
            seconds = _in(pool, alone.train, task, 1)(best[0], 0)().seconds / task.steps
            done = Comparison(task, four, sixteen, delayed, seconds)
            _compared.append(done)
            show_rates(done)
            yield done


Start = Callable[[float, int], Callable[[], Outcome]]
"""Begins a run with a rate and a seed; returns what waits for its outcome."""


def _in(
    pool: ProcessPoolExecutor,
    train: Callable[..., Outcome],
    task: Task,
    workers: int,
    settings: Settings | None = None,
    delay: int | None = None,
) -> Start:
    """Run in a process of a pool, several at a time."""
    options: dict[str, object] = {} if settings is None else {"settings": settings}
    if delay is not None:
        options["delay"] = delay
    return lambda rate, seed: (
        pool.submit(_named, train, task.name, rate, seed, workers, options).result
    )


def _named(
    train: Callable[..., Outcome],
    task: str,
    rate: float,
    seed: int,
    workers: int,
    options: Mapping[str, object],
) -> Outcome:
    """Train a task that is known by its name: functions of a task do not travel."""
    return train(TASKS[task], rate, seed, workers, **options)


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


def figures_of(done: Comparison, seeds: int) -> list[Figure]:
    """Return the figures of one task."""
    task, four, sixteen = done.task.name, done.four, done.sixteen
    ours, ddp = four[GRADWIRE], four[DDP]
    figures = [
        at_most(f"loss, {task}, {WORKERS} workers", ours.loss, "", DDP, ddp.loss, aim=1.0,
                runs=seeds),
        at_most(f"sent, {task}, {WORKERS} workers", ours.megabytes, "MB", DDP, ddp.megabytes,
                aim=0.005, runs=seeds),
    ]  # fmt: skip
    for method in (ONE_PROCESS, POWER_SGD):
        rival = four[method]
        figures.append(
            beside(f"loss, {task}, {WORKERS} workers", ours.loss, "", method, rival.loss,
                   runs=seeds)
        )  # fmt: skip
        if rival.megabytes:
            figures.append(
                beside(f"sent, {task}, {WORKERS} workers", ours.megabytes, "MB", method,
                       rival.megabytes, runs=seeds)
            )  # fmt: skip
    rival = sixteen[ONE_PROCESS]
    figures.append(
        at_most(f"loss, {task}, {MORE_WORKERS} workers, simulated", sixteen[GRADWIRE].loss, "",
                ONE_PROCESS, rival.loss, aim=1.01, runs=seeds)
    )  # fmt: skip
    return figures + [_delayed(done, delay, seeds) for delay in DELAYS[1:]]


def _delayed(done: Comparison, delay: int, seeds: int) -> Figure:
    name = f"loss, {done.task.name}, {WORKERS} workers, {delay} steps late, simulated"
    serial = _mean_loss(done.delayed[0])
    late = _mean_loss(done.delayed[delay])
    rival = "taking turns: nothing is late"
    if delay == DELAY_AIMED_AT:
        return at_most(name, late, "", rival, serial, aim=1.05, runs=seeds)
    if delay > DELAY_AIMED_AT:
        # It has learned something: it was no better than guessing before the first step.
        first = fmean(outcome.losses[0] for outcome in done.delayed[delay])
        return within(name, late, "", rival, serial, aim=first, runs=seeds)
    return beside(name, late, "", rival, serial, runs=seeds)


def show_rates(done: Comparison) -> None:
    """Print the loss at every rate: mean and standard deviation over the seeds."""
    table = Table(title=f"{done.task.name}: loss at each learning rate", title_justify="left")
    table.add_column("method")
    for column in ("rate", "loss", "seeds differ by", "MB"):
        table.add_column(column, justify="right")
    for workers, methods in ((WORKERS, done.four), (MORE_WORKERS, done.sixteen)):
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


def _mean_loss(outcomes: Sequence[Outcome]) -> float:
    losses = [outcome.loss for outcome in outcomes]
    return fmean(losses) if all(map(isfinite, losses)) else nan
