"""Links that lose in bursts, silence that ends and many at once, beside TCP where that can be.

Simulated, each figure is the worst or a percentile of all seeds: bulk, updates that come now and
then, a path that heals, the first messages of 32 workers, flows that share a link. Over an emulated
link, one bulk flow alternates with TCP cubic and TCP BBR, and shares a link with each of them, as
these do with each other.
"""

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.figures import Figure, at_least, beside, reaching, within
from benchmarks.flows import OURS, TCP, flow_between
from benchmarks.pictures import Lines, draw_lines
from support import bad_links
from support.bad_links import Bursts, Healing, Rush
from support.emulator import emulated_link
from support.link import Link
from support.namespaces import can_have_machines

MEGABITS: Final = 100.0

Update = tuple[int, float]
"""Bytes, and seconds from one to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    seeds: int = 20
    bursts: Sequence[tuple[float, float]] = ((0.005, 5.0), (0.02, 20.0), (0.03, 40.0))
    """Mean loss and mean length; each by packets and by time."""
    rtts: Sequence[float] = (0.010, 0.050, 0.100)
    bulk_seconds: float = 10.0
    updates: Sequence[Update] = ((1_000, 0.010), (40_000, 0.060), (300_000, 1.0))
    updates_count: int = 100
    gaps: Sequence[float] = (0.5, 3.0, 8.0, 30.0)
    rush_rtts: Sequence[float] = (0.001, 0.010)
    rush_seeds: int = 3
    flows: Sequence[int] = (2, 4, 16)
    flows_seconds: float = 40.0
    flows_seeds: int = 3
    real_runs: int = 3
    real_seconds: float = 10.0
    real_lengths: Sequence[float] = (1.0, 5.0, 20.0, 40.0)
    """Bursts over the emulated link, of which `REAL_LOSS` are lost."""
    shared_seconds: float = 30.0


FULL: Final = Plan()
QUICK: Final = Plan(
    seeds=1,
    bursts=((0.02, 20.0),),
    rtts=(0.010,),
    bulk_seconds=0.5,
    updates=((40_000, 0.060),),
    updates_count=10,
    gaps=(0.5,),
    rush_rtts=(),
    flows=(),
    real_runs=1,
    real_seconds=0.3,
    real_lengths=(20.0,),
    shared_seconds=0.3,
)

BULK_AIM: Final = 0.8
"""Of the link, for every seed."""
UPDATES_AIM: Final = 6.0
"""Round trips."""
HEALING_AIM: Final = 2.0
HEALING_SECONDS_AIM: Final = 0.5
LONG_GAP_SECONDS: Final = 3.0
"""Probe timeouts after a silence up to this, and seconds after a longer one."""
RUSH_AIM: Final = 3.0
AGAIN_AIM: Final = 0.1
JAIN_AIM: Final = 0.9
BBR_AIM: Final = 0.95
SHARE_AIM: Final = 1.5

REAL_LOSS: Final = 0.02
REAL_RTT: Final = 0.050

LINK, BBR, CUBIC = "the link", "TCP BBR", "TCP cubic"
CONGESTION: Final = {BBR: "bbr", CUBIC: "cubic"}
ONE_TRIP: Final = "a round trip"


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    context = get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:

        def play(scenario: Callable[..., Any], seeds: int) -> list[Any]:
            return list(pool.map(scenario, range(seeds)))

        figures = [*_bulk(plan, play), *_updates(plan, play), *_healing(plan, play)]
        figures += [*_rushes(plan, play), *_sharing(plan, play)]
    if can_have_machines():
        figures += [figure for length in plan.real_lengths for figure in _real(length, plan)]
        figures += [_shared(BBR, CUBIC, plan), _shared(CUBIC, BBR, plan)]
    else:
        print("no network namespaces here: nothing can be emulated", file=sys.stderr)
    return figures


Play = Callable[[Callable[..., Any], int], list[Any]]


def _name_of(bursts: Bursts | None, rtt: float) -> str:
    return f"{bursts or 'nothing lost'}, {1000 * rtt:g} ms"


def _bulk(plan: Plan, play: Play) -> list[Figure]:
    figures = []
    for mean, packets in plan.bursts:
        for by_time in (False, True):
            for rtt in plan.rtts:
                bursts = Bursts(mean=mean, packets=packets, by_time=by_time)
                scenario = partial(
                    bad_links.bulk, rtt=rtt, bursts=bursts, mbit=MEGABITS, seconds=plan.bulk_seconds
                )
                worst = MEGABITS * min(play(scenario, plan.seeds))
                name = f"worst simulated bulk, {_name_of(bursts, rtt)}"
                figures.append(
                    at_least(name, worst, "Mbit/s", LINK, MEGABITS, aim=BULK_AIM, runs=plan.seeds)
                )
    return figures


def _updates_name(update: Update, bursts: Bursts | None, rtt: float) -> str:
    size, spacing = update
    return f"p99 of {size / 1000:g} KB every {1000 * spacing:g} ms, {_name_of(bursts, rtt)}"


def _bursts_of_updates(plan: Plan) -> list[Bursts | None]:
    mean, packets = plan.bursts[-1]
    return [None, *(Bursts(mean=mean, packets=packets, by_time=kind) for kind in (True, False))]


def _updates(plan: Plan, play: Play) -> list[Figure]:
    figures = []
    for size, spacing in plan.updates:
        for bursts in _bursts_of_updates(plan):
            for rtt in plan.rtts:
                scenario = partial(
                    bad_links.updates, size=size, spacing=spacing, rtt=rtt, bursts=bursts,
                    mbit=MEGABITS, count=plan.updates_count,
                )  # fmt: skip
                seconds = [each for times in play(scenario, plan.seeds) for each in times]
                p99 = 1000 * bad_links.percentile(seconds, 0.99)
                name = _updates_name((size, spacing), bursts, rtt)
                figures.append(
                    _at_most_trips(name, p99, 1000 * rtt, runs=plan.seeds)
                )  # fmt: skip
    return figures


def _at_most_trips(name: str, milliseconds: float, rtt: float, *, runs: int) -> Figure:
    ratio = milliseconds / rtt
    return Figure(name, milliseconds, "ms", ONE_TRIP, rtt, ratio, f"<= {UPDATES_AIM:g}x",
                  ratio <= UPDATES_AIM, runs)  # fmt: skip


def _healing(plan: Plan, play: Play) -> list[Figure]:
    figures = []
    for gap in plan.gaps:
        for rtt in plan.rtts:
            healed: list[Healing] = play(partial(bad_links.heal, gap=gap, rtt=rtt), plan.seeds)
            name = f"first data after a silence of {gap:g} s, {1000 * rtt:g} ms"
            slowest = max(healed, key=lambda each: each.seconds)
            seconds, timeout = slowest.seconds, slowest.probe_timeout
            if gap <= LONG_GAP_SECONDS:
                ratio = max(each.seconds / each.probe_timeout for each in healed)
                figures.append(
                    Figure(name, seconds, "s", "a probe timeout", timeout, ratio,
                           f"<= {HEALING_AIM:g}x", ratio <= HEALING_AIM, plan.seeds)
                )  # fmt: skip
            else:
                figures.append(within(name, seconds, "s", "a probe timeout", timeout,
                                      aim=HEALING_SECONDS_AIM, runs=plan.seeds))  # fmt: skip
    return figures


def _rushes(plan: Plan, play: Play) -> list[Figure]:
    figures = []
    for rtt in plan.rush_rtts:
        rushes: list[Rush] = play(partial(bad_links.rush, rtt=rtt), plan.rush_seeds)
        name = f"300 KB of 32 workers at once, 1 Gbit/s, {1000 * rtt:g} ms"
        slowest = max(rush.slowest for rush in rushes)
        again = max(rush.sent_again for rush in rushes)
        figures += [
            within(f"slowest of {name}", slowest, "times the least", "the least", 1.0,
                   aim=RUSH_AIM, runs=plan.rush_seeds),
            within(f"sent again, {name}", again, "of what is needed", "what is needed", 1.0,
                   aim=AGAIN_AIM, runs=plan.rush_seeds),
        ]  # fmt: skip
    return figures


def _sharing(plan: Plan, play: Play) -> list[Figure]:
    figures = []
    for count in plan.flows:
        scenario = partial(bad_links.share, count=count, seconds=plan.flows_seconds)
        worst = min(play(scenario, plan.flows_seeds))
        name = f"Jain's index of {count} flows, simulated"
        figures.append(reaching(name, worst, "", "equal shares", 1.0, aim=JAIN_AIM,
                                runs=plan.flows_seeds))  # fmt: skip
    return figures


def _real_name(length: float) -> str:
    return f"goodput at {100 * REAL_LOSS:g} % loss in bursts of {length:g}, {1000 * REAL_RTT:g} ms"


def _real(length: float, plan: Plan) -> list[Figure]:
    link = Link(
        rate=1e6 * MEGABITS,
        delay=REAL_RTT / 2,
        loss=REAL_LOSS,
        loss_burst=length if length > 1 else None,
    )
    back = Link(rate=1e6 * MEGABITS, delay=REAL_RTT / 2)
    rates: dict[str, list[float]] = {}
    for run_number in range(plan.real_runs):
        with emulated_link(link, back, seed=run_number) as (sender, receiver):
            flow = flow_between(sender, receiver, plan.real_seconds)
            rates.setdefault(OURS, []).append(flow(OURS))
            for rival in (BBR, CUBIC):
                rates.setdefault(rival, []).append(flow(TCP, "--congestion", CONGESTION[rival]))
    ours, bbr, cubic = (median(rates[name]) for name in (OURS, BBR, CUBIC))
    name, runs = _real_name(length), plan.real_runs
    return [
        at_least(name, ours, "Mbit/s", LINK, MEGABITS, aim=BULK_AIM, runs=runs),
        at_least(name, ours, "Mbit/s", BBR, bbr, aim=BBR_AIM, runs=runs),
        beside(name, ours, "Mbit/s", CUBIC, cubic, runs=runs),
    ]


def _shared(beside: str, instead: str, plan: Plan) -> Figure:
    """Return what a flow of ours gets beside one of TCP, and what another TCP gets in its place.

    Both flows begin at the same time, and nothing is lost but what overflows the queue.
    """
    link = Link(rate=1e6 * MEGABITS, delay=REAL_RTT / 2)

    def share_of(module: str, *options: str, seed: int) -> float:
        with (
            emulated_link(link, link, seed=seed) as (sender, receiver),
            ThreadPoolExecutor(1) as pool,
        ):
            flow = flow_between(sender, receiver, plan.shared_seconds)
            theirs = pool.submit(flow, TCP, "--congestion", CONGESTION[beside])
            ours, its = flow(module, *options), theirs.result()
        return 2 * ours / (ours + its)

    ours, others = [], []
    for run_number in range(plan.real_runs):
        ours.append(share_of(OURS, seed=run_number))
        others.append(share_of(TCP, "--congestion", CONGESTION[instead], seed=run_number))
    name = f"share beside {beside}, {1000 * REAL_RTT:g} ms"
    return within(name, median(ours), "fair shares", f"{instead} in its place", median(others),
                  aim=SHARE_AIM, runs=plan.real_runs)  # fmt: skip


def draw(figures: list[Figure], folder: Path, plan: Plan) -> None:
    """Draw goodput against the length of bursts, and the latency of updates."""
    found = {(figure.figure, figure.rival): figure for figure in figures}
    names = [_real_name(length) for length in plan.real_lengths]
    draw_lines(
        Lines(
            title=f"One flow, {MEGABITS:g} Mbit/s, {1000 * REAL_RTT:g} ms round trip, "
            f"{100 * REAL_LOSS:g} % of packets lost",
            categories=[f"{length:g}" for length in plan.real_lengths],
            x_label="packets lost in a row, on average",
            y_label="goodput, Mbit/s",
            series={"gradwire": [found[name, LINK].value for name in names]}
            | {rival: [found[name, rival].rival_value for name in names] for rival in (BBR, CUBIC)},
            limit=("the link", MEGABITS),
        ),
        folder / "goodput-against-bursts.png",
    )
    draw_lines(
        Lines(
            title=f"Updates over {MEGABITS:g} Mbit/s, simulated: p99 of {plan.seeds} seeds",
            categories=[f"{size / 1000:g} KB every {1000 * at:g} ms" for size, at in plan.updates],
            x_label="updates",
            y_label="round trips until an update has arrived",
            series={
                f"{1000 * rtt:g} ms, {bursts or 'nothing lost'}": [
                    found[_updates_name(update, bursts, rtt), ONE_TRIP].ratio
                    for update in plan.updates
                ]
                for rtt in (plan.rtts[0], plan.rtts[-1])
                for bursts in _bursts_of_updates(plan)[:2]
            },
            limit=("the aim", UPDATES_AIM),
        ),
        folder / "updates-over-bad-links.png",
    )
