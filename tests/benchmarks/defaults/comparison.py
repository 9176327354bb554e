"""Scripts tuned for DDP with two lines changed: the loss they end with, and what they send.

Each task is trained with DDP on gloo at four learning rates, and with gradwire's defaults at the
one that is best for DDP, from the same parameters on the same samples. The loss is that of the
model that a script has at its end, on what was held out. Up to 8 workers are real processes, 16
are simulated. So many processes are more than a machine has cores; with a link between them, two
machines of `support.emulator`, they are short of a network.
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
from support.emulator import can_have_links
from support.link import Link
from support.namespaces import can_have_machines

RIVAL: Final = "DDP on gloo"

SIMULATED: Final = ", simulated"
LINKED: Final = ", 100 Mbit/s and 20 ms between them"

LOSS_AIM: Final = 1.03
MEAN_LOSS_AIM: Final = 1.0
SIMULATED_LOSS_AIM: Final = 1.05
SIMULATED_MEAN_LOSS_AIM: Final = 1.02
LINK: Final = Link(rate=100e6, delay=0.010)
"""Between two machines: 100 Mbit/s, and 20 ms there and back."""

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
    linked: Sequence[int] = (4,)
    """As processes on two machines with a `LINK` between them, at the rates that are best for DDP
    without it."""
    simulated: Sequence[int] = (16,)
    keys: bool = True
    """Whether gradwire's master and workers have keys."""


FULL: Final = Plan()
QUICK: Final = Plan(tasks=(replace(TASKS["softmax"], steps=3),), rates=1, seeds=1, workers=(),
                   linked=(2,), simulated=(2,))  # fmt: skip


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
    where: str = ""
    """``", simulated"``, or what was between the workers."""

    @property
    def is_simulated(self) -> bool:
        """Whether there were no processes."""
        return self.where == SIMULATED

    @property
    def form(self) -> str:
        """How many workers there were, and where."""
        return f"{self.workers} workers{self.where}"

    @property
    def ratios(self) -> Sequence[float]:
        """By seed, gradwire's loss over DDP's; infinite where it diverged."""
        pairs = zip(self.gradwire, self.ddp, strict=True)
        found = [ours["loss"] / theirs["loss"] for ours, theirs in pairs]
        return [inf if isnan(ratio) else ratio for ratio in found]


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    plan = possible(plan)
    figures: list[Figure] = []
    best: dict[tuple[str, int], float] = {}
    """By task and workers, the rate that is best for DDP with nothing between the workers."""

    def each(workers: int, where: str, compared: Callable[[Task], Comparison]) -> None:
        done = []
        with Progress() as shown:
            bar = shown.add_task(f"{workers} workers{where}", total=len(plan.tasks))
            for task in plan.tasks:
                done.append(replace(tried(compared, task, workers), where=where))
                shown.console.print(f"{task.name}: {done[-1].ratios}")
                shown.advance(bar)
        show(done)
        figures.extend(figures_of(done, plan))

    def in_processes(task: Task, workers: int, link: Link | None) -> Comparison:
        if link is not None and (task.name, workers) in best:
            task = replace(task, rates=(best[task.name, workers],))
        member = "defaults.member"
        with processes(
            task.name, task.steps, workers, keys=plan.keys, member=member, link=link
        ) as started:
            compared = compare(task, partial(_asked, started), workers, plan)
        if link is None:
            best[task.name, workers] = compared.rate
        return compared

    def in_simulation(task: Task, workers: int) -> Comparison:
        return compare(task, partial(_simulated, task, workers), workers, plan)

    for workers in plan.workers:
        each(workers, "", partial(in_processes, workers=workers, link=None))
    for workers in plan.linked:
        each(workers, LINKED, partial(in_processes, workers=workers, link=LINK))
    for workers in plan.simulated:
        each(workers, SIMULATED, partial(in_simulation, workers=workers))
    return figures


def possible(plan: Plan) -> Plan:
    """Return what this system can measure of a plan, and say what it cannot."""
    if not can_have_machines():
        print("no network namespaces here: nobody can count what is sent", file=sys.stderr)
        return replace(plan, workers=(), linked=())
    if plan.linked and not can_have_links():
        print("no TUN devices here: no link can be emulated", file=sys.stderr)
        return replace(plan, linked=())
    return plan


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


def tried(compared: Callable[[Task], Comparison], task: Task, workers: int) -> Comparison:
    """Return the comparison, without a loss if it has ended with an error: others go on."""
    try:
        return compared(task)
    except RuntimeError as error:
        print(f"{task.name}: {error}", file=sys.stderr)
        nothing = {"loss": nan, "megabytes": nan, "seconds": nan}
        return Comparison(task, workers, nan, [{**nothing, "loss": 1.0}], [nothing])


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
