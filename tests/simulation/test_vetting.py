"""Whole runs with one broken worker among honest ones: theirs are the same bits at the end.

The broken worker's steps are a thousand times as large as the others'. Every history is determined
by its seed, which is the test's parameter.
"""

from random import Random

import pytest

from gradwire.errors import ConnectionLostError
from gradwire_server.config import MasterConfig
from gradwire_server.updates.vetting import OutlierPolicy
from support.network import bad_link
from support.simulated_worker import CHANGE, SimulatedWorker
from support.training import SimulatedRun

pytestmark = pytest.mark.filterwarnings("ignore:training seems to diverge")  # that of one does

HISTORIES = 12
STEPS = 12
"""Enough for everyone to have sent so many updates that they are a reference."""


def broken_in(seed: int, policy: OutlierPolicy) -> tuple[SimulatedRun, SimulatedWorker]:
    """Return a run in which one worker broke after some good steps, and that worker."""
    random = Random(seed)
    config = MasterConfig(outlier_policy=policy)
    run = SimulatedRun(seed, bad_link(random), master=config)
    run.join_and_wait(random.randint(2, 5))
    run.train(STEPS)
    broken = random.choice(run.workers)
    broken.change = 1_000 * CHANGE
    run.train(random.randint(1, 6))
    return run, broken


@pytest.mark.seeds(HISTORIES)
def test_a_worker_in_quarantine_neither_changes_nor_holds_up_the_others(seed: int) -> None:
    run, broken = broken_in(seed, "quarantine")
    run.network.run(lambda: run.sample("quarantined_workers") == 1, seconds=30)
    run.workers.remove(broken)
    run.train(2)

    run.finish()

    assert isinstance(broken.error, ConnectionLostError)
    assert "far larger than the others': the run is finished" in str(broken.error)
    assert run.sample("updates_discarded_total") == run.sample("updates_quarantined_total") > 0
    assert all(abs(w.feedback.parameters).max() < 1 for w in run.workers)


@pytest.mark.seeds(HISTORIES)
def test_after_its_release_all_have_everything(seed: int) -> None:
    run, broken = broken_in(seed, "quarantine")
    run.network.run(lambda: run.sample("quarantined_workers") == 1, seconds=30)
    run.train(2)

    run.master.release(broken.rank, run.network.now)
    run.network.turn(run.master_host)
    run.train(2)

    run.finish()

    assert run.sample("updates_discarded_total") == 0


@pytest.mark.seeds(HISTORIES)
def test_all_have_the_same_bits_although_one_is_clipped(seed: int) -> None:
    run, broken = broken_in(seed, "clip")

    run.finish()

    clipped = run.sample("updates_clipped_total")
    assert clipped == len(run.ledger.corrections) > 0
    assert {rank for rank, _ in run.ledger.corrections} == {broken.rank}


@pytest.mark.parametrize("policy", ["quarantine", "clip"])
def test_a_joiner_s_snapshot_has_nothing_of_what_was_kept_out(policy: OutlierPolicy) -> None:
    run, broken = broken_in(1, policy)
    run.join_and_wait(1, seconds=30)
    if policy == "quarantine":
        run.workers.remove(broken)
    run.train(2)

    run.finish()


@pytest.mark.seeds(5)
def test_workers_that_are_slowed_down_lose_nothing(seed: int) -> None:
    """A hundred steps of two milliseconds each, where five updates per second are taken."""
    config = MasterConfig(update_rate_max=5.0)
    run = SimulatedRun(seed, bad_link(Random(seed)), elements=50, master=config)
    run.join_and_wait(3)

    run.train(100, interval=0.002)

    run.finish()

    assert run.sample("updates_delayed_total") > 0
    assert run.sample("updates_discarded_total") == 0
