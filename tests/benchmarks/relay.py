"""Relaying 300 KB updates among 2 to 16 workers over loopback, in datagrams of 1,400 bytes.

The relay runs on one core. All workers live in this process, on the other one, and do nothing but
send and receive; so what is measured is the relay: the bytes that it hands on per second, and per
second of its processor time. The rivals do the same work with the same workers' part.

Two of ours are measured: the transport alone, which does what the rivals do, and a real master,
which decodes each update too and adds it to its replica. It passes on as one sum what has come
together, and is counted by what its workers have then, as if each update had come by itself. All
updates here are the same one, so such a sum is no larger.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import endpoint_relay, scaling
from benchmarks.figures import Figure, at_least, beside, reaching
from benchmarks.masters import Master, form
from benchmarks.pictures import OURS, Lines, draw_lines
from benchmarks.programs import FIRST_CORE, LAST_CORE, Meter, Program, on_core
from benchmarks.rivals import datagram_transport, tcp_relay, zeromq_relay
from benchmarks.work import Rate, Work
from benchmarks.workers import Progress, closing, join_all, update_of_size
from gradwire_udp import new_event_loop

UPDATE_BYTES: Final = 300_000
GIGABITS: Final = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    workers: Sequence[int] = (2, 4, 8, 16)
    runs: int = 3
    gigabits: float = GIGABITS
    """What a relay has to send in one measurement; a sixth where datagrams go one by one."""
    scaling_plan: scaling.Plan = scaling.FULL
    keys: bool = True
    """Whether our relays and their workers have keys; no rival has any."""


FULL: Final = Plan()
QUICK: Final = Plan(workers=(2,), runs=1, gigabits=0.02, scaling_plan=scaling.QUICK)

WORKERS_AIMED: Final = (4, 16)

MASTER, TRANSPORT = "gradwire master", "gradwire transport"
ZEROMQ, TCP = "ZeroMQ PUB/SUB over TCP", "asyncio TCP server"
DATAGRAMS, DATAGRAMS_UVLOOP = "DatagramTransport", "DatagramTransport on uvloop"


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    elements, body = update_of_size(UPDATE_BYTES)
    figures = []
    for workers in plan.workers:
        rates: dict[str, list[Rate]] = {}
        for _ in range(plan.runs):
            for name, measure in _relays(elements, keys=plan.keys).items():
                share = 6 if name in (DATAGRAMS, DATAGRAMS_UVLOOP) else 1
                work = work_of(workers, body, plan.gigabits / share)
                rates.setdefault(name, []).append(Rate.of(work, measure(work)))
        figures += _figures(workers, rates, plan)
    return figures + scaling.run(plan.scaling_plan)


def work_of(workers: int, body: bytes, gigabits: float) -> Work:
    """Return as many updates as it takes for a relay to send so much."""
    one = Work(workers, 1, body).gigabits_out
    return Work(workers, max(1, round(gigabits / one)), body)


def _relays(elements: int, *, keys: bool) -> dict[str, Callable[[Work], Meter]]:
    """Return what does the work, ours and the rivals, by name."""
    datagrams = partial(exchange_with, datagram_transport)
    return {
        TRANSPORT: partial(exchange_sealed, sealed=keys),
        ZEROMQ: partial(exchange_with, zeromq_relay),
        MASTER: partial(_exchange_with_master, elements, keys=keys),
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


def exchange_sealed(work: Work, *, sealed: bool) -> Meter:
    """Let our transport relay, with every packet encrypted or without."""
    return exchange_with(endpoint_relay, work, ("--sealed",) if sealed else ())


def _exchange_with_master(elements: int, work: Work, *, keys: bool) -> Meter:
    with (
        Master(keys=keys, core=FIRST_CORE) as master,
        on_core(LAST_CORE),
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        return runner.run(_send_and_receive(master, elements, work))


async def _send_and_receive(master: Master, elements: int, work: Work) -> Meter:
    progress = Progress()
    workers = await join_all(work.workers, elements, master, progress)
    ahead_max = 2 * work.AHEAD
    with closing(workers):
        with Meter(master.pid) as meter:
            while any(worker.received < work.expected for worker in workers):
                slowest = min(worker.received for worker in workers) // work.others
                for worker in workers:
                    ahead = min(worker.delivered + work.AHEAD, slowest + ahead_max)
                    while worker.sent < min(work.updates, ahead):
                        worker.push(work.body)
                await progress.wait(60)
        return meter


def _name(who: str, workers: int, plan: Plan) -> str:
    return f"{who} relays {UPDATE_BYTES // 1000} KB among {workers}, {form(keys=plan.keys)}"


def _figures(workers: int, rates: dict[str, list[Rate]], plan: Plan) -> list[Figure]:
    runs = plan.runs
    out = {who: median(r.gigabits_per_second for r in rates[who]) for who in rates}
    per_processor = {
        who: median(r.gigabits_per_processor_second for r in rates[who]) for who in rates
    }
    figures = []
    for who in (TRANSPORT, MASTER):
        name, value = _name(who, workers, plan), out[who]
        if workers in WORKERS_AIMED:
            figures += [
                reaching(name, value, "Gbit/s", ZEROMQ, out[ZEROMQ], aim=5, runs=runs),
                at_least(f"{name}, per processor second", per_processor[who], "Gbit", ZEROMQ,
                         per_processor[ZEROMQ], aim=2, runs=runs),
                at_least(name, value, "Gbit/s", DATAGRAMS, out[DATAGRAMS], aim=10, runs=runs),
            ]  # fmt: skip
            without_aim: tuple[str, ...] = (DATAGRAMS_UVLOOP, TCP)
        else:
            without_aim = (ZEROMQ, DATAGRAMS, DATAGRAMS_UVLOOP, TCP)
        if who == MASTER:
            without_aim = tuple(rival for rival in without_aim if rival == ZEROMQ)
        figures += [
            beside(name, value, "Gbit/s", rival, out[rival], runs=runs) for rival in without_aim
        ]
    return figures


def draw(figures: list[Figure], folder: Path, plan: Plan) -> None:
    """Draw the rates against the number of workers."""
    of_rival = {(figure.figure, figure.rival): figure for figure in figures}
    rates = {
        who: [of_rival[_name(who, workers, plan), ZEROMQ].value for workers in plan.workers]
        for who in (TRANSPORT, MASTER)
    }
    for rival in (ZEROMQ, TCP, DATAGRAMS, DATAGRAMS_UVLOOP):
        rates[rival] = [
            of_rival[_name(TRANSPORT, workers, plan), rival].rival_value for workers in plan.workers
        ]
    draw_lines(
        Lines(
            title=f"Relaying {UPDATE_BYTES // 1000} KB updates over loopback, one core, "
            f"{OURS} {form(keys=plan.keys)}",
            categories=[str(workers) for workers in plan.workers],
            x_label="workers",
            y_label="sent by the relay, Gbit/s",
            series=rates,
        ),
        folder / "relay-rate.png",
    )
