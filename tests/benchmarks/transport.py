"""One flow between two processes, each on a core of its own, beside TCP on the same path.

Over loopback a train of datagrams stays in one piece. Over a virtual cable whose offloads are off,
the sending kernel cuts it into packets, and the receiving one joins them again (GRO) or does not:
this is what a network card without such features costs.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final

from benchmarks.figures import Figure, reaching
from benchmarks.flows import LOOPBACK, OURS, TCP, Flow, measure_flow
from support.namespaces import can_have_machines, veth_pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    seconds: float = 3.0
    """Of each flow."""
    runs: int = 3
    datagrams: Sequence[int] = (1400, 8900)
    """Bytes of one, over loopback."""
    gro: Sequence[bool] = (True, False)
    """Whether the receiver's kernel joins packets, over the cable."""


FULL: Final = Plan()
QUICK: Final = Plan(seconds=0.3, runs=1, datagrams=(1400,), gro=(False,))

LOOPBACK_AIMS: Final = {1400: 10.0, 8900: 15.0}
"""Bytes of a datagram, and the aim in Gbit/s."""

CABLE_AIMS: Final = {True: 6.0, False: 1.4}
"""With the receiver's GRO and without, 1,400 bytes."""


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    loopback = partial(_flow, plan.seconds)
    figures = [
        _figure(f"one flow, loopback, {size} B", LOOPBACK_AIMS[size], loopback, size, plan.runs)
        for size in plan.datagrams
    ]
    if not can_have_machines():
        print("no network namespaces here: the figures over veth are left out", file=sys.stderr)
        return figures
    for gro in plan.gro:
        with veth_pair(gro=gro) as (sender, receiver):
            name = f"one flow, veth cut in software, GRO {'on' if gro else 'off'}, 1400 B"
            cable = partial(
                _flow, plan.seconds, to=receiver.address,
                sender_prefix=sender.prefix, receiver_prefix=receiver.prefix,
            )  # fmt: skip
            figures.append(_figure(name, CABLE_AIMS[gro], cable, 1400, plan.runs))
    return figures


def _flow(
    seconds: float,
    module: str,
    size: int,
    *,
    to: str = LOOPBACK,
    sender_prefix: Sequence[str] = (),
    receiver_prefix: Sequence[str] = (),
) -> Flow:
    return measure_flow(
        module, "--datagram-bytes", str(size), seconds=seconds, to=to,
        sender_prefix=sender_prefix, receiver_prefix=receiver_prefix,
    )  # fmt: skip


def _figure(
    name: str, aim: float, flow: Callable[[str, int], Flow], size: int, runs: int
) -> Figure:
    ours: list[Flow] = []
    rivals: list[Flow] = []
    for _ in range(runs):
        ours.append(flow(OURS, size))
        rivals.append(flow(TCP, size))
    print(
        f"{name}: load of sender and receiver {_load(ours)}, of TCP's {_load(rivals)}",
        file=sys.stderr,
    )
    return reaching(name, _gigabits(ours), "Gbit/s", "TCP, same path", _gigabits(rivals),
                    aim=aim, runs=runs)  # fmt: skip


def _gigabits(flows: Sequence[Flow]) -> float:
    return median(flow.megabits_per_second for flow in flows) / 1000


def _load(flows: Sequence[Flow]) -> str:
    sender = median(flow.sender_load for flow in flows)
    return f"{sender:.2f} and {median(flow.receiver_load for flow in flows):.2f}"
