"""What it costs the updates that workers log scalars and many people watch a run.

All workers are `IdleWorker`s of this process, some of which send updates of 4 KB, the next ones a
second later. In turns, nobody logs or looks; and each worker logs 100 scalars a second, as a
session does, while viewers, some of which never read, have the run's live page open.

What one takes beyond the other is the processor time that logging and watching cost the master. A
master that is busy all the time has so much less for updates: of a twenty-first part of its core,
they get slower by a twentieth. Here it is not busy. A master that is reads more datagrams at a
time, and each costs it less; and as all workers and viewers have one core, whatever they do beside
updates leaves it less to read at a time.
"""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any, Final

from benchmarks import viewers
from benchmarks.figures import Figure, beside, within
from benchmarks.masters import Master, form
from benchmarks.programs import FIRST_CORE, LAST_CORE, Meter, Program, on_core
from benchmarks.workers import IdleWorker, Progress, closing, join_all, update_of_size
from gradwire_udp import new_event_loop

UPDATE_BYTES: Final = 4_096
ELEMENTS: Final = 500_000

RUN: Final = "default"

SLOWER_MAX: Final = 1.05
"""By how much updates of a busy master may get slower."""

AIM: Final = 100 * (1 - 1 / SLOWER_MAX)
"""Hundredths of a core."""

LAST_SECONDS_MAX: Final = 10.0
"""In which the last scalars have to come."""

STEP_SECONDS_MAX: Final = 60.0
"""In which something has to come to some worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    workers: int = 200
    senders: int = 8
    """Workers that send updates."""
    scalars: int = 100
    """That each worker logs in a second."""
    reading: int = 900
    unread: int = 100
    """Viewers, of which these never read."""
    steps: int = 10
    """Of each turn: in each, all senders send an update."""
    step_seconds: float = 1.0
    runs: int = 7
    keys: bool = True


FULL: Final = Plan()
QUICK: Final = Plan(workers=3, senders=2, scalars=5, reading=3, unread=1, steps=3,
                          step_seconds=0.1, runs=1)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Turn:
    """What was seen of some steps."""

    load: float
    """The master's processor time, as a part of the time that has passed."""
    spread: float
    """Seconds until all workers had the updates of a step."""


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    with (
        Master("--workers-max", str(plan.workers), keys=plan.keys, http="127.0.0.1:0",
               core=FIRST_CORE) as master,
        on_core(LAST_CORE),
        asyncio.Runner(loop_factory=lambda: new_event_loop("auto")) as runner,
    ):  # fmt: skip
        return runner.run(_measured(plan, master))


async def _measured(plan: Plan, master: Master) -> list[Figure]:
    elements, body = update_of_size(UPDATE_BYTES, ELEMENTS)
    progress = Progress()
    plain: list[Turn] = []
    watched: list[Turn] = []
    logged, frames, seconds = 0, 0.0, 0.0
    workers = await join_all(plan.workers, elements, master, progress)
    with closing(workers):
        await _turn(plan, master, workers, body, progress)  # to warm up
        for _ in range(plan.runs):
            plain.append(await _turn(plan, master, workers, body, progress))
            async with AsyncExitStack() as stack:
                # On a thread: viewers come one by one, and workers have to answer meanwhile.
                audience = await asyncio.to_thread(_audience, plan, master)
                stack.enter_context(audience)
                log = await stack.enter_async_context(_logging(plan, workers))
                before = await _frames_of(audience)
                began = asyncio.get_running_loop().time()
                watched.append(await _turn(plan, master, workers, body, progress))
                frames += await _frames_of(audience) - before
                seconds += asyncio.get_running_loop().time() - began
            logged += log.logged
        kept = await _scalars_of(master, logged)
    what = (
        f"{plan.workers} workers that log {plan.scalars} a second, "
        f"{plan.reading + plan.unread} viewers, {form(keys=plan.keys)}"
    )
    rival, runs = f"{plan.senders} updates of 4 KB a step", plan.runs
    per_viewer = frames / max(plan.reading, 1) / seconds
    beyond = [with_.load - without.load for with_, without in zip(watched, plain, strict=True)]
    return [
        within(f"master's core for {what}", 100 * median(beyond), "%", rival,
               100 * median(t.load for t in plain), aim=AIM, runs=runs),
        beside(f"until all have the updates of a step, {what}", median(t.spread for t in watched),
               "s", "nobody logs or looks", median(t.spread for t in plain), runs=runs),
        beside(f"frames for each of {plan.reading} viewers that read", per_viewer, "1/s",
               "as often as can be", 1.0, runs=runs),
        beside(f"scalars of {plan.workers} workers that are kept", kept, "", "that were logged",
               logged, runs=runs),
    ]  # fmt: skip


async def _turn(
    plan: Plan, master: Master, workers: Sequence[IdleWorker], body: bytes, progress: Progress
) -> Turn:
    """Exchange updates."""
    senders = workers[: plan.senders]
    loop = asyncio.get_running_loop()
    spreads = []
    with Meter(master.pid) as meter:
        began = loop.time()
        for step in range(1, plan.steps + 1):
            pushed_at = loop.time()
            for worker in senders:
                worker.push(body)
            pushed = sum(worker.sent for worker in senders)
            while any(worker.received < pushed - worker.sent for worker in workers):
                await progress.wait(STEP_SECONDS_MAX)
            spreads.append(loop.time() - pushed_at)
            await asyncio.sleep(max(began + step * plan.step_seconds - loop.time(), 0.0))
    return Turn(meter.processor_seconds / meter.seconds, median(spreads))


def _audience(plan: Plan, master: Master) -> Program:
    """Return the viewers: all are accepted, and those that read have got a frame."""
    return Program(
        viewers.__name__, "--http", master.http_address, "--run", RUN,
        "--reading", str(plan.reading), "--unread", str(plan.unread), core=LAST_CORE,
    )  # fmt: skip


async def _frames_of(audience: Program) -> float:
    audience.tell()
    said = await asyncio.to_thread(audience.read)
    return float(said["frames"])


@dataclass(slots=True)
class Log:
    """What workers have logged."""

    logged: int = 0


@asynccontextmanager
async def _logging(plan: Plan, workers: Sequence[IdleWorker]) -> AsyncIterator[Log]:
    """Let all workers log, one after the other, so that each does once a second."""
    log, names = Log(), [f"layer {i}/norm" for i in range(plan.scalars)]
    random = Random(1)

    async def go_on() -> None:
        loop = asyncio.get_running_loop()
        due, step = loop.time(), 0
        while True:
            for worker in workers:
                due += 1 / len(workers)
                await asyncio.sleep(max(due - loop.time(), 0.0))
                worker.log(step, {name: random.random() for name in names})
                log.logged += len(names)
            step += 1

    task = asyncio.create_task(go_on())
    try:
        yield log
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _scalars_of(master: Master, logged: int) -> int:
    """Return how many scalars the master has, when it has had time for the last of these."""
    url = f"http://{master.http_address}/api/v1/runs/{RUN}"
    loop = asyncio.get_running_loop()
    end = loop.time() + LAST_SECONDS_MAX
    while True:
        document: dict[str, Any] = json.loads(await asyncio.to_thread(_fetch, url))
        if document["scalars"] == logged or loop.time() > end:
            return int(document["scalars"])


def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=STEP_SECONDS_MAX) as answer:
        return bytes(answer.read())
