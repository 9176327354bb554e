"""Run modes beside DDP: the loss at the best of four rates, what is sent, what a round takes.

Tasks are those of benchmark `defaults`, each mode at its own best learning rate. Then a round of a
large model by itself, beside the time that its bytes take over TCP between the same processes, and
what a slow or killed worker costs the others.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from statistics import fmean, median
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.convergence.processes import Processes, processes
from benchmarks.defaults.comparison import LINK, RIVAL, mean_loss
from benchmarks.defaults.member import DDP
from benchmarks.defaults.tasks import TASKS, Task
from benchmarks.figures import Figure, at_least, at_most
from benchmarks.hindered import hindered_figures
from benchmarks.masters import Master, form
from benchmarks.programs import Program, start_together
from benchmarks.rivals import hivemind_averaging, torchft_diloco
from benchmarks.round_worker import EVERY
from support.emulator import can_have_links, emulated_link
from support.namespaces import can_have_machines

STATE: Final = "averaging(optimizer_state=True)"
"""Only where the optimizer of a task keeps something."""

LOSS_AIMS: Final[Mapping[str, float]] = {
    "sharing": 1.03,
    "synchronous": 1.0,
    "averaging": 1.02,
    "averaging(bits=4)": 1.02,
    STATE: 1.02,
    "diloco": 1.02,
    "diloco(streams=4)": 1.02,
    "central": 1.02,
    "central(gradients_per_update=4)": 1.0,
}
"""By mode: most times DDP's loss."""

INSTALLED: Final[Mapping[str, Callable[[], bool]]] = {
    "torchft diloco": torchft_diloco.is_there,
    "hivemind averaging": hivemind_averaging.is_there,
}
"""By rival: whether it can be tried here."""

BESIDE: Final = {"torchft diloco": "diloco", "hivemind averaging": "averaging"}
"""The mode of ours that each rival is like."""

RIVAL_AIM: Final = 1.02
"""Most times the loss of a rival that does the same."""

BYTES_AIMS: Final[Mapping[str, float]] = {
    "averaging": 64.0,
    "averaging(bits=4)": 128.0,
    "diloco": 256.0,
}
"""By mode: how many times fewer than DDP."""

ROUND_AIM: Final = 1.2
"""A round takes at most so many times what its bytes take over TCP."""


CROWD_MODES: Final = ("averaging", STATE, "diloco", "diloco(streams=4)")
"""What more workers than processors are tried with: a round of each step would take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    tasks: Sequence[Task] = tuple(TASKS[name] for name in ("softmax", "lstm", "vit"))
    modes: Sequence[str] = tuple(LOSS_AIMS)
    rates: int | None = None
    """How many of a task's learning rates are tried, the lowest ones; None: all."""
    seeds: int = 1
    workers: int = 4
    crowd: int = 16
    """Workers beside which one task is tried with those modes that suit so many; 0 for none."""
    crowd_task: Task = TASKS["lstm"]
    rivals: bool = True
    """Whether torchft and hivemind are tried, where they are installed."""
    parameters: int = 14_600_000
    """Of the model whose rounds are timed, with two workers."""
    rounds: int = 15
    streams: int = 4
    device_seconds: float = 0.3
    """What a device takes for a step of that model."""
    steps: int = 640
    """Of workers of which one is slow, or is killed: ten rounds of DiLoCo."""
    step_seconds: float = 0.02
    kills: bool = True
    keys: bool = True
    """Whether gradwire's master and workers have keys."""


FULL: Final = Plan()
QUICK: Final = Plan(tasks=(replace(TASKS["softmax"], steps=8),), modes=("central",),
                    rates=1, workers=2,
                    parameters=100_000, rounds=2, steps=12, step_seconds=0.002,
                    device_seconds=0.002, kills=False, crowd=0, rivals=False)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tried:
    """One task by one method."""

    task: Task
    method: str
    by_rate: dict[float, list[dict[str, Any]]] = field(default_factory=dict)
    """What came of it, by seed."""

    @property
    def best(self) -> float:
        """The learning rate with the lowest loss."""
        return min(self.by_rate, key=lambda rate: mean_loss(self.by_rate[rate]))

    def mean(self, name: str) -> float:
        """Return a mean over seeds, at the best rate."""
        return fmean(outcome[name] for outcome in self.by_rate[self.best])

    @property
    def loss(self) -> float:
        """That at the best rate."""
        return mean_loss(self.by_rate[self.best])


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    if not can_have_machines():
        print("no network namespaces here: nobody can count what is sent", file=sys.stderr)
        return []
    there = [rival for rival, is_there in INSTALLED.items() if plan.rivals and is_there()]
    compared = [(task, plan.workers, there, plan.modes) for task in plan.tasks]
    if plan.crowd:
        compared.append((plan.crowd_task, plan.crowd, [], CROWD_MODES))
    figures = []
    with Progress() as shown:
        bar = shown.add_task("modes", total=sum(1 + len(c[2]) + len(c[3]) for c in compared))
        for task, workers, rivals, modes in compared:
            with processes(
                task.name, task.steps, workers, keys=plan.keys, member="defaults.member"
            ) as started:
                done = []
                for method in (DDP, *rivals, *modes):
                    shown.advance(bar)
                    if method == STATE and not keeps_state(task):
                        continue
                    done.append(tried(task, method, started, plan))
                    shown.console.print(
                        f"{task.name}, {workers} workers, {method}: {done[-1].loss:.4g}"
                    )
            show(done)
            figures += figures_of(done, workers, plan)
    hindered = hindered_figures(
        [mode for mode in plan.modes if mode not in ("averaging(bits=4)", STATE)],
        workers=plan.workers,
        steps=plan.steps,
        step_seconds=plan.step_seconds,
        keys=plan.keys,
        kills=plan.kills,
    )
    return [*figures, *round_figures(plan), *hindered]


