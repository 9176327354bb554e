"""What sealing costs: flows and a relay with every packet encrypted, beside the same without.

AES-256-GCM, as workers and masters with keys use it where the processor computes AES. Sender and
receiver, or relay and workers, have a core each.
"""

from functools import partial
from statistics import median
from typing import Final

from benchmarks import endpoint_relay
from benchmarks.figures import Figure, reaching
from benchmarks.flows import OURS, measure_flow
from benchmarks.programs import Meter
from benchmarks.relay import UPDATE_BYTES, exchange_with, work_of
from benchmarks.work import Rate, Work

SECONDS: Final = 3.0
RUNS: Final = 3
FLOW_AIMS: Final = {1400: 5.0, 8900: 12.0}
"""Bytes of a datagram, and the aim in Gbit/s."""

WORKERS: Final = 16
RELAY_AIM: Final = 4.0


def run() -> list[Figure]:
    """Measure."""
    figures = [_flow(size, aim) for size, aim in FLOW_AIMS.items()]
    return [*figures, _relay()]


def _flow(size: int, aim: float) -> Figure:
    rates: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(RUNS):
        for sealed, measured in rates.items():
            options = ("--datagram-bytes", str(size), *(("--sealed",) if sealed else ()))
            flow = measure_flow(OURS, *options, seconds=SECONDS)
            measured.append(flow.megabits_per_second / 1000)
    return reaching(f"one flow, loopback, {size} B, sealed", median(rates[True]), "Gbit/s",
                    "the same, not sealed", median(rates[False]), aim=aim, runs=RUNS)  # fmt: skip


def _relay() -> Figure:
    work = work_of(WORKERS, bytes(UPDATE_BYTES))
    measures = {
        True: partial(exchange_with, endpoint_relay, arguments=("--sealed",)),
        False: partial(exchange_with, endpoint_relay),
    }
    rates: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(RUNS):
        for sealed, measure in measures.items():
            rates[sealed].append(_rate(work, measure(work)))
    return reaching(f"relay of {UPDATE_BYTES // 1000} KB among {WORKERS}, sealed",
                    median(rates[True]), "Gbit/s", "the same, not sealed", median(rates[False]),
                    aim=RELAY_AIM, runs=RUNS)  # fmt: skip


def _rate(work: Work, meter: Meter) -> float:
    return Rate.of(work, meter).gigabits_per_second
