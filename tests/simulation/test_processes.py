"""Whole runs in virtual time whose master is several processes: to workers it is one.

Every history is determined by its seed, which is the test's parameter.
"""

from functools import partial
from random import Random

import pytest

from gradwire_protocol.limits import charge_of
from gradwire_server.config import MasterConfig
from gradwire_server.shards import parcels
from support.network import Link, bad_link
from support.split_run import SplitRun

HISTORIES = 60


@pytest.fixture(autouse=True)
def nearly_everything_goes_through_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have messages of a simulation, which are small, take the way of large ones."""
    monkeypatch.setattr(parcels, "INLINE_BYTES_MAX", 100)


@pytest.mark.seeds(HISTORIES)
def test_histories_end_with_every_update_applied_once_everywhere(seed: int) -> None:
    """As with one process: `check_the_end` states what has to hold."""
    random = Random(seed)
    elements = random.choice([1, 50, 3_000, 50_000])
    run = SplitRun(
        seed, bad_link(random, damages=True), count=random.choice([2, 3, 5]), elements=elements
    )

    run.join_and_wait(random.randint(2, 8))
    run.train(random.randint(1, 6))

    run.finish()


@pytest.mark.seeds(25)
def test_histories_in_which_workers_join_late_die_move_and_leave(seed: int) -> None:
    random = Random(seed)
    run = SplitRun(seed, bad_link(random, damages=True), count=3, idle_timeout_seconds=3.0)
    run.join_and_wait(random.randint(4, 6))
    network = run.network
    dying, leaving, moving = random.sample(run.workers, 3)

    for feedback in ("local", "shared"):
        network.after(random.uniform(0, 1), partial(run.join, feedback))
    network.after(random.uniform(0, 1), lambda: network.kill(dying.host))
    network.after(random.uniform(0, 1), leaving.leave)
    network.after(random.uniform(0, 1), partial(network.move, moving.host, "elsewhere"))
    everybody = len(run.workers) + 2
    run.train(10)
    network.run(lambda: len(run.workers) == everybody, seconds=5)
    network.run(lambda: all(w.live for w in run.workers), seconds=60)
    run.train(5)
    network.run(lambda: len(run.master.roster) == everybody - 2, seconds=60)

    run.finish()


@pytest.mark.seeds(25)
def test_histories_in_which_a_process_is_killed_and_another_takes_its_place(seed: int) -> None:
    random = Random(seed)
    run = SplitRun(seed, bad_link(random, damages=True), count=3, idle_timeout_seconds=3.0)
    run.join_and_wait(6)
    network, victim = run.network, run.shards[0]
    lost = len(victim.endpoint)

    network.after(random.uniform(0.1, 0.5), victim.kill)
    run.train(10)
    network.run(lambda: len(run.master.roster) == 6 - lost, seconds=5)
    run.replace(1)
    network.run(
        lambda: len(run.master.roster) == 6 and not any(w.lost for w in run.workers), seconds=60
    )
    assert sum(w.reconnections for w in run.workers) == lost
    for _ in range(3):
        run.join()
    network.run(lambda: all(w.live for w in run.workers), seconds=60)
    run.train(5)

    run.finish()


def test_updates_are_added_up_from_the_same_bytes_on_wherever_a_worker_is() -> None:
    limit = 60_000
    for seed in range(6):  # of which some put it into the first process, and some into another
        settings = MasterConfig(relay_backlog_bytes_max=limit, slow_seconds=5.0)
        run = SplitRun(seed, Link(), count=2, elements=3_000, master=settings)
        run.join_and_wait(3)
        slow, *others = run.workers
        run.network.kill(slow.host)  # much is said before its silence is noticed
        most = 0
        while len(run.master.roster) == 3:
            others[0].step()
            run.network.run_for(0.05)
            most = max(most, *(member.backlog.nbytes for member in run.master.roster))

        assert limit - charge_of(3_000) < most <= limit
        sample = run.metrics.registry.get_sample_value
        assert sample("gradwire_leaves_total", {"reason": "too_slow"}) == 1


def test_the_same_seed_gives_the_same_history() -> None:
    traces = []
    for _ in range(2):
        run = SplitRun(5, bad_link(Random(5), damages=True), count=3)
        run.join_and_wait(4)
        run.train(4)
        run.finish()
        traces.append(run.network.trace)

    assert traces[0] == traces[1]
