"""Goodput of one flow at 200 Mbit/s with random loss, beside TCP on the same emulated link.

Loss is independent, and the same in both directions; the queue holds one bandwidth-delay product.
The start of a flow counts. TCP runs one after the other with us over one emulator, each with the
congestion control it has by default (cubic) and with BBR.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure, at_least, beside
from benchmarks.flows import OURS, TCP, flow_between
from benchmarks.pictures import Lines, draw_lines
from support.emulator import emulated_link
from support.link import Link
from support.namespaces import can_have_machines

MEGABITS: Final = 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    seconds: float = 20.0
    """Of each flow."""
    rtts: Sequence[float] = (0.020, 0.050, 0.100)
    """With each of the losses that have an aim."""
    losses_drawn: Sequence[float] = (0.0, 0.001, 0.01, 0.03)


FULL: Final = Plan()
QUICK: Final = Plan(seconds=0.3, rtts=(), losses_drawn=(0.01,))

LINK_AIMS: Final = {0.01: 0.85, 0.03: 0.75}
"""Of the link, by loss."""
CUBIC_AIM: Final = 20.0
RTT_DRAWN: Final = 0.050

LINK, CUBIC, BBR = "the link", "TCP cubic", "TCP BBR"


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    if not can_have_machines():
        print("no network namespaces here: nothing can be emulated", file=sys.stderr)
        return []
    cells = {(loss, rtt) for rtt in plan.rtts for loss in LINK_AIMS}
    cells |= {(loss, RTT_DRAWN) for loss in plan.losses_drawn}
    return [figure for loss, rtt in sorted(cells) for figure in _measure(loss, rtt, plan.seconds)]


def _name(loss: float, rtt: float) -> str:
    return f"goodput at {100 * loss:g} % loss, {1000 * rtt:g} ms"


def _measure(loss: float, rtt: float, seconds: float) -> list[Figure]:
    link = Link(rate=1e6 * MEGABITS, delay=rtt / 2, loss=loss)
    with emulated_link(link, link, seed=round(1e6 * loss + 1e3 * rtt)) as (sender, receiver):
        flow = flow_between(sender, receiver, seconds)
        ours, cubic, bbr = (flow(OURS), flow(TCP, "--congestion", "cubic"),
                            flow(TCP, "--congestion", "bbr"))  # fmt: skip
    name = _name(loss, rtt)
    aim = LINK_AIMS.get(loss)
    beside_bbr = beside(name, ours, "Mbit/s", BBR, bbr, runs=1)
    if aim is None:
        return [
            beside(name, ours, "Mbit/s", LINK, MEGABITS, runs=1),
            beside(name, ours, "Mbit/s", CUBIC, cubic, runs=1),
            beside_bbr,
        ]
    return [
        at_least(name, ours, "Mbit/s", LINK, MEGABITS, aim=aim, runs=1),
        at_least(name, ours, "Mbit/s", CUBIC, cubic, aim=CUBIC_AIM, runs=1),
        beside_bbr,
    ]


def draw(figures: list[Figure], folder: Path, plan: Plan) -> None:
    """Draw the goodput against the loss."""
    of_rival = {(figure.figure, figure.rival): figure for figure in figures}
    names = [_name(loss, RTT_DRAWN) for loss in plan.losses_drawn]
    draw_lines(
        Lines(
            title=f"One flow, {MEGABITS:g} Mbit/s, {1000 * RTT_DRAWN:g} ms round trip",
            categories=[f"{100 * loss:g} %" for loss in plan.losses_drawn],
            x_label="packets lost at random",
            y_label="goodput, Mbit/s",
            series={"gradwire": [of_rival[name, LINK].value for name in names]}
            | {
                rival: [of_rival[name, rival].rival_value for name in names]
                for rival in (BBR, CUBIC)
            },
            limit=("the link", MEGABITS),
        ),
        folder / "goodput-against-loss.png",
    )
