"""What an accepted update costs a master with 4 to 256 workers that keep it busy, over loopback.

A real master on one core, over real sockets. All workers live in this process, on the other core,
and each has some updates of 4 KB under way all the time; those of different workers change
different parameters. What passes on together is added up, so
the cost of an update should not grow with the workers as the number of pairs does; nor should what
comes down to a worker.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.figures import Figure, at_most, beside
from benchmarks.masters import Master, form
from benchmarks.pictures import OURS, Lines, draw_lines
from benchmarks.programs import FIRST_CORE, LAST_CORE, Meter, on_core
from benchmarks.workers import Progress, closing, join_all, update_of_size
from gradwire_udp import new_event_loop

UPDATE_BYTES: Final = 4096
ELEMENTS: Final = 100 * UPDATE_BYTES
"""About one in a hundred of which an update changes."""

UNDER_WAY: Final = 2
"""Updates that each worker has under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    workers: Sequence[int] = (4, 16, 64, 256)
    """Ascending."""
    updates: int = 4_000
    """Of all workers of one measurement together."""
    runs: int = 3
    keys: bool = True
    """Whether the master and its workers have keys."""


FULL: Final = Plan()
QUICK: Final = Plan(workers=(2, 3), updates=12, runs=1)

AIMS: Final = {64: 2.0, 256: 4.0}
"""Times the cost with the fewest workers."""

BYTES_AIMS: Final = {16: 0.8, 64: 0.5}
"""Times the bytes of the single updates."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What was measured with one number of workers."""

    microseconds: float
    """Of the master's processor, for each accepted update."""
    bytes_ratio: float
    """What came down to a worker, of the bytes of all updates of others."""


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    bodies = bodies_of(max(plan.workers))
    costs: dict[int, list[Cost]] = {workers: [] for workers in plan.workers}
    for _ in range(plan.runs):
        for workers, measured in costs.items():
            measured.append(_measure(bodies[:workers], plan))
    least = plan.workers[0]
    figures = []
    for workers in plan.workers:
        name = _name(workers, plan)
        value = median(cost.microseconds for cost in costs[workers])
        rival = median(cost.microseconds for cost in costs[least])
        among_least = f"the same with {least} workers"
        figures.append(
            at_most(name, value, "us", among_least, rival, aim=AIMS[workers], runs=plan.runs)
            if workers in AIMS
            else beside(name, value, "us", among_least, rival, runs=plan.runs)
        )
        ratio = median(cost.bytes_ratio for cost in costs[workers])
        each = len(bodies[0]) / 1e3
        values = (
            f"bytes down to each of {workers} workers, for each update of another",
            ratio * each,
        )
        singly = "the update by itself", each
        figures.append(
            at_most(*values, "KB", *singly, aim=BYTES_AIMS[workers], runs=plan.runs)
            if workers in BYTES_AIMS
            else beside(*values, "KB", *singly, runs=plan.runs)
        )
    return figures


def _name(workers: int, plan: Plan) -> str:
    return f"master's processor, per accepted 4 KB update of {workers}, {form(keys=plan.keys)}"


def bodies_of(workers: int) -> list[bytes]:
    """Return the update that each worker sends again and again."""
    return [update_of_size(UPDATE_BYTES, ELEMENTS, seed=rank)[1] for rank in range(workers)]


def _measure(bodies: Sequence[bytes], plan: Plan) -> Cost:
    with (
        Master("--workers-max", str(max(plan.workers)), keys=plan.keys, core=FIRST_CORE) as master,
        on_core(LAST_CORE),
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        return runner.run(_keep_busy(master, bodies, plan))


async def _keep_busy(master: Master, bodies: Sequence[bytes], plan: Plan) -> Cost:
    progress, count = Progress(), len(bodies)
    workers = await join_all(count, ELEMENTS, master, progress)
    each = max(plan.updates // count, 2 * UNDER_WAY)
    before = sum(worker.bytes_received for worker in workers)
    with closing(workers):
        with Meter(master.pid) as meter:
            while any(worker.received < each * (count - 1) for worker in workers):
                for worker, body in zip(workers, bodies, strict=True):
                    while worker.sent < min(each, worker.delivered + UNDER_WAY):
                        worker.push(body)
                await progress.wait(60)
        down = sum(worker.bytes_received for worker in workers) - before
    accepted = each * count
    singly = (count - 1) * each * sum(map(len, bodies))
    return Cost(1e6 * meter.processor_seconds / accepted, down / singly)


def draw(figures: list[Figure], folder: Path, plan: Plan) -> None:
    """Draw the cost against the number of workers, and what it would be if pairs counted."""
    of_name = {figure.figure: figure.value for figure in figures}
    costs = [of_name[_name(n, plan)] / 1e3 for n in plan.workers]
    least = plan.workers[0]
    by_pairs = [costs[0] * (workers - 1) / (least - 1) for workers in plan.workers]
    draw_lines(
        Lines(
            title=f"Processor time of a busy master, {form(keys=plan.keys)}",
            categories=[str(workers) for workers in plan.workers],
            x_label="workers",
            y_label="milliseconds per accepted 4 KB update",
            series={
                f"{OURS} master": costs,
                "if each update went to each worker by itself": by_pairs,
            },
        ),
        folder / "scale.png",
    )
