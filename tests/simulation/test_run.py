"""Whole runs in virtual time: training over bad networks, joining late, dying, moving.

Every history is determined by its seed, which is the test's parameter: to see one again, run
``pytest tests/simulation -k 'histories and [17]'``.
"""

from functools import partial
from random import Random

import pytest

from gradwire.errors import ConnectionLostError, RefusedError, UnreachableError
from gradwire_protocol import Drop
from gradwire_server.config import MasterConfig
from support.endpoints import hand_over
from support.ledger import Ledger
from support.network import Link, bad_link
from support.training import SimulatedRun

HISTORIES = 400


@pytest.mark.seeds(60)
def test_histories_in_which_workers_join_late_die_and_leave(seed: int) -> None:
    random = Random(seed)
    run = SimulatedRun(seed, bad_link(random, damages=True), idle_timeout_seconds=3.0)
    run.join_and_wait(random.randint(3, 6))
    network = run.network
    dying, leaving = random.sample(run.workers, 2)

    for feedback in ("local", "shared"):
        network.after(random.uniform(0, 1), partial(run.join, feedback))
    network.after(random.uniform(0, 1), lambda: network.kill(dying.host))
    network.after(random.uniform(0, 1), leaving.leave)
    everybody = len(run.workers) + 2
    run.train(10)
    network.run(lambda: len(run.workers) == everybody, seconds=5)
    network.run(lambda: all(w.live for w in run.workers), seconds=60)
    run.train(5)
    network.run(lambda: len(run.master.roster) == everybody - 2, seconds=60)

    run.finish()

    assert leaving.closed
    assert leaving.error is None


@pytest.mark.seeds(20)
def test_a_worker_whose_address_changes_stays_connected(seed: int) -> None:
    random = Random(seed)
    run = SimulatedRun(seed, bad_link(random, damages=True))
    run.join_and_wait(3)
    moving = run.workers[1]
    for i in range(3):  # far enough apart that a challenge that is lost can be repeated
        run.network.after(0.1 + 0.6 * i, partial(run.network.move, moving.host, f"nat{i}"))
    run.train(60)

    run.finish()

    assert run.master_endpoint.counters.addresses_changed == 3
    assert run.master_endpoint.counters.connections_opened == 3


@pytest.mark.seeds(30)
def test_the_run_begins_although_its_first_worker_dies_founding_it(seed: int) -> None:
    run = SimulatedRun(
        seed, bad_link(Random(seed), damages=True), elements=50_000, idle_timeout_seconds=3.0
    )
    network = run.network
    first = run.join()
    others = [run.join() for _ in range(3)]
    network.run(lambda: first.welcome is not None, seconds=30)
    network.after(network.random.uniform(0, 0.2), lambda: network.kill(first.host))
    network.run(lambda: all(w.live for w in others), seconds=60)
    network.run(lambda: len(run.master.roster) == 3, seconds=60)
    run.train(2)

    run.finish()


def test_a_second_run_begins_when_the_first_is_finished() -> None:
    run = SimulatedRun(6)
    for _ in range(2):
        run.workers.clear()
        run.ledger = Ledger()
        run.join_and_wait(2)
        run.train(3)
        run.finish()

    assert run.sample("runs_finished_total") == 2


def test_a_worker_that_joins_after_all_have_died_goes_on_with_the_run() -> None:
    run = SimulatedRun(7, idle_timeout_seconds=3.0)
    run.join_and_wait(2)
    run.train(3)
    for worker in run.workers:
        run.network.kill(worker.host)
    run.network.run(lambda: not len(run.master.roster), seconds=60)

    [heir] = run.join_and_wait(1, seconds=10)

    assert heir.replica.digest() == run.state.replica.digest()
    assert heir.versions == {**run.state.relay.versions, heir.rank: 0}
    assert heir.welcome is not None
    assert not heir.welcome.founder


def test_everyone_hears_why_the_master_stops() -> None:
    run = SimulatedRun(8, Link(loss=0.3))
    run.join_and_wait(4)

    run.master.stop("maintenance at noon", run.network.now)
    run.network.turn(run.master_host)
    run.network.run(lambda: all(w.closed for w in run.workers), seconds=60)

    heard = [w for w in run.workers if "maintenance at noon" in str(w.error)]
    assert all(isinstance(w.error, ConnectionLostError) for w in run.workers)
    # The reason is said three times and not acknowledged: at 30 % loss, nearly all hear it, and
    # the others notice the silence.
    assert len(heard) >= 3


def test_a_master_that_is_not_there_is_unreachable() -> None:
    run = SimulatedRun(10)
    run.network.kill(run.master_host)

    worker = run.join()
    run.network.run(lambda: worker.closed, seconds=61)

    assert isinstance(worker.error, UnreachableError)
    assert "no master answers at master (waited 60 s)" in str(worker.error)


@pytest.mark.seeds(5)
def test_one_worker_too_many_is_refused(seed: int) -> None:
    run = SimulatedRun(
        seed, bad_link(Random(seed), damages=True), master=MasterConfig(workers_max=2)
    )
    run.join_and_wait(2)

    third = run.join()
    run.network.run(lambda: third.closed, seconds=30)

    assert isinstance(third.error, RefusedError)
    assert third.error.code == "run_full"
    assert "2 workers take part, which is the limit" in str(third.error)
    run.train(2)
    run.finish()


def test_damaged_and_foreign_datagrams_are_counted_and_change_nothing() -> None:
    """A thousand random datagrams, and pieces of genuine ones, at the master's address."""
    run = SimulatedRun(12)
    run.join_and_wait(3)
    genuine: list[bytes] = []

    def listen(source: str, target: str, datagram: bytes) -> bool:
        genuine.append(datagram)
        return True

    run.network.on_datagram = listen
    run.train(2)
    endpoint, random = run.master_endpoint, run.random
    accepted = endpoint.counters.packets_accepted
    dropped = sum(endpoint.counters.drops.values())
    for _ in range(1000):
        if random.random() < 0.5:
            datagram = random.randbytes(random.randrange(1, 1500))
        else:
            whole = random.choice(genuine)
            datagram = whole[: random.randrange(len(whole))]
        hand_over(endpoint, [datagram], "attacker", run.network.now)

    assert endpoint.counters.packets_accepted == accepted
    assert sum(endpoint.counters.drops.values()) == dropped + 1000
    assert endpoint.counters.drops[Drop.NOT_AUTHENTIC] > 0
    run.train(2)
    run.finish()
