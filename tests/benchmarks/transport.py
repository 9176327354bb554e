"""One flow between two processes, each on a core of its own, beside TCP on the same path.

Over loopback a train of datagrams stays in one piece. Over a virtual cable whose offloads are off,
the sending kernel cuts it into packets, and the receiving one joins them again (GRO) or does not:
this is what a network card without such features costs.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Final

from benchmarks.figures import Figure, reaching
from benchmarks.flows import LOOPBACK, OURS, TCP, Flow, measure_flow
from support.namespaces import Machine, can_have_machines, veth_pair

SECONDS: Final = 3.0
RUNS: Final = 3
LOOPBACK_AIMS: Final = {1400: 10.0, 8900: 15.0}
"""Bytes of a datagram, and the aim in Gbit/s."""

CABLE_AIMS: Final = {True: 6.0, False: 1.4}
"""With the receiver's GRO and without, 1,400 bytes."""


def run() -> list[Figure]:
    """Measure."""
    figures = [
        _figure(f"one flow, loopback, {size} B", aim, _flow_over_loopback, size)
        for size, aim in LOOPBACK_AIMS.items()
    ]
    if not can_have_machines():
        print("no network namespaces here: the figures over veth are left out", file=sys.stderr)
        return figures
    for gro, aim in CABLE_AIMS.items():
        with veth_pair(gro=gro) as (sender, receiver):
            name = f"one flow, veth cut in software, GRO {'on' if gro else 'off'}, 1400 B"
            flow = partial(_flow_between, sender, receiver)
            figures.append(_figure(name, aim, flow, 1400))
    return figures


def _flow_over_loopback(module: str, size: int) -> Flow:
    return measure_flow(module, "--datagram-bytes", str(size), seconds=SECONDS, to=LOOPBACK)


def _flow_between(sender: Machine, receiver: Machine, module: str, size: int) -> Flow:
    return measure_flow(
        module, "--datagram-bytes", str(size), seconds=SECONDS, to=receiver.address,
        sender_prefix=sender.prefix, receiver_prefix=receiver.prefix,
    )  # fmt: skip


def _figure(name: str, aim: float, flow: Callable[[str, int], Flow], size: int) -> Figure:
    ours: list[Flow] = []
    rivals: list[Flow] = []
    for _ in range(RUNS):
        ours.append(flow(OURS, size))
        rivals.append(flow(TCP, size))
    print(
        f"{name}: load of sender and receiver {_load(ours)}, of TCP's {_load(rivals)}",
        file=sys.stderr,
    )
    return reaching(name, _gigabits(ours), "Gbit/s", "TCP, same path", _gigabits(rivals),
                    aim=aim, runs=RUNS)  # fmt: skip


def _gigabits(flows: Sequence[Flow]) -> float:
    return median(flow.megabits_per_second for flow in flows) / 1000


def _load(flows: Sequence[Flow]) -> str:
    sender = median(flow.sender_load for flow in flows)
    return f"{sender:.2f} and {median(flow.receiver_load for flow in flows):.2f}"
