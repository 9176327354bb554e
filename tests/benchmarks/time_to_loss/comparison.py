"""What each method makes of the same time: four tasks, four workers, links of 10 to 1,000 Mbit/s.

The workers and gradwire's master share one link with 20 ms there and back, in all directions. Each
method trains for the same time, at the best of some learning rates; these are tried with less time
on one of the links. The loss is that of the first worker's model on what is held out, as its
training loop has it when the time is over, without anything that would follow.

Few cores would measure themselves. So a step takes as long as that of a slower model, and computes
meanwhile what the small one needs. The schedules of learning rates follow the time.

Each training is kept in a file when it has ended, and not made again: a run that was broken off
goes on, and a part can be measured by ``--tasks``, ``--links``, ``--methods``. What the machine was
too slow for is not kept: the next run makes it again.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import exp, inf, log, nan
from pathlib import Path
from statistics import fmean
from typing import Final, TypeAlias

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.commit import commit_of
from benchmarks.defaults.member import DDP
from benchmarks.defaults.tasks import TASKS
from benchmarks.figures import Figure, at_most, within
from benchmarks.masters import form
from benchmarks.programs import TESTS
from benchmarks.time_to_loss.cells import Cell, Cells, Outcome
from benchmarks.time_to_loss.drawing import draw_curves
from benchmarks.time_to_loss.methods import METHODS, MODES, RIVALS, is_there
from benchmarks.time_to_loss.training import Crew
from support.emulator import can_have_links

FOLDER: Final = TESTS.parent / ".cache" / "time-to-loss"

LOSS_AIM: Final = 1.0
MEAN_AIMS: Final = {10.0: 0.9, 100.0: 0.9}
"""By link: the most that the best mode's loss over the best rival's may be in the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    tasks: Sequence[str] = ("gpt", "groupnorm", "lstm", "vit")
    """Of benchmark `defaults`: a transformer on text, a convolutional net, an LSTM, a ViT."""
    links: Sequence[float] = (10.0, 100.0, 1000.0)
    """Mbit/s."""
    methods: Sequence[str] = METHODS
    rates: int = 4
    """How many of a task's learning rates are tried, the lowest ones."""
    seconds: float = 120.0
    """At 30 steps a round, 40 rounds."""
    step_seconds: float = 0.1
    pick_link: float = 100.0
    pick_seconds: float = 30.0
    """The learning rates are tried on that link for so long."""
    late_max: float = 0.05
    """The most forward passes, of all, that may take longer than they should: beyond it the machine
    was too slow, and the training is neither kept nor shown."""
    workers: int = 4
    seed: int = 0
    folder: Path = FOLDER
    """Where trainings are kept."""
    goes_on: bool = True
    """Whether trainings that are kept are not made again."""
    keys: bool = True
    """Whether gradwire's master and workers have keys."""

    @property
    def file(self) -> Path:
        """Where they are kept."""
        return self.folder / "cells.jsonl"


FULL: Final = Plan()
QUICK: Final = Plan(
    tasks=("lstm",), links=(100.0,), methods=("sharing", DDP, "sparseloco"),
    rates=1, seconds=0.6, step_seconds=0.01, late_max=1.0, workers=2, folder=FOLDER / "quick",
    goes_on=False,
)  # fmt: skip

Found: TypeAlias = Mapping[tuple[str, float, str], tuple[Cell, Outcome]]
"""By task, link and method: what was trained at the best rate, and what came of it."""


