"""Rounds wait for nobody: not for a worker that is slow, nor for one that is gone."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from random import Random

import pytest

from gradwire_protocol.messages.modes.mode import Mode, parse_mode
from gradwire_server.config import MasterConfig
from support.network import Link
from support.simulated_worker import SimulatedWorker
from support.training import SimulatedRun

STEP = 0.05
"""Seconds that a step takes."""

MODES = (
    parse_mode("averaging(every=8)"),
    parse_mode("diloco(every=8)"),
    parse_mode("diloco(every=16, streams=2)"),
)
SECONDS = 40.0


class Paced:
    """A run whose workers make steps at paces of their own."""

    def __init__(self, mode: Mode, seed: int, steps: Sequence[float], jitter: float = 0.1) -> None:
        self.run = SimulatedRun(
            seed, Link(delay=0.01), elements=30, master=MasterConfig(idle_timeout_seconds=30.0)
        )
        self.run.mode = mode
        self._random = Random(seed)
        self._jitter = jitter
        self.workers: list[SimulatedWorker] = self.run.join_and_wait(len(steps))
        self.made: dict[SimulatedWorker, list[float]] = {w: [] for w in self.workers}
        """When each has made its steps."""
        for worker, seconds in zip(self.workers, steps, strict=True):
            self._go_on(worker, seconds)

    def _go_on(self, worker: SimulatedWorker, seconds: float) -> None:
        if worker.is_gone:
            return
        pause = seconds / 50
        if not worker.is_waiting:
            worker.step()
            self.made[worker].append(self.run.network.now)
            pause = seconds * self._random.uniform(1 - self._jitter, 1 + self._jitter)
        self.run.network.after(pause, partial(self._go_on, worker, seconds))

    def count(self) -> dict[SimulatedWorker, int]:
        """Train for a while; return how many steps each has made in it."""
        before = {worker: len(made) for worker, made in self.made.items()}
        self.run.network.run_for(SECONDS)
        return {worker: len(made) - before[worker] for worker, made in self.made.items()}


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("workers", [2, 4])
def test_beside_one_that_is_three_times_slower_the_others_make_their_steps(
    mode: Mode, workers: int
) -> None:
    equal = Paced(mode, 1, [STEP] * workers)
    beside = Paced(mode, 1, [STEP] * (workers - 1) + [3 * STEP])
    for paced in (equal, beside):
        paced.run.network.run_for(10.0)  # until the master knows the slow worker

    alone, hindered = equal.count(), beside.count()
    *fast, slow = beside.workers
    usual = sum(alone.values()) / workers
    assert min(hindered[worker] for worker in fast) >= 0.95 * usual
    assert hindered[slow] >= 0.6 * usual / 3
    assert beside.run.sample("rounds_timed_out_total") > 0
    # No round is of the slow one alone: its step would count for more than those of the others.
    contributed = max(len(made) for made in beside.made.values()) / mode.steps_between
    assert beside.run.sample("rounds_closed_total") <= contributed + 1


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_one_that_is_killed_costs_the_others_a_grace(mode: Mode) -> None:
    paced = Paced(mode, 2, [STEP] * 4)
    paced.run.network.run_for(10.0)
    killed, *others = paced.workers
    at = paced.run.network.now
    paced.run.network.kill(killed.host)
    paced.run.network.run_for(60.0)

    for worker in others:
        times = [at, *(time for time in paced.made[worker] if time > at), paced.run.network.now]
        assert max(after - before for before, after in pairwise(times)) < 1.0


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(("jitter", "portion"), [(0.2, 0.0), (0.5, 0.1)])
def test_of_workers_that_are_about_equally_fast_each_is_in_each_round(
    mode: Mode, jitter: float, portion: float
) -> None:
    paced = Paced(mode, 3, [STEP] * 4, jitter)
    paced.run.network.run_for(SECONDS)

    closed = paced.run.sample("rounds_closed_total")
    assert closed > 10
    assert paced.run.sample("rounds_timed_out_total") <= portion * closed


def test_a_round_that_is_to_wait_waits() -> None:
    mode = parse_mode("averaging(every=8, waits=True)")
    paced = Paced(mode, 4, [STEP, STEP, 3 * STEP])
    made = paced.count()

    assert paced.run.sample("rounds_timed_out_total") == 0
    assert max(made.values()) - min(made.values()) <= mode.every
