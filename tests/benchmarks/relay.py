"""Relaying 300 KB updates among 2 to 16 workers over loopback, in datagrams of 1,400 bytes.

The relay runs on one core. All workers live in this process, on the other one, and do nothing but
send and receive; so what is measured is the relay: the bytes that it hands on per second, and per
second of its processor time. The rivals do the same work with the same workers' part.

Two of ours are measured: the transport alone, which does what the rivals do, and a real master,
which decodes each update too and adds it to its replica.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import endpoint_relay, scaling
from benchmarks.figures import Figure, at_least, beside, reaching
from benchmarks.pictures import Lines, draw_lines
from benchmarks.programs import FIRST_CORE, LAST_CORE, Meter, Program, on_core
from benchmarks.rivals import datagram_transport, tcp_relay, zeromq_relay
from benchmarks.work import Rate, Work
from benchmarks.workers import closing, join_all, update_of_size
from gradwire_udp import new_event_loop

UPDATE_BYTES: Final = 300_000
WORKERS: Final = (2, 4, 8, 16)
WORKERS_AIMED: Final = (4, 16)
RUNS: Final = 3
GIGABITS: Final = 6.0
"""What a relay has to send in one measurement; a sixth of it where datagrams go one by one."""

MASTER, TRANSPORT = "gradwire master", "gradwire transport"
ZEROMQ, TCP = "ZeroMQ PUB/SUB over TCP", "asyncio TCP server"
DATAGRAMS, DATAGRAMS_UVLOOP = "DatagramTransport", "DatagramTransport on uvloop"


def run() -> list[Figure]:
    """Measure."""
    elements, body = update_of_size(UPDATE_BYTES)
    figures = []
    for workers in WORKERS:
        rates: dict[str, list[Rate]] = {}
        for _ in range(RUNS):
            for name, measure in _relays(elements).items():
                share = 6 if name in (DATAGRAMS, DATAGRAMS_UVLOOP) else 1
                work = work_of(workers, body, GIGABITS / share)
                rates.setdefault(name, []).append(Rate.of(work, measure(work)))
        figures += _figures(workers, rates)
    return figures + scaling.run()


def work_of(workers: int, body: bytes, gigabits: float = GIGABITS) -> Work:
    """Return as many updates as it takes for a relay to send so much."""
    one = Work(workers, 1, body).gigabits_out
    return Work(workers, max(1, round(gigabits / one)), body)


def _relays(elements: int) -> dict[str, Callable[[Work], Meter]]:
    """Return what does the work, ours and the rivals, by name."""
    datagrams = partial(exchange_with, datagram_transport)
    return {
        TRANSPORT: partial(exchange_with, endpoint_relay),
        ZEROMQ: partial(exchange_with, zeromq_relay),
        MASTER: partial(_exchange_with_master, elements),
        TCP: partial(exchange_with, tcp_relay),
        DATAGRAMS: partial(datagrams, arguments=("--loop", "asyncio")),
        DATAGRAMS_UVLOOP: partial(datagrams, arguments=("--loop", "uvloop")),
    }


def exchange_with(module: Any, work: Work, arguments: tuple[str, ...] = ()) -> Meter:
    """Start a relay that is a module with an `exchange`, and let workers use it."""
    with (
        Program(module.__name__, *arguments, core=FIRST_CORE) as relay,
        on_core(LAST_CORE),
    ):
        meter: Meter = module.exchange(relay.announcement, relay.pid, work)
        return meter


def _exchange_with_master(elements: int, work: Work) -> Meter:
    with (
        Program("gradwire", "master", "--listen", "127.0.0.1:0", "--http", "off",
                core=FIRST_CORE, quiet=True) as master,
        on_core(LAST_CORE),
        asyncio.Runner(loop_factory=lambda: new_event_loop("auto")) as runner,
    ):  # fmt: skip
        address = str(master.announcement["master"])
        return runner.run(_send_and_receive(address, master.pid, elements, work))


async def _send_and_receive(address: str, pid: int, elements: int, work: Work) -> Meter:
    happened = asyncio.Event()
    workers = await join_all(work.workers, elements, address, happened)
    with closing(workers):
        with Meter(pid) as meter:
            while any(worker.received < work.expected for worker in workers):
                # The master has no end to its queues but to drop who is too slow.
                slowest = min(worker.received for worker in workers) // work.others
                for worker in workers:
                    ahead = min(worker.delivered, slowest + work.AHEAD) + work.AHEAD
                    while worker.sent < min(work.updates, ahead):
                        worker.push(work.body)
                await asyncio.wait_for(happened.wait(), 60)
                happened.clear()
        return meter


def _name(who: str, workers: int) -> str:
    return f"{who} relays {UPDATE_BYTES // 1000} KB among {workers}"


def _figures(workers: int, rates: dict[str, list[Rate]]) -> list[Figure]:
    out = {who: median(r.gigabits_per_second for r in rates[who]) for who in rates}
    per_processor = {
        who: median(r.gigabits_per_processor_second for r in rates[who]) for who in rates
    }
    figures = []
    for who in (TRANSPORT, MASTER):
        name, value = _name(who, workers), out[who]
        if workers in WORKERS_AIMED:
            figures += [
                reaching(name, value, "Gbit/s", ZEROMQ, out[ZEROMQ], aim=5, runs=RUNS),
                at_least(f"{name}, per processor second", per_processor[who], "Gbit", ZEROMQ,
                         per_processor[ZEROMQ], aim=2, runs=RUNS),
                at_least(name, value, "Gbit/s", DATAGRAMS, out[DATAGRAMS], aim=10, runs=RUNS),
            ]  # fmt: skip
            without_aim: tuple[str, ...] = (DATAGRAMS_UVLOOP, TCP)
        else:
            without_aim = (ZEROMQ, DATAGRAMS, DATAGRAMS_UVLOOP, TCP)
        if who == MASTER:
            without_aim = tuple(rival for rival in without_aim if rival == ZEROMQ)
        figures += [
            beside(name, value, "Gbit/s", rival, out[rival], runs=RUNS) for rival in without_aim
        ]
    return figures


def draw(figures: list[Figure], folder: Path) -> None:
    """Draw the rates against the number of workers."""
    of_rival = {(figure.figure, figure.rival): figure for figure in figures}
    rates = {
        who: [of_rival[_name(who, workers), ZEROMQ].value for workers in WORKERS]
        for who in (TRANSPORT, MASTER)
    }
    for rival in (ZEROMQ, TCP, DATAGRAMS, DATAGRAMS_UVLOOP):
        rates[rival] = [
            of_rival[_name(TRANSPORT, workers), rival].rival_value for workers in WORKERS
        ]
    draw_lines(
        Lines(
            title=f"Relaying {UPDATE_BYTES // 1000} KB updates over loopback, one core",
            categories=[str(workers) for workers in WORKERS],
            x_label="workers",
            y_label="sent by the relay, Gbit/s",
            series=rates,
        ),
        folder / "relay-rate.png",
    )
