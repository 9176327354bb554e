"""Scripts tuned for DDP with two lines changed: the loss they end with, and what they send.

Each task is trained with DDP on gloo at four learning rates, and with gradwire's defaults at the
one that is best for DDP, from the same parameters on the same samples. The loss is that of the
model that a script has at its end, on what was held out. Up to 8 workers are real processes, 16
are simulated.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, inf, isnan, log, nan
from statistics import fmean
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.convergence.processes import Processes, processes
from benchmarks.defaults import simulated
from benchmarks.defaults.member import DDP, GRADWIRE
from benchmarks.defaults.tasks import TASKS, Task
from benchmarks.figures import Figure, at_least, at_most, within
from benchmarks.masters import form
from support.namespaces import can_have_machines

RIVAL: Final = "DDP on gloo"

LOSS_AIM: Final = 1.03
MEAN_LOSS_AIM: Final = 1.0
SIMULATED_LOSS_AIM: Final = 1.05
SIMULATED_MEAN_LOSS_AIM: Final = 1.02
BYTES_AIM: Final = 60.0
"""Times fewer than DDP, on each task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    tasks: Sequence[Task] = tuple(TASKS.values())
    rates: int | None = None
    """How many of a task's learning rates are tried, the lowest ones; None: all."""
    seeds: int = 2
    workers: Sequence[int] = (2, 4, 8)
    """As processes."""
    simulated: Sequence[int] = (16,)
    keys: bool = True
    """Whether gradwire's master and workers have keys."""


FULL: Final = Plan()
QUICK: Final = Plan(tasks=(replace(TASKS["softmax"], steps=6),), rates=1, seeds=1, workers=(2,),
                   simulated=(3,))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """One task with so many workers."""

    task: Task
    workers: int
    rate: float
    """The best one for DDP."""
    ddp: Sequence[dict[str, Any]]
    """By seed, what came of it at that rate."""
    gradwire: Sequence[dict[str, Any]]
    is_simulated: bool = False

    @property
    def form(self) -> str:
        """How many workers there were, and where."""
        return f"{self.workers} workers" + ", simulated" * self.is_simulated

    @property
    def ratios(self) -> Sequence[float]:
        """By seed, gradwire's loss over DDP's; infinite where it diverged."""
        pairs = zip(self.gradwire, self.ddp, strict=True)
        found = [ours["loss"] / theirs["loss"] for ours, theirs in pairs]
        return [inf if isnan(ratio) else ratio for ratio in found]


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    figures: list[Figure] = []
    runs = (len(plan.tasks[0].rates[: plan.rates]) + 1) * plan.seeds
    if not can_have_machines():
        print("no network namespaces here: nobody can count what is sent", file=sys.stderr)
        plan = replace(plan, workers=())
    for workers in plan.workers:
        done = []
        with Progress() as shown:
            bar = shown.add_task(f"{workers} workers", total=len(plan.tasks) * runs)
            for task in plan.tasks:
                with processes(
                    task.name, task.steps, workers, keys=plan.keys, member="defaults.member"
                ) as started:
                    done.append(compare(task, partial(_asked, started), workers, plan))
                    shown.advance(bar, runs)
        show(done)
        figures += figures_of(done, plan)
    for workers in plan.simulated:
        done = []
        with Progress() as shown:
            bar = shown.add_task(f"{workers} workers, simulated", total=len(plan.tasks) * runs)
            for task in plan.tasks:
                done.append(compare(task, partial(_simulated, task, workers), workers, plan))
                shown.advance(bar, runs)
        done = [replace(each, is_simulated=True) for each in done]
        show(done)
        figures += figures_of(done, plan)
    return figures


def _asked(started: Processes, method: str, rate: float, seed: int) -> dict[str, Any]:
    outcome: dict[str, Any] = started.ask(method=method, rate=rate, seed=seed)[0]
    return outcome


def _simulated(task: Task, workers: int, method: str, rate: float, seed: int) -> dict[str, Any]:
    train = simulated.gradwire if method == GRADWIRE else simulated.ddp
    return train(task, rate, seed, workers)


