"""What it costs updates that people look on: viewers of the page, Prometheus, workers that log.

A real master on one core, with and without those who look on, and four workers on the other core
that keep it busy. One of the viewers never reads.
"""

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Final

from benchmarks import viewers
from benchmarks.figures import Figure, at_most, beside
from benchmarks.masters import Master, form
from benchmarks.programs import FIRST_CORE, LAST_CORE, Meter, Program, on_core
from benchmarks.scale import ELEMENTS, UNDER_WAY, bodies_of
from benchmarks.workers import Progress, closing, join_all
from gradwire_udp import new_event_loop

WORKERS: Final = 4
SERIES: Final = 100
"""Names that each worker logs, once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    viewers: int = 50
    updates: int = 20_000
    """Of all workers of one measurement together."""
    runs: int = 5
    keys: bool = True
    """Whether the master and its workers have keys."""


FULL: Final = Plan()
QUICK: Final = Plan(viewers=2, updates=40, runs=1)

AIM: Final = 1.05


@dataclass(frozen=True, slots=True)
class Cost:
    """What was measured."""

    seconds: float
    """For each accepted update."""
    processor_seconds: float
    """Of the master, for each."""


def run(plan: Plan) -> list[Figure]:
    """Measure, alternately."""
    watched, alone = [], []
    for _ in range(plan.runs):
        alone.append(_measure(plan, is_watched=False))
        watched.append(_measure(plan, is_watched=True))
    watchers = f"with {plan.viewers} viewers, Prometheus and {SERIES} series of each worker"
    rival = "without them"
    times, times_alone = (median(c.seconds for c in costs) for costs in (watched, alone))
    loads, loads_alone = (median(c.processor_seconds for c in costs) for costs in (watched, alone))
    update = f"accepted 4 KB update of {WORKERS} workers {form(keys=plan.keys)}, {watchers}"
    processor = f"master's processor for it, {watchers}"
    return [
        at_most(update, 1e6 * times, "us", rival, 1e6 * times_alone, aim=AIM, runs=plan.runs),
        beside(processor, 1e6 * loads, "us", rival, 1e6 * loads_alone, runs=plan.runs),
    ]


def _measure(plan: Plan, *, is_watched: bool) -> Cost:
    with (
        Master(keys=plan.keys, http="127.0.0.1:0", core=FIRST_CORE) as master,
        on_core(LAST_CORE),
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        return runner.run(_keep_busy(master, plan, is_watched=is_watched))


async def _keep_busy(master: Master, plan: Plan, *, is_watched: bool) -> Cost:
    progress = Progress()
    workers = await join_all(WORKERS, ELEMENTS, master, progress)
    bodies = bodies_of(WORKERS)
    each = max(plan.updates // WORKERS, 2 * UNDER_WAY)
    with ExitStack() as stack:
        if is_watched:
            address, count = master.http_address, str(plan.viewers)
            module = viewers.__name__
            start = stack.enter_context
            start(await asyncio.to_thread(Program, module, address, count, core=LAST_CORE))
        stack.enter_context(closing(workers))
        logged_at = 0.0
        began = perf_counter()
        with Meter(master.pid) as meter:
            while any(worker.received < each * (WORKERS - 1) for worker in workers):
                for worker, body in zip(workers, bodies, strict=True):
                    while worker.sent < min(each, worker.delivered + UNDER_WAY):
                        worker.push(body)
                if is_watched and perf_counter() - logged_at >= 1:
                    logged_at = perf_counter()
                    for worker in workers:
                        worker.log(worker.sent, {f"series{i}": 0.5 for i in range(SERIES)})
                await progress.wait(60)
        seconds = perf_counter() - began
    accepted = each * WORKERS
    return Cost(seconds / accepted, meter.processor_seconds / accepted)
