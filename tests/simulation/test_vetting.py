"""Whole runs with one broken worker among honest ones: theirs are the same bits at the end.

The broken worker's steps are a thousand times as large as the others'. Every history is determined
by its seed, which is the test's parameter.
"""

import logging
from random import Random

import pytest

from gradwire.errors import ConnectionLostError
from gradwire_server.config import MasterConfig
from gradwire_server.updates.vetting import WORKERS_MIN, OutlierPolicy
from support.network import Link, bad_link
from support.simulated_worker import CHANGE, SimulatedWorker
from support.training import SimulatedRun

pytestmark = pytest.mark.filterwarnings("ignore:training seems to diverge")  # that of one does

HISTORIES = 12
STEPS = 12
"""Enough for everyone to have sent so many updates that they are a reference."""


def broken_in(
    seed: int, policy: OutlierPolicy, workers: int = WORKERS_MIN
) -> tuple[SimulatedRun, SimulatedWorker]:
    """Return a run in which one worker broke after some good steps, and that worker."""
    random = Random(seed)
    run = SimulatedRun(seed, bad_link(random), master=MasterConfig(outliers=policy))
    run.join_and_wait(workers)
    run.train(STEPS)
    broken = random.choice(run.workers)
    broken.change = 1_000 * CHANGE
    run.train(random.randint(1, 6))
    return run, broken


@pytest.mark.parametrize(
    ("policy", "workers"), [("warn", 2), ("warn", WORKERS_MIN), ("quarantine", WORKERS_MIN - 1)]
)
def test_an_outlier_is_counted_and_accepted_unless_more_is_asked_for(
    policy: OutlierPolicy, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gradwire.master"):
        run, broken = broken_in(1, policy, workers)
        run.finish()

    assert run.sample("updates_outlying_total") >= 1
    assert run.sample("updates_quarantined_total") == run.sample("updates_discarded_total") == 0
    said = [line for line in caplog.messages if "an outlier, and accepted" in line]
    assert len(said) == 1
    assert broken.name in said[0]


def test_who_comes_when_the_others_have_converged_is_no_outlier() -> None:
    """What the others send falls to nothing; a worker that is back begins with large changes."""
    run = SimulatedRun(3, Link(), master=MasterConfig(outliers="quarantine"))
    run.join_and_wait(WORKERS_MIN)
    run.train(STEPS)
    for worker in run.workers:
        worker.change = CHANGE / 1_000
    run.train(4 * STEPS)
    [late] = run.join_and_wait(1)

    run.train(STEPS)

    assert late.change == CHANGE
    assert run.sample("updates_outlying_total") == 0
    run.finish()


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


def test_a_joiner_s_snapshot_has_nothing_of_what_was_kept_out() -> None:
    run, broken = broken_in(1, "quarantine")
    run.join_and_wait(1, seconds=30)
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
