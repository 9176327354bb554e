"""What a model costs its master, where several share the parameters, or relays stand before it.

All but the last part is measured as in `scaling`: without sockets and in virtual time, by the
processor time of the master's side alone. It is what bounds a master with a core to itself, which
this machine may not have for each.

*Several masters.* Each worker sends one update of 300 KB a step, in as many parts as there are
masters. All masters do the same, each for its part, so one of them is measured.

*Relays.* Each worker sends one update of 4 KB a step, of a model of half a million parameters. Of N
workers, as many relays as the square root of N have as many each. Without relays, only some of the
workers send: what an update costs does not depend on the others. The same without relays is
measured of one of four masters, which has a quarter of each update.

*Many workers over real sockets* (see `crowd`): whole processes, a tree of relays among them.

The drawing goes on to where nothing was measured: without relays, in proportion to the workers,
from the largest number of them that was measured.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import crowd
from benchmarks.figures import Figure, at_most, beside
from benchmarks.pictures import Costs, draw_costs
from benchmarks.relayed_master import RelayedMaster, sums_of
from benchmarks.scaling import TimedMaster
from benchmarks.workers import update_of_size

UPDATE_BYTES: Final = 300_000

SMALL_BYTES: Final = 4_096
MASTERS: Final = 4
"""That share updates of so many bytes."""
ELEMENTS: Final = 500_000
"""With relays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    workers: Sequence[int] = (4, 16)
    masters: Sequence[int] = (2, 4)
    updates: int = 64
    """Of each measurement."""
    runs: int = 5
    behind: Sequence[tuple[int, int]] = ((8, 8), (16, 16), (32, 32), (63, 63))
    """Relays, and workers behind each; ascending."""
    plain_max: int = 1_100
    """So many workers are measured without relays as well."""
    plain_updates: int = 4
    crowd_plan: crowd.Plan = crowd.FULL


FULL: Final = Plan()
QUICK: Final = Plan(
    workers=(2,),
    masters=(2,),
    updates=2,
    runs=1,
    behind=((1, 2), (2, 2)),
    plain_updates=1,
    crowd_plan=crowd.QUICK,
)

OF_PLAIN: Final = 1 / 8
GROWTH: Final = 1.5
"""Aims of relays: what an update costs of what it does without, and most of what it costs with the
fewest workers."""

AIMS: Final = {2: 1 / 1.7}
"""By the number of masters: of the time of a single one."""


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    return [*run_masters(plan), *run_relays(plan), *crowd.run(plan.crowd_plan)]