def compare(
    task: Task, train: Callable[[str, float, int], dict[str, Any]], workers: int, plan: Plan
) -> Comparison:
    """Train one task with both.

    `train` does that with a method, a learning rate and a seed, and returns what came of it.
    """

    def trained(method: str, rate: float) -> list[dict[str, Any]]:
        return [train(method, rate, seed) for seed in range(plan.seeds)]

    by_rate = {rate: trained(DDP, rate) for rate in task.rates[: plan.rates]}
    best = min(by_rate, key=lambda rate: mean_loss(by_rate[rate]))
    return Comparison(task, workers, best, by_rate[best], trained(GRADWIRE, best))


def mean_loss(outcomes: Sequence[dict[str, Any]]) -> float:
    """Return the mean over seeds; infinite where one has diverged."""
    loss = fmean(outcome["loss"] for outcome in outcomes)
    return inf if isnan(loss) else loss


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return it."""
    return exp(fmean(map(log, ratios)))


def figures_of(done: Sequence[Comparison], plan: Plan) -> list[Figure]:
    """Return the figures of all tasks with so many workers."""
    figures = []
    for each in done:
        keys = "" if each.is_simulated else f", {form(keys=plan.keys)}"
        of = f"{each.task.name}, {each.form}{keys}"
        aim = SIMULATED_LOSS_AIM if each.is_simulated else LOSS_AIM
        figures.append(
            at_most(f"loss, {of}", mean_loss(each.gradwire), "", RIVAL, mean_loss(each.ddp),
                    aim=aim, runs=plan.seeds)
        )  # fmt: skip
        sent = [fmean(outcome["megabytes"] for outcome in of) for of in (each.ddp, each.gradwire)]
        figures.append(
            at_least(f"sent with DDP, {of}", sent[0], "MB", "gradwire", sent[1], aim=BYTES_AIM,
                     runs=plan.seeds)
        )  # fmt: skip
    for kind, held_back in (("tasks of the choice", False), ("tasks held back", True)):
        ratios = [r for each in done if each.task.is_held_back is held_back for r in each.ratios]
        if ratios:
            aim = SIMULATED_MEAN_LOSS_AIM if done[0].is_simulated else MEAN_LOSS_AIM
            figures.append(
                within(f"geometric mean of losses over DDP's, {kind}, {done[0].form}",
                       geometric_mean(ratios), "", RIVAL, 1.0, aim=aim, runs=plan.seeds)
            )  # fmt: skip
    return figures


def show(done: Sequence[Comparison]) -> None:
    """Print what was measured with so many workers."""
    table = Table(title=done[0].form)
    for column in ("task", "rate", "DDP", "gradwire", "ratio by seed", "bytes: times fewer",
                   "seconds: DDP, gradwire", "delay", "age", "density", "scale",
                   "bound"):  # fmt: skip
        table.add_column(column)
    for each in done:
        ours, theirs = each.gradwire, each.ddp

        def mean(outcomes: Sequence[dict[str, Any]], key: str) -> float:
            return fmean(outcome.get(key, nan) for outcome in outcomes)

        table.add_row(
            each.task.name + (" (held back)" if each.task.is_held_back else ""),
            f"{each.rate:g}",
            f"{mean(theirs, 'loss'):.4g}",
            f"{mean(ours, 'loss'):.4g}",
            " ".join(f"{ratio:.3f}" for ratio in each.ratios),
            f"{mean(theirs, 'megabytes') / mean(ours, 'megabytes'):.0f}",
            f"{mean(theirs, 'seconds'):.1f}, {mean(ours, 'seconds'):.1f}",
            f"{mean(ours, 'delay'):.1f}",
            f"{mean(ours, 'age'):.0f}",
            f"{mean(ours, 'density'):.2%}",
            f"{mean(ours, 'scale'):.3f}",
            " ".join(str(outcome.get("bound", "")) for outcome in ours),
        )
    Console(stderr=True, width=160).print(table)
