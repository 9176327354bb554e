"""How long 4 KB updates take from one worker to another, through a real master.

Under no load, beside a raw UDP echo of the same size: both are two hops. And to a worker that is
just receiving a snapshot of 60 MB at 100 Mbit/s: small updates must not wait behind it.
"""

import asyncio
import sys
import time
from statistics import median
from typing import Final

import numpy as np

from benchmarks.figures import Figure, at_most, within
from benchmarks.programs import FIRST_CORE, LAST_CORE, Program, on_core
from benchmarks.rivals import udp_echo
from benchmarks.workers import closing, join_all, update_of_size
from gradwire_udp import new_event_loop
from support.emulator import emulated_link
from support.link import Link
from support.namespaces import can_have_machines

UPDATE_BYTES: Final = 4096
RUNS: Final = 5
ROUND_TRIPS: Final = 1000
"""Of each run, and as many before that are not counted."""

AIMS: Final = {50: 3.0, 99: 10.0}
"""Percentile, and times the echo's."""

SNAPSHOT_ELEMENTS: Final = 15_000_000
LINK_RATE: Final = 100e6
RTT: Final = 0.020
SLACK_SECONDS: Final = 0.020
ECHO_TRIPS: Final = 100

MASTER: Final = "master"
STREAM: Final = "benchmarks.update_stream"
ECHO: Final = udp_echo.__name__


def run() -> list[Figure]:
    """Measure."""
    figures = _under_no_load()
    if can_have_machines():
        figures.append(_beside_a_snapshot())
    else:
        print("no network namespaces here: no latency beside a snapshot", file=sys.stderr)
    return figures


def _under_no_load() -> list[Figure]:
    elements, body = update_of_size(UPDATE_BYTES, 100 * UPDATE_BYTES)
    ours, echoes = [], []
    with (
        Program("gradwire", MASTER, "--listen", "127.0.0.1:0", "--http", "off",
                core=FIRST_CORE, quiet=True) as master,
        Program(ECHO, "serve", "--host", "127.0.0.1", core=FIRST_CORE) as echo,
        on_core(LAST_CORE),
    ):  # fmt: skip
        address = ("127.0.0.1", int(echo.announcement["port"]))
        for _ in range(RUNS):
            with asyncio.Runner(loop_factory=lambda: new_event_loop("auto")) as runner:
                there = runner.run(_relayed(str(master.announcement["master"]), elements, body))
            ours.append(there[ROUND_TRIPS:])
            back = udp_echo.round_trips(address, bytes(UPDATE_BYTES), 2 * ROUND_TRIPS)
            echoes.append(back[ROUND_TRIPS:])

    figures = []
    for percentile, aim in AIMS.items():
        value, rival = (
            1e6 * median(float(np.percentile(run, percentile)) for run in runs)
            for runs in (ours, echoes)
        )
        name = f"update of {len(body) / 1000:.1f} KB through the master, p{percentile}"
        rival_name = f"raw UDP echo of {UPDATE_BYTES} B"
        figures.append(at_most(name, value, "us", rival_name, rival, aim=aim, runs=RUNS))
    return figures


async def _relayed(master: str, elements: int, body: bytes) -> list[float]:
    """Send updates from one worker to another, the next one when nothing is under way."""
    happened = asyncio.Event()
    one, other = workers = await join_all(2, elements, master, happened)
    came = 0.0

    def note(sequence: int) -> None:
        nonlocal came
        came = time.perf_counter()

    other.on_update_received = note
    taken = []
    with closing(workers):
        for i in range(1, 2 * ROUND_TRIPS + 1):
            began = time.perf_counter()
            one.push(body)
            while other.received < i or one.delivered < i:
                await asyncio.wait_for(happened.wait(), 10)
                happened.clear()
            taken.append(came - began)
    return taken


def _beside_a_snapshot() -> Figure:
    link = Link(rate=LINK_RATE, delay=RTT / 2)
    elements = ("--elements", str(SNAPSHOT_ELEMENTS))
    with emulated_link(link, link, seed=1) as (here, there):
        with Program(ECHO, "serve", "--host", here.address, prefix=here.prefix) as echo:
            port = str(echo.announcement["port"])
            with Program(ECHO, "measure", "--host", here.address, "--port", port, "--count",
                         str(ECHO_TRIPS), prefix=there.prefix) as client:  # fmt: skip
                rival = float(np.percentile(client.announcement["seconds"], 99))
        with Program("gradwire", MASTER, "--listen", f"{here.address}:0", "--http", "off",
                     prefix=here.prefix, quiet=True) as master:  # fmt: skip
            at = ("--master", str(master.announcement["master"]))
            with (
                Program(STREAM, "push", *at, *elements, prefix=here.prefix) as pusher,
                Program(STREAM, "receive", *at, *elements, prefix=there.prefix) as receiver,
            ):
                pusher.tell()
                came = receiver.read()
                pusher.tell()
                sent = pusher.read()["at"]
    taken = [at - sent[sequence] for sequence, at in came["at"].items()]
    print(
        f"snapshot of {4e-6 * SNAPSHOT_ELEMENTS:g} MB in {came['seconds']:.2f} s, "
        f"{len(taken)} updates meanwhile, median {1e3 * median(taken):.1f} ms",
        file=sys.stderr,
    )
    name = f"4 KB update while a snapshot flows, {1e3 * RTT:g} ms, p99"
    return within(name, 1e3 * float(np.percentile(taken, 99)), "ms",
                  "raw UDP echo, idle link, p99", 1e3 * rival,
                  aim=1e3 * (2 * RTT + SLACK_SECONDS), runs=1)  # fmt: skip
