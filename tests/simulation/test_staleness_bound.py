"""Bounded staleness: nobody waits for ever.

That nobody is further ahead than allowed, `support.leads` watches in `test_histories.py`.

``pytest tests/simulation/test_staleness_bound.py -k '[17]'`` shows one history again.
"""

from collections.abc import Callable
from random import Random

import pytest

from gradwire.features.staleness_bound import FIRST_STEPS
from gradwire.settings.training import StalenessBound as Bound
from gradwire_server.config import MasterConfig
from support.bounded_worker import BoundedWorker
from support.network import Link, link_of
from support.training import SimulatedRun

TIMEOUT = 3.0


class BoundedRun(SimulatedRun):
    """A run of workers with a bound.

    Parameters
    ----------
    seed : int
    bound : int or str
    """

    def __init__(self, seed: int, bound: Bound, link: Link, **settings: float) -> None:
        super().__init__(
            seed,
            link,
            elements=40,
            watches_transport=False,
            idle_timeout_seconds=2.0,
            master=MasterConfig(idle_timeout_seconds=2.0, recovery_seconds=5.0, **settings),  # type: ignore[arg-type]
        )
        self.bound = bound

    def train_with(self, n: int, intervals: Callable[[], float]) -> list[BoundedWorker]:
        """Let so many workers join and train."""
        workers = []
        for number in range(n):
            name = f"bounded{len(self.workers)}.{number}"
            worker = BoundedWorker(self, name, "local", bound=self.bound, timeout_seconds=TIMEOUT)
            worker.interval = intervals()
            self.workers.append(worker)
            workers.append(worker)
        self.network.run(lambda: all(worker.live for worker in workers), seconds=60)
        return workers

    def stop(self) -> None:
        """Let nobody begin another step."""
        for worker in self.workers:
            assert isinstance(worker, BoundedWorker)
            worker.trains_on = False

    def finish(self) -> None:
        """Let everybody stop and finish, and check what then has to be true."""
        self.stop()
        super().finish()


@pytest.mark.seeds(6)
def test_nobody_waits_for_ever_whoever_dies_sleeps_or_is_cut_off(seed: int) -> None:
    random = Random(1_000 + seed)
    run = BoundedRun(seed, random.randint(0, 4), link_of(random))
    workers = run.train_with(random.randint(3, 5), lambda: random.choice([0.1, 0.2, 0.4]))
    faults: list[Callable[[BoundedWorker], object]] = [
        lambda worker: run.network.kill(worker.host),
        lambda worker: run.network.suspend(worker.host, random.uniform(0.5, 8.0)),
        lambda worker: run.cut_off(worker, random.uniform(0.5, 6.0)),
        lambda worker: run.train_with(1, lambda: 0.1),
    ]
    for _ in range(5):
        run.network.run_for(random.uniform(0.5, 4.0))
        alive = [worker for worker in workers if not worker.is_gone]
        if len(alive) > 1:
            random.choice(faults)(random.choice(alive))
        if random.random() < 0.15 and run.masters == 1:
            run.kill_master(back_after=random.uniform(0.1, 2.0))
    run.network.run_for(15.0)  # for whoever sleeps or is cut off, and one timeout

    alive = [w for w in run.workers if isinstance(w, BoundedWorker) and not w.is_gone]
    before = {worker: worker.steps for worker in alive}
    run.network.run_for(10.0)
    slowest = max(worker.interval for worker in alive)
    for worker in alive:
        assert worker.steps >= before[worker] + 5.0 / slowest, worker.name
        assert worker.longest_wait <= 8.0 + 2 * TIMEOUT
    run.finish()


@pytest.mark.parametrize("noticed", [False, True])
def test_a_worker_that_dies_costs_one_timeout_at_most(noticed: bool) -> None:
    run = BoundedRun(1, 2, Link(delay=0.001))
    workers = run.train_with(3, lambda: 0.05)
    run.network.run_for(2.0)
    dead, *others = workers
    run.network.kill(dead.host)
    timeout = 60.0 if noticed else 0.5
    for worker in others:
        worker.bound.lags.timeout_seconds = timeout

    run.network.run_for(12.0)

    for worker in others:
        # The master misses it after 2 s, and says so.
        assert worker.longest_wait <= (3.5 if noticed else 1.0)
        assert worker.looks.set_aside == ([] if noticed else [dead.rank])
        assert worker.steps > 120
    run.finish()


# A bound that nobody asked for.


def test_where_nothing_is_late_nobody_waits_but_in_the_first_steps() -> None:
    run = BoundedRun(3, "auto", Link(delay=0.001))
    workers = run.train_with(4, lambda: 0.05)
    run.network.run(lambda: all(worker.steps > FIRST_STEPS for worker in workers), seconds=60)
    waited = [worker.participant.tally.steps_waited for worker in workers]

    run.network.run_for(20.0)

    for worker, before in zip(workers, waited, strict=True):
        assert worker.steps > 300
        assert worker.participant.tally.steps_waited == before <= FIRST_STEPS
        assert worker.participant.tally.staleness_bound is None
    run.finish()


def test_on_a_slow_network_workers_go_in_lockstep() -> None:
    run = BoundedRun(4, "auto", Link(delay=0.1))
    workers = run.train_with(4, lambda: 0.05)
    run.network.run_for(10.0)  # after the first steps, some are ahead until they know better
    for worker in workers:
        worker.longest_wait = 0.0

    run.network.run_for(10.0)

    for worker in workers:
        assert worker.participant.tally.staleness_bound == 0
        others = {w.rank for w in workers if w is not worker}
        found = worker.participant.delays.lateness(others, len(workers))
        assert found is not None
        assert found < 0.5
        assert worker.longest_wait < 1.0
        assert max(other.clock - worker.clock for other in workers) <= 1
    run.finish()


def test_who_is_much_slower_holds_nobody_up() -> None:
    run = BoundedRun(5, "auto", Link(delay=0.1))
    intervals = iter([0.05, 0.05, 0.05, 1.0])
    *workers, slow = run.train_with(4, lambda: next(intervals))
    run.network.run_for(20.0)  # its pace is known after a few of its steps
    before = [worker.steps for worker in workers]

    run.network.run_for(20.0)

    for worker, steps in zip(workers, before, strict=True):
        assert worker.participant.tally.staleness_bound == 0
        assert worker.steps - steps > 60
        assert worker.longest_wait < 3.0
    assert slow.steps > 30
    run.finish()
