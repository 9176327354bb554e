"""A master that is told to end lets everything arrive that is under way, whatever the network does.

``pytest tests/simulation/test_draining.py -k '[17]'`` shows one history again.
"""

from random import Random

import pytest

from gradwire.errors import ConnectionLostError
from gradwire_server.config import MasterConfig
from support.checkpointing import ScriptedWriter
from support.network import Link
from support.simulated_worker import SimulatedWorker
from support.training import SimulatedRun

REASON = "the master was stopped by SIGTERM"
DRAIN_SECONDS = 10.0


def begin(seed: int, link: Link, writer: ScriptedWriter | None = None) -> SimulatedRun:
    config = MasterConfig(drain_seconds=DRAIN_SECONDS)
    return SimulatedRun(seed, link, master=config, writer=writer)


def drain(run: SimulatedRun) -> None:
    run.master.drain(REASON, run.network.now)
    run.network.turn(run.master_host)


def wait_until_drained(run: SimulatedRun) -> None:
    run.network.run(lambda: run.drained is not None, seconds=2 * DRAIN_SECONDS)
    assert run.drained == REASON


def check_all_have_everything(run: SimulatedRun, workers: list[SimulatedWorker]) -> None:
    """Whatever was encoded is at the master and at every worker, and nothing more comes."""
    accepted = sum(run.state.relay.versions.values())
    assert accepted == len(run.ledger.updates)
    for worker in workers:
        worker.pull()
        worker.participant.shared.settle()
    run.check_the_end(workers, run.master.run)


@pytest.mark.seeds(40)
def test_histories_that_end_in_mid_training(seed: int) -> None:
    random = Random(seed)
    link = Link(
        delay=random.choice([0.0002, 0.005, 0.05]),
        jitter=random.choice([0.0, 0.001, 0.02]),
        loss=random.choice([0.0, 0.02, 0.1]),
        duplication=0.02,
    )
    run = begin(seed, link)
    run.join_and_wait(random.randint(1, 6))
    run.network.after(random.uniform(0.1, 2), lambda: drain(run))

    run.train(40, interval=0.05)
    wait_until_drained(run)

    assert all(worker.stopping for worker in run.workers)
    check_all_have_everything(run, run.workers)
    run.master.stop(REASON, run.network.now)
    run.network.turn(run.master_host)
    run.network.run(lambda: all(worker.closed for worker in run.workers), seconds=60)
    for worker in run.workers:
        assert isinstance(worker.error, ConnectionLostError)
        assert str(worker.error).endswith(f"is over: {REASON}")


def test_who_does_not_answer_is_waited_for_until_the_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = begin(1, Link())
    run.join_and_wait(3)
    run.train(10)
    silent, *others = run.workers
    run.network.kill(silent.host)
    for worker in others:
        worker.step()

    began = run.network.now
    drain(run)
    wait_until_drained(run)

    assert run.network.now - began == pytest.approx(DRAIN_SECONDS)
    assert f"stopping without waiting any longer for rank {silent.rank} (worker0)" in caplog.text
    check_all_have_everything(run, others)


def test_a_run_that_all_have_finished_is_finished_and_another_one_is_not() -> None:
    for finishing in (2, 1):
        run = begin(1, Link(delay=0.2))
        run.join_and_wait(2)
        run.train(5)
        for worker in run.workers[:finishing]:
            worker.finish()
        drain(run)

        wait_until_drained(run)

        assert run.state.finished is (finishing == 2)
        assert [w.finished is not None for w in run.workers] == [finishing == 2] * 2
        check_all_have_everything(run, run.workers)


def test_a_run_that_is_coming_back_is_waited_for() -> None:
    run = begin(1, Link())
    run.join_and_wait(3)
    run.train(10)
    run.kill_master(back_after=0.5)
    run.network.run(lambda: len(run.master.roster) == 1, seconds=60)
    assert run.state.recovery is not None

    drain(run)
    wait_until_drained(run)

    assert run.state.founded
    assert sum(run.state.relay.versions.values()) == len(run.ledger.updates)
