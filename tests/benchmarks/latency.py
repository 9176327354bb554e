"""How long 4 KB updates take from one worker to another, through a real master.

Under no load, beside a raw UDP echo of the same size: both are two hops.
"""

import asyncio
import time
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from benchmarks.figures import Figure, at_most
from benchmarks.masters import Master, form
from benchmarks.programs import FIRST_CORE, LAST_CORE, Program, on_core
from benchmarks.rivals import udp_echo
from benchmarks.workers import Progress, closing, join_all, update_of_size
from gradwire_udp import new_event_loop

UPDATE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    runs: int = 5
    round_trips: int = 1000
    """Of each run, and as many before that are not counted."""
    keys: bool = True
    """Whether the master and its workers have keys."""


FULL: Final = Plan()
QUICK: Final = Plan(runs=1, round_trips=10)

AIMS: Final = {50: 3.0, 99: 10.0}
"""Percentile, and times the echo's."""

ECHO: Final = udp_echo.__name__


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    elements, body = update_of_size(UPDATE_BYTES, 100 * UPDATE_BYTES)
    ours, echoes = [], []
    with (
        Master(keys=plan.keys, core=FIRST_CORE) as master,
        Program(ECHO, "serve", "--host", "127.0.0.1", core=FIRST_CORE) as echo,
        on_core(LAST_CORE),
    ):
        address = ("127.0.0.1", int(echo.announcement["port"]))
        trips = plan.round_trips
        for _ in range(plan.runs):
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                there = runner.run(_relayed(master, elements, body, 2 * trips))
            ours.append(there[trips:])
            back = udp_echo.round_trips(address, bytes(UPDATE_BYTES), 2 * trips)
            echoes.append(back[trips:])

    figures = []
    for percentile, aim in AIMS.items():
        value, rival = (
            1e6 * median(float(np.percentile(run, percentile)) for run in runs)
            for runs in (ours, echoes)
        )
        name = (f"update of {len(body) / 1000:.1f} KB through the master, {form(keys=plan.keys)}, "
                f"p{percentile}")  # fmt: skip
        rival_name = f"raw UDP echo of {UPDATE_BYTES} B"
        figures.append(at_most(name, value, "us", rival_name, rival, aim=aim, runs=plan.runs))
    return figures


async def _relayed(master: Master, elements: int, body: bytes, count: int) -> list[float]:
    """Send updates from one worker to another, the next one when nothing is under way."""
    progress = Progress()
    one, other = workers = await join_all(2, elements, master, progress)
    came = 0.0

    def note() -> None:
        nonlocal came
        came = time.perf_counter()

    other.on_entries_received = note
    taken = []
    with closing(workers):
        for i in range(1, count + 1):
            began = time.perf_counter()
            one.push(body)
            while other.received < i or one.delivered < i:
                await progress.wait(10)
            taken.append(came - began)
    return taken