def run_relays(plan: Plan) -> list[Figure]:
    """Measure a master without relays and one with, of more and more workers."""
    elements, body = update_of_size(SMALL_BYTES, ELEMENTS)
    figures: list[Figure] = []
    quarter = update_of_size(SMALL_BYTES // MASTERS, elements // MASTERS)
    fewest: tuple[str, float, float] | None = None
    for relays, peers in plan.behind:
        workers = relays * peers
        what = f"{workers} workers, {relays} relays"
        relayed = RelayedMaster(relays, peers, elements)
        bodies = sums_of(body, elements, relays, peers)
        spent, moved = [], []
        gc.collect()
        gc.freeze()
        for i in range(plan.runs + 1):
            began, before = relayed.master_seconds, relayed.bytes_in + relayed.bytes_out
            relayed.step(bodies)
            if i:  # the first round warms up
                spent.append(1e6 * (relayed.master_seconds - began) / workers)
                moved.append((relayed.bytes_in + relayed.bytes_out - before) / workers / 1e3)
        gc.unfreeze()
        value, kilobytes = median(spent), median(moved)
        if workers <= plan.plain_max:
            alone, moved_alone = _plain(plan, workers, elements, body)
            shared, _ = _plain(plan, workers, *quarter)
            figures += [
                at_most(
                    _time(workers, relays), value, "us", "no relays", alone,
                    aim=OF_PLAIN, runs=plan.runs,
                ),
                beside(
                    _shared_time(workers), shared, "us", "a single master", alone, runs=plan.runs
                ),
                beside(
                    f"bytes into and out of the master per update, {what}",
                    kilobytes, "kB", "no relays", moved_alone, runs=plan.runs,
                ),
            ]  # fmt: skip
        if fewest is None:
            fewest = what, value, kilobytes
            continue
        at_first, least, kilobytes_at_first = fewest
        figures += [
            at_most(
                _growth(workers, relays), value, "us", at_first, least, aim=GROWTH, runs=plan.runs,
            ),
            at_most(
                f"bytes per update, {what}, and with the fewest",
                kilobytes, "kB", at_first, kilobytes_at_first, aim=1.0, runs=plan.runs,
            ),
        ]  # fmt: skip
    return figures


def _time(workers: int, relays: int) -> str:
    return f"master's time per update of 4 KB, {workers} workers, {relays} relays"


def _shared_time(workers: int) -> str:
    return f"time per update of 4 KB of one of {MASTERS} masters, {workers} workers"


def _growth(workers: int, relays: int) -> str:
    return f"master's time per update, {workers} workers, {relays} relays, and with the fewest"


def draw(figures: list[Figure], folder: Path, plan: Plan) -> None:
    """Draw what an update costs a master against the number of workers."""
    found = {figure.figure: figure for figure in figures}
    counts = [relays * peers for relays, peers in plan.behind]
    measured = [workers for workers in counts if workers <= plan.plain_max]
    alone, shared, relayed = [], [], []
    for (relays, _), workers in zip(plan.behind, counts, strict=True):
        if workers in measured:
            alone.append(found[_time(workers, relays)].rival_value)
            shared.append(found[_shared_time(workers)].value)
        name = _time if workers in measured else _growth
        relayed.append(found[name(workers, relays)].value)
    draw_costs(
        Costs(
            title="What an update of 4 KB costs a master, without sockets",
            x_label="workers, each of which sends an update a step",
            y_label="processor time per update",
            x=counts,
            measured={
                "a single master": [value / 1e6 for value in alone],
                f"each of {MASTERS} masters": [value / 1e6 for value in shared],
                "a master with a relay for every √N workers": [value / 1e6 for value in relayed],
            },
        ),
        folder / "scale.png",
    )


def _plain(plan: Plan, workers: int, elements: int, body: bytes) -> tuple[float, float]:
    """Return microseconds and kilobytes of an update, where no relay is."""
    master = TimedMaster(workers, elements)
    spent, moved = [], []
    for i in range(plan.runs + 1):
        began, before = master.master_seconds, master.bytes_in + master.bytes_out
        master.relay(plan.plain_updates, body)
        if i:
            spent.append(1e6 * (master.master_seconds - began) / plan.plain_updates)
            moved.append((master.bytes_in + master.bytes_out - before) / plan.plain_updates / 1e3)
    return median(spent), median(moved)


def run_masters(plan: Plan) -> list[Figure]:
    """Measure a single master and one of several, in turn."""
    figures = []
    for workers in plan.workers:
        shared = {n: update_of_size(UPDATE_BYTES // n) for n in (1, *plan.masters)}
        timed = {n: TimedMaster(workers, elements) for n, (elements, _) in shared.items()}
        spent: dict[int, list[float]] = {n: [] for n in shared}
        gc.collect()
        gc.freeze()  # what one master is made of is no matter of the others' time
        for i in range(plan.runs + 1):
            for masters, master in timed.items():
                before = master.master_seconds
                master.relay(plan.updates, shared[masters][1])
                if i:  # the first round warms up
                    seconds = master.master_seconds - before
                    spent[masters].append(1e3 * seconds / plan.updates)
        gc.unfreeze()
        alone = median(spent[1])
        for masters in plan.masters:
            name = f"one of {masters} masters, an update of 300 KB among {workers}"
            value, aim = median(spent[masters]), AIMS.get(masters)
            figures.append(
                beside(name, value, "ms", "a single master", alone, runs=plan.runs)
                if aim is None
                else at_most(name, value, "ms", "a single master", alone, aim=aim, runs=plan.runs)
            )
    return figures
