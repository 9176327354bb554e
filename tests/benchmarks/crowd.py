"""Many workers over real sockets, and what the master and the relays spend on their updates.

Master and relays are processes, with keys and as users start them. The workers are `IdleWorker`s
in this process: the client's own, each with a socket and a key. In a step each of them sends an
update of 4 KB, of a model of half a million parameters. It is over when each has got back what
contains its update. Without relays only some send, as an update costs the same however many do,
and the step is over when all have what the others have sent.

Processor time is that of whole processes, sealing and sockets included. So it does not matter that
there are more of them than cores.
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from benchmarks.figures import Figure, beside
from benchmarks.masters import Master, address_of
from benchmarks.programs import Program, processor_seconds
from benchmarks.relayed_master import alike_updates
from benchmarks.workers import IdleWorker, Progress, closing, update_of_size
from gradwire_codecs.format.update import pack_update
from gradwire_udp import new_event_loop

SMALL_BYTES: Final = 4_096
ELEMENTS: Final = 500_000

STEP_SECONDS_MAX: Final = 120.0
"""In which something has to come to some worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    behind: Sequence[tuple[int, int]] = ((8, 8),)
    """Relays, and workers behind each."""
    steps: int = 3
    plain_updates: int = 8
    """In a step without relays."""


FULL: Final = Plan()
QUICK: Final = Plan(behind=((2, 2),), steps=1, plain_updates=1)


@dataclass(frozen=True, slots=True)
class Spent:
    """Medians over steps."""

    master: float
    """Microseconds of processor time per update."""
    relay: float
    """The same of a relay, per update of a worker of its own; not a number without any."""


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    figures: list[Figure] = []
    for relays, peers in plan.behind:
        workers = relays * peers
        plain, flat = _measure(plan, workers, 0), _measure(plan, workers, relays)
        tree = _measure(plan, workers, relays, first=True)
        what = f"over sockets, {workers} workers"
        name = f"master's time per update of 4 KB {what}, {relays} relays"
        figures += [
            beside(name, flat.master, "us", "no relays", plain.master, runs=plan.steps),
            beside(f"a relay's time per update of its workers {what}", flat.relay, "us",
                   "a master without relays", plain.master, runs=plan.steps),
            beside(f"master's time per update {what}, one relay before {relays}", tree.master,
                   "us", f"{relays} relays", flat.master, runs=plan.steps),
        ]  # fmt: skip
    return figures


def _measure(plan: Plan, workers: int, relays: int, *, first: bool = False) -> Spent:
    """Measure so many workers, behind so many relays, which may have another one before them."""
    topology = "tree" if relays else "plain"
    with (
        ExitStack() as stack,
        Master("--topology", topology, "--workers-max", str(workers), keys=True) as master,
        asyncio.Runner(loop_factory=lambda: new_event_loop("auto")) as runner,
    ):
        parent = address_of(stack.enter_context(master.relay())) if first else None
        leaves = [stack.enter_context(master.relay(parent)) for _ in range(relays)]
        return runner.run(_steps(plan, master, leaves, workers))


async def _steps(plan: Plan, master: Master, relays: list[Program], workers: int) -> Spent:
    elements, body = update_of_size(SMALL_BYTES, ELEMENTS)
    progress = Progress()
    places = [address_of(relay) for relay in relays] or [master.address]
    pushing = workers if relays else min(workers, plan.plain_updates)
    # Before anybody joins: it takes longer than a peer may be silent.
    bodies = [pack_update(each) for each in alike_updates(body, elements, pushing)]
    joined: list[IdleWorker] = []
    with closing(joined):
        for rank in range(workers):
            name, place = f"worker{rank}", places[rank % len(places)]
            joined.append(IdleWorker(name, elements, place, master.credentials(name), progress))
            await joined[-1].wait_live()
        senders = joined[:pushing]
        spent: list[tuple[float, float]] = []
        for _ in range(plan.steps + 1):
            before = _seconds(master, relays)
            for worker, each in zip(senders, bodies, strict=True):
                worker.push(each)
            while not _is_over(joined, senders, is_merged=bool(relays)):
                await progress.wait(STEP_SECONDS_MAX)
            at_master, at_relays = np.subtract(_seconds(master, relays), before) / len(senders)
            spent.append((1e6 * at_master, 1e6 * at_relays if relays else np.nan))
    return Spent(*(median(each) for each in zip(*spent[1:], strict=True)))


def _seconds(master: Master, relays: Sequence[Program]) -> tuple[float, float]:
    """Return the processor time so far, of the master and of all relays that have workers."""
    return processor_seconds(master.pid), sum(processor_seconds(relay.pid) for relay in relays)


def _is_over(
    workers: Sequence[IdleWorker], senders: Sequence[IdleWorker], *, is_merged: bool
) -> bool:
    if is_merged:
        return all(worker.contained == worker.sent for worker in workers)
    pushed = sum(worker.sent for worker in senders)
    return all(worker.received == pushed - worker.sent for worker in workers)
