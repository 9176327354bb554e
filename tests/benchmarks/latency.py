"""How long 4 KB updates take from one worker to another, through a real master.

Under no load, beside a raw UDP echo of the same size: both are two hops. And to a worker that is
just receiving a snapshot of 60 MB at 100 Mbit/s: small updates must not wait behind it.
"""

import asyncio
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from benchmarks.figures import Figure, at_most, within
from benchmarks.masters import Master, form
from benchmarks.programs import FIRST_CORE, LAST_CORE, Program, on_core
from benchmarks.rivals import udp_echo
from benchmarks.workers import Progress, closing, join_all, update_of_size
from gradwire_udp import new_event_loop
from support.emulator import emulated_link
from support.link import Link
from support.namespaces import can_have_machines

UPDATE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    runs: int = 5
    round_trips: int = 1000
    """Of each run, and as many before that are not counted."""
    snapshot_elements: int = 15_000_000
    interval_seconds: float = 0.010
    """Between the updates that come while the snapshot does. They come before it, so that it waits
    where these alone are more than the machine carries."""
    echo_trips: int = 100
    keys: bool = True
    """Whether the master and its workers have keys."""


FULL: Final = Plan()
QUICK: Final = Plan(
    runs=1, round_trips=10, snapshot_elements=100_000, interval_seconds=0.2, echo_trips=5
)

AIMS: Final = {50: 3.0, 99: 10.0}
"""Percentile, and times the echo's."""

LINK_RATE: Final = 100e6
RTT: Final = 0.020
SLACK_SECONDS: Final = 0.020

STREAM: Final = "benchmarks.update_stream"
ECHO: Final = udp_echo.__name__


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    figures = _under_no_load(plan)
    if can_have_machines():
        figures.append(_beside_a_snapshot(plan))
    else:
        print("no network namespaces here: no latency beside a snapshot", file=sys.stderr)
    return figures


def _under_no_load(plan: Plan) -> list[Figure]:
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

    def note(sequence: int) -> None:
        nonlocal came
        came = time.perf_counter()

    other.on_update_received = note
    taken = []
    with closing(workers):
        for i in range(1, count + 1):
            began = time.perf_counter()
            one.push(body)
            while other.received < i or one.delivered < i:
                await progress.wait(10)
            taken.append(came - began)
    return taken


def _beside_a_snapshot(plan: Plan) -> Figure:
    link = Link(rate=LINK_RATE, delay=RTT / 2)
    elements = ("--elements", str(plan.snapshot_elements))
    with emulated_link(link, link, seed=1) as (here, there):
        with Program(ECHO, "serve", "--host", here.address, prefix=here.prefix) as echo:
            port = str(echo.announcement["port"])
            with Program(ECHO, "measure", "--host", here.address, "--port", port, "--count",
                         str(plan.echo_trips), prefix=there.prefix) as client:  # fmt: skip
                rival = float(np.percentile(client.announcement["seconds"], 99))
        with Master(keys=plan.keys, listen=f"{here.address}:0", prefix=here.prefix) as master:
            environ = master.environ()
            with (
                Program(STREAM, "push", *elements, "--interval-seconds", str(plan.interval_seconds),
                        environ=environ, prefix=here.prefix) as pusher,
                Program(STREAM, "receive", *elements, environ=environ,
                        prefix=there.prefix) as receiver,
            ):  # fmt: skip
                pusher.tell()
                came = receiver.read()
                pusher.tell()
                sent = pusher.read()["at"]
    taken = [at - sent[sequence] for sequence, at in came["at"].items()]
    print(
        f"snapshot of {4e-6 * plan.snapshot_elements:g} MB in {came['seconds']:.2f} s, "
        f"{len(taken)} updates meanwhile, median {1e3 * median(taken):.1f} ms",
        file=sys.stderr,
    )
    name = f"4 KB update while a snapshot flows, {form(keys=plan.keys)}, {1e3 * RTT:g} ms, p99"
    return within(name, 1e3 * float(np.percentile(taken, 99)), "ms",
                  "raw UDP echo, idle link, p99", 1e3 * rival,
                  aim=1e3 * (2 * RTT + SLACK_SECONDS), runs=1)  # fmt: skip