def keeps_state(task: Task) -> bool:
    """Return whether the optimizer of a task keeps something for each parameter."""
    optimizer = task.optimizer(task.new_model(0), task.rates[0])
    return bool(optimizer.defaults.get("momentum", True))  # Adam and its kind always do


def tried(task: Task, method: str, started: Processes, plan: Plan) -> Tried:
    """Train a task at each rate; a run that diverges has no loss."""
    found = Tried(task, method)
    for rate in task.rates[: plan.rates]:
        ask = partial(started.ask, method=method, rate=rate)
        found.by_rate[rate] = [ask(seed=seed)[0] for seed in range(plan.seeds)]
    return found


def figures_of(done: Sequence[Tried], workers: int, plan: Plan) -> list[Figure]:
    """Return the figures of one task."""
    ddp, *others = done
    rivals = {each.method: each for each in others if each.method in BESIDE}
    figures = []
    for each in others:
        if each.method in BESIDE:
            continue
        of = f"{each.task.name}, {each.method}, {workers} workers, {form(keys=plan.keys)}"
        aim = LOSS_AIMS.get(each.method, inf)
        figures.append(
            at_most(f"loss, {of}", each.loss, "", RIVAL, ddp.loss, aim=aim, runs=plan.seeds)
        )
        sent = [one.mean("megabytes") for one in (ddp, each)]
        aim = BYTES_AIMS.get(each.method, 0.0)
        figures.append(
            at_least(f"sent with DDP, {of}", sent[0], "MB", each.method, sent[1], aim=aim,
                     runs=plan.seeds)
        )  # fmt: skip
    of = f"{ddp.task.name}, {workers} workers, {form(keys=plan.keys)}"
    ours = {each.method: each for each in others}
    for name, rival in rivals.items():
        mine = ours[BESIDE[name]]
        figures += [
            at_most(f"loss of {mine.method}, {of}", mine.loss, "", name, rival.loss,
                    aim=RIVAL_AIM, runs=plan.seeds),
            at_least(f"sent by {name}, {of}", rival.mean("megabytes"), "MB", mine.method,
                     mine.mean("megabytes"), aim=1.0, runs=plan.seeds),
        ]  # fmt: skip
    return figures


def show(done: Sequence[Tried]) -> None:
    """Print what was measured of one task."""
    ddp = done[0]
    table = Table(title=ddp.task.name)
    for column in ("method", "rate", "loss", "over DDP's", "bytes: times fewer", "seconds"):
        table.add_column(column)
    for each in done:
        table.add_row(
            each.method,
            f"{each.best:g}",
            f"{each.loss:.4g}",
            f"{each.loss / ddp.loss:.3f}",
            f"{ddp.mean('megabytes') / each.mean('megabytes'):.0f}",
            f"{each.mean('seconds'):.1f}",
        )
    Console(stderr=True, width=120).print(table)


def round_figures(plan: Plan) -> list[Figure]:
    """Return how long a round of a large model takes over a link, beside TCP with the same bytes.

    The master and one worker are at one end, the other worker is at the other: its contribution
    goes there, and the result comes back.
    """
    if not can_have_links():
        print("no TUN devices here: no link can be emulated", file=sys.stderr)
        return []
    with emulated_link(LINK, LINK) as (near, far), ExitStack() as stack:
        listen = f"{near.address}:0"
        master = stack.enter_context(Master(keys=plan.keys, listen=listen, prefix=near.prefix))
        workers = start_together(
            stack,
            (
                partial(
                    Program,
                    "benchmarks.round_worker",
                    *(str(plan.parameters), str(plan.rounds), near.address),
                    prefix=machine.prefix,
                    environ=master.environ(),
                    quiet=True,
                )
                for machine in (near, far)
            ),
        )
        for worker in workers:
            worker.tell("train")
        found = [worker.read() for worker in workers][1]
        by_streams = {each: _seconds_of(workers, each, plan) for each in (1, plan.streams)}
        server = workers[0]
        server.tell("serve")
        port = server.read()["port"]
        workers[1].tell(f"exchange {port} {found['sent']} {found['received']}")
        tcp = workers[1].read()["seconds"]
    of = f"{plan.parameters / 1e6:g} M parameters, 8 bits, 100 Mbit/s, {form(keys=plan.keys)}"
    steps = f"{EVERY} steps of {1000 * plan.device_seconds:g} ms and a round of diloco, {of}"
    streams = f"{plan.streams} streams"
    return [
        at_most(f"a round of {of}", median(found["seconds"]), "s", "TCP, there and back",
                median(tcp), aim=ROUND_AIM, runs=plan.rounds),
        at_most(f"{steps}, {streams}", by_streams[plan.streams], "s", "one stream", by_streams[1],
                aim=1.0, runs=plan.rounds),
    ]  # fmt: skip


def _seconds_of(workers: Sequence[Program], streams: int, plan: Plan) -> float:
    """Return how long it takes to make as many steps as have one round, which goes on meanwhile."""
    for worker in workers:
        worker.tell(f"diloco {streams} {plan.device_seconds}")
    found: list[float] = [median(worker.read()["seconds"]) for worker in workers]
    return max(found)
