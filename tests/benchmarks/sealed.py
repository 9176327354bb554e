"""What sealing costs: flows and a relay with every packet encrypted, beside the same without.

AES-256-GCM, as workers and masters with keys use it where the processor computes AES. Sender and
receiver, or relay and workers, have a core each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.figures import Figure, reaching
from benchmarks.flows import OURS, measure_flow
from benchmarks.programs import Meter
from benchmarks.relay import GIGABITS, UPDATE_BYTES, exchange_sealed, work_of
from benchmarks.work import Rate, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    seconds: float = 3.0
    """Of each flow."""
    runs: int = 3
    datagrams: Sequence[int] = (1400, 8900)
    """Bytes of one."""
    workers: int = 16
    """Of the relay."""
    gigabits: float = GIGABITS
    """What it sends in one measurement."""


FULL: Final = Plan()
QUICK: Final = Plan(seconds=0.3, runs=1, datagrams=(1400,), workers=2, gigabits=0.02)

FLOW_AIMS: Final = {1400: 5.0, 8900: 12.0}
"""Bytes of a datagram, and the aim in Gbit/s."""

RELAY_AIM: Final = 4.0


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    return [*(_flow(size, plan) for size in plan.datagrams), _relay(plan)]


def _flow(size: int, plan: Plan) -> Figure:
    rates: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(plan.runs):
        for sealed, measured in rates.items():
            options = ("--datagram-bytes", str(size), *(("--sealed",) if sealed else ()))
            flow = measure_flow(OURS, *options, seconds=plan.seconds)
            measured.append(flow.megabits_per_second / 1000)
    return reaching(f"one flow, loopback, {size} B, sealed", median(rates[True]), "Gbit/s",
                    "the same, not sealed", median(rates[False]), aim=FLOW_AIMS[size],
                    runs=plan.runs)  # fmt: skip


def _relay(plan: Plan) -> Figure:
    work = work_of(plan.workers, bytes(UPDATE_BYTES), plan.gigabits)
    rates: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(plan.runs):
        for sealed, measured in rates.items():
            measured.append(_rate(work, exchange_sealed(work, sealed=sealed)))
    return reaching(f"relay of {UPDATE_BYTES // 1000} KB among {plan.workers}, sealed",
                    median(rates[True]), "Gbit/s", "the same, not sealed", median(rates[False]),
                    aim=RELAY_AIM, runs=plan.runs)  # fmt: skip


def _rate(work: Work, meter: Meter) -> float:
    return Rate.of(work, meter).gigabits_per_second