def with_options(plan: Plan, arguments: Sequence[str]) -> Plan:
    """Return a plan that options have changed."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks time-to-loss")
    parser.add_argument("--tasks", nargs="+", choices=FULL.tasks, default=plan.tasks)
    parser.add_argument("--links", nargs="+", type=float, default=plan.links, metavar="MBIT")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=plan.methods)
    parser.add_argument("--seconds", type=float, default=plan.seconds)
    parser.add_argument("--rates", type=int, choices=(1, 2, 3, 4), default=plan.rates)
    parser.add_argument("--pick-seconds", type=float, default=plan.pick_seconds)
    parser.add_argument("--folder", type=Path, default=plan.folder)
    return replace(plan, **vars(parser.parse_args(arguments)))


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    if not can_have_links():
        print("no namespaces or TUN devices here: no link can be emulated", file=sys.stderr)
        return []
    plan = possible(plan)
    if not plan.goes_on:
        plan.file.unlink(missing_ok=True)
    kept = Cells(plan.file)
    commit = commit_of(Path(__file__).parent)
    found = {}
    with Progress() as shown, Crew() as crew:

        def outcome(cell: Cell) -> Outcome:
            if cell not in kept:
                made = crew.train(cell)
                if made.late > plan.late_max * made.steps:
                    raise RuntimeError(too_slow(cell, made))
                kept.add(cell, made, commit)
            return kept.outcome(cell)

        places = list(product(plan.tasks, plan.links, plan.methods))
        bar = shown.add_task("time-to-loss", total=len(places))
        for place in places:
            try:
                found[place] = at_best_rate(plan, *place, outcome)
                shown.console.print(_line(*found[place]))
            except RuntimeError as error:  # others go on
                shown.console.print(f"{', '.join(map(str, place))}: {error}", markup=False)
            shown.advance(bar)
    for task, link in product(plan.tasks, plan.links):
        show({key[2]: found[key] for key in found if key[:2] == (task, link)})
    return figures_of(found, plan)


def possible(plan: Plan) -> Plan:
    """Return what can be measured of a plan here, and say how, and what cannot."""
    print(
        f"A step takes {1000 * plan.step_seconds:g} ms, as that of a slower model; small ones are "
        "computed meanwhile.",
        file=sys.stderr,
    )
    if plan.rates > 1:
        print(
            f"Learning rates: the best of {plan.rates}, by {plan.pick_seconds:g} s at "
            f"{plan.pick_link:g} Mbit/s; used on all links.",
            file=sys.stderr,
        )
    missing = [method for method in plan.methods if not is_there(method)]
    if missing:
        print(f"not installed, left out: {', '.join(missing)}", file=sys.stderr)
    return replace(plan, methods=[each for each in plan.methods if each not in missing])


def at_best_rate(
    plan: Plan, task: str, link: float, method: str, outcome: Callable[[Cell], Outcome]
) -> tuple[Cell, Outcome]:
    """Return what a method makes of a task over a link.

    Parameters
    ----------
    plan : Plan
    task : str
    link : float
    method : str
    outcome : callable
        Returns what comes of a cell, measured now or before.
    """
    rates = TASKS[task].rates[: plan.rates]
    cell = Cell(task=task, method=method, link=link, rate=rates[0], seconds=plan.seconds,
                step_seconds=plan.step_seconds, workers=plan.workers, seed=plan.seed,
                keys=plan.keys)  # fmt: skip
    if len(rates) > 1:
        tried = replace(cell, link=plan.pick_link, seconds=plan.pick_seconds)
        rate = min(rates, key=lambda rate: outcome(replace(tried, rate=rate)).loss)
        cell = replace(cell, rate=rate)
    return cell, outcome(cell)


def figures_of(found: Found, plan: Plan) -> list[Figure]:
    """Return figures of our best mode beside the best rival, where there are both."""
    figures = []
    of = f"after {plan.seconds:g} s, {plan.workers} workers, {form(keys=plan.keys)}"
    for link in plan.links:
        ratios = []
        for task in plan.tasks:
            here = {key[2]: found[key][1] for key in found if key[:2] == (task, link)}
            ours, rival = _best(here, MODES), _best(here, RIVALS)
            if ours is None or rival is None:
                continue
            figures.append(
                at_most(f"loss of {ours}, {task}, {link:g} Mbit/s, {of}", here[ours].loss, "",
                        rival, here[rival].loss, aim=LOSS_AIM, runs=1)
            )  # fmt: skip
            ratios.append(figures[-1].ratio)
        if ratios:
            aim = MEAN_AIMS.get(link, inf)
            figures.append(
                within(f"geometric mean of losses over the best rival's, {link:g} Mbit/s, {of}",
                       _mean(ratios), "", "the best rival", 1.0, aim=aim, runs=len(ratios))
            )  # fmt: skip
    return figures


def _best(here: Mapping[str, Outcome], methods: Sequence[str]) -> str | None:
    """Return the method of some with the lowest loss."""
    return min((m for m in methods if m in here), key=lambda m: here[m].loss, default=None)


def _mean(ratios: Sequence[float]) -> float:
    return exp(fmean(log(ratio) if ratio else -inf for ratio in ratios))


def show(here: Mapping[str, tuple[Cell, Outcome]]) -> None:
    """Print what each method has made of one task over one link."""
    if not here:
        return
    cell = next(iter(here.values()))[0]
    table = Table(title=f"{cell.task}, {cell.link:g} Mbit/s, {cell.seconds:g} s")
    for column in ("method", "rate", "loss", "over DDP's", "MB", "bytes: times fewer than DDP",
                   f"steps of {cell.steps}", "of these late"):  # fmt: skip
        table.add_column(column)
    ddp = here[DDP][1] if DDP in here else None
    for method, (each, outcome) in here.items():
        table.add_row(
            method,
            f"{each.rate:g}",
            f"{outcome.loss:.4g}",
            f"{outcome.loss / ddp.loss:.3f}" if ddp else "",
            f"{outcome.megabytes[-1]:.4g}",
            f"{_per_step(ddp) / (_per_step(outcome) or nan):.0f}" if ddp else "",
            str(outcome.steps),
            str(outcome.late),
        )
    Console(stderr=True, width=120).print(table)


def too_slow(cell: Cell, outcome: Outcome) -> str:
    """Say that a training does not count."""
    return (
        f"the machine was too slow at {cell.rate:g}: {outcome.late} of {outcome.steps} forward "
        f"passes took longer than they should; run it again when less else runs"
    )


def _per_step(outcome: Outcome) -> float:
    return outcome.megabytes[-1] / max(outcome.steps, 1)


def _line(cell: Cell, outcome: Outcome) -> str:
    return (
        f"{cell.task}, {cell.link:g} Mbit/s, {cell.method}: {outcome.loss:.4g}, "
        f"{outcome.megabytes[-1]:.4g} MB"
    )


def draw(figures: list[Figure], folder: Path, plan: Plan) -> None:
    """Draw losses against seconds and against bytes, of what is kept."""
    kept = Cells(plan.file)
    found = {}
    for place in product(plan.tasks, plan.links, plan.methods):
        with suppress(KeyError):
            found[place] = at_best_rate(plan, *place, kept.outcome)[1]
    draw_curves(found, folder)
