"""A master that is killed and started anew gets its run back from the workers.

``pytest tests/simulation/test_master_restarts.py -k '[17]'`` shows one history again.
"""

from functools import partial
from random import Random

import pytest

from gradwire_server.config import MasterConfig
from gradwire_server.roster import Phase
from support.keyed import RUN_KEY
from support.network import Link
from support.training import SimulatedRun

IDLE_SECONDS = 3.0


def begin(seed: int, random: Random, *, sealed: bool = False) -> SimulatedRun:
    """Let a run begin on a network that loses, repeats, delays and reorders."""
    link = Link(
        delay=random.choice([0.0002, 0.005, 0.05]),
        jitter=random.choice([0.0, 0.001, 0.02]),
        loss=random.choice([0.0, 0.02]),
        duplication=0.02,
    )
    return SimulatedRun(
        seed,
        link,
        elements=random.choice([50, 400, 3000]),
        idle_timeout_seconds=IDLE_SECONDS,
        master=MasterConfig(idle_timeout_seconds=IDLE_SECONDS, recovery_seconds=4.0),
        run_key=RUN_KEY if sealed else None,
    )


def wait_until_all_are_back(run: SimulatedRun) -> None:
    """Wait until nobody is cut off."""
    alive = [worker for worker in run.workers if not worker.is_gone]
    run.network.run(
        lambda: (
            all(worker.lost is None for worker in alive)
            and [member.phase for member in run.master.roster] == [Phase.LIVE] * len(alive)
        ),
        seconds=60,
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(40))
def test_histories_in_which_the_master_is_killed_and_started_anew(seed: int) -> None:
    random = Random(seed)
    run = begin(seed, random)
    run.join_and_wait(random.randint(2, 6))
    for _ in range(random.choice([1, 1, 2])):
        master = run.master
        run.network.after(
            random.uniform(0.1, 3), partial(run.kill_master, back_after=random.uniform(0.01, 5))
        )
        run.train(15, interval=0.3)
        run.network.run(lambda before=master: run.master is not before, seconds=30)  # type: ignore[misc]
        wait_until_all_are_back(run)
    run.train(3)

    run.finish()


def test_one_worker_may_die_with_the_master() -> None:
    random = Random(1)
    run = begin(1, random)
    run.join_and_wait(4)
    run.train(5)
    dead, *alive = run.workers
    dead.step()
    run.network.kill(dead.host)
    run.kill_master(back_after=1.0)

    run.network.run(lambda: all(w.lost is not None for w in alive), seconds=30)
    run.network.run(lambda: all(w.lost is None for w in alive), seconds=60)
    run.train(5)

    run.finish()


def test_with_keys_workers_hear_at_once_that_the_master_was_started_anew() -> None:
    run = begin(3, Random(3), sealed=True)
    run.join_and_wait(3)
    run.train(5)
    run.kill_master(back_after=0.1)

    run.train(5)
    wait_until_all_are_back(run)

    assert {w.reconnections for w in run.workers} == {1}
    run.finish()
