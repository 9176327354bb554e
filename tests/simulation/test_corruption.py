"""Replicas that are damaged, at workers and at the master: found, named and mended.

``pytest tests/simulation/test_corruption.py -k '[17]'`` shows one history again.
"""

from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pytest

from gradwire_codecs import Replica
from gradwire_server.config import MasterConfig
from support.network import bad_link, link_of
from support.simulated_worker import CHANGE, SimulatedWorker
from support.training import SimulatedRun

IDLE_SECONDS = 3.0
BITS = 20
"""Bits that are flipped where conservation is checked: an element that is far too large for a while
rounds what is applied to it meanwhile."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut replicas of some hundred elements into several blocks."""
    monkeypatch.setattr("gradwire_protocol.messages.snapshots.BLOCK_ELEMENTS", 64)


def begin(seed: int, random: Random, *, loss: float | None = None) -> SimulatedRun:
    """Let a run begin on a network that loses, repeats, delays and reorders."""
    link = link_of(random) if loss is None else replace(bad_link(random), loss=loss)
    run = SimulatedRun(
        seed,
        link,
        elements=random.choice([50, 400, 3000]),
        idle_timeout_seconds=IDLE_SECONDS,
        master=MasterConfig(
            idle_timeout_seconds=IDLE_SECONDS,
            recovery_seconds=4.0,
            update_log_bytes_max=random.choice([1, 2_000, 2**20]),
        ),
    )
    run.mismatches_expected = True
    return run


def flip(worker: SimulatedWorker, random: Random, *, bits: int = BITS, elements: int = 1) -> None:
    """Flip bits of a worker's replica; its parameters stay."""
    if not worker.is_gone:
        worker.may_multiply_damage = worker.participant.shared.scaled_change is not None
        values = worker.replica.values.view(np.uint32)
        for _ in range(elements):
            values[random.randrange(len(values))] ^= np.uint32(1 << random.randrange(bits))


def logged(worker: SimulatedWorker) -> Replica:
    """Return its replica as it was at its position of the log."""
    shared = worker.participant.shared
    values, _ = shared.repair.values_without(shared.accepted)
    return Replica(values)


def is_mended(run: SimulatedRun) -> bool:
    """Return whether every replica is what the updates in it lead to."""
    digests = run.state.digests
    assert digests is not None
    workers = [worker for worker in run.workers if worker.live and not worker.is_gone]
    return all(
        worker.lost is None
        and digests.at(worker.participant.shared.position) == logged(worker).digest()
        for worker in workers
    )


def is_but_for(run: SimulatedRun, worker: SimulatedWorker, element: int) -> bool:
    """Return whether a worker's replica is right but for one more in an element."""
    copy = logged(worker)
    copy.values[element] -= 1
    assert run.state.digests is not None
    return run.state.digests.at(worker.participant.shared.position) == copy.digest()


def wait_until_mended(run: SimulatedRun, *, seconds: float = 60.0) -> None:
    """Let all live workers look for what comes until no replica is damaged any more."""
    network = run.network
    end = network.now + seconds
    while not is_mended(run):
        assert network.now < end, "damage was not mended"
        for worker in run.workers:
            if worker.live and not worker.is_gone:
                worker.pull()
        network.run_for(0.1)


@pytest.mark.seeds(100)
def test_histories_in_which_replicas_of_workers_are_damaged(seed: int) -> None:
    random = Random(seed)
    run = begin(seed, random)
    run.join_and_wait(random.randint(2, 5))
    victims = random.sample(run.workers, random.randint(1, len(run.workers)))
    for victim in victims:
        for _ in range(random.choice([1, 1, 2])):
            damage = partial(flip, victim, random, elements=random.choice([1, 1, 3]))
            run.network.after(random.uniform(0, 6), damage)
    if random.random() < 0.3:
        run.network.after(random.uniform(0, 6), run.join)

    run.train(30, interval=0.3)
    run.network.run(lambda: all(w.live for w in run.workers), seconds=60)
    wait_until_mended(run)

    assert run.sample("digest_mismatches_total") > 0
    assert {w for w in run.workers if w.participant.shared.repair.repairs} <= set(victims)
    run.finish()


@pytest.mark.seeds(40)
def test_histories_in_which_workers_are_damaged_and_cut_off_and_the_master_is_killed(
    seed: int,
) -> None:
    random = Random(seed)
    run = begin(seed, random)
    run.damage_may_stay = True
    run.join_and_wait(random.randint(3, 5))
    victim = random.choice(run.workers)
    run.network.after(random.uniform(0, 6), partial(flip, victim, random))
    if random.random() < 0.5:
        kill = partial(run.kill_master, back_after=random.uniform(0.01, 5))
        run.network.after(random.uniform(0.1, 6), kill)
    for worker in random.sample(run.workers, 2):
        start, seconds = random.uniform(0, 6), random.uniform(1, 9)
        run.network.after(start, partial(run.cut_off, worker, seconds))

    run.train(40, interval=0.3)
    run.network.run_for(10)
    run.wait_until_all_are_back()
    wait_until_mended(run)

    run.finish()


@pytest.mark.parametrize("bit", [0, 7, 19, 30, 31])
def test_damage_is_found_by_the_next_digest_and_named(
    bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    run = begin(1, Random(1), loss=0.0)
    run.join_and_wait(3)
    run.network.run_for(1.0)
    victim = run.workers[1]

    victim.replica.values.view(np.uint32)[7] ^= np.uint32(1 << bit)
    victim.pull()
    run.network.run_for(1.0)
    victim.pull()
    run.network.run_for(1.0)
    victim.pull()

    assert run.sample("digest_mismatches_total") == 1
    assert run.sample("blocks_repaired_total") == 1
    repair = victim.participant.shared.repair
    assert (repair.repairs, repair.blocks_repaired) == (1, 1)
    assert is_mended(run)
    assert f"the replica of rank {victim.rank} ({victim.name}) is not what" in caplog.text
    assert f"blocks 0 (weights[0] to weights[{min(run.elements, 64) - 1}])" in caplog.text


def test_what_damage_has_made_a_worker_send_is_taken_back() -> None:
    """The replica is put right, and the parameters that training goes on with never were wrong."""
    run = begin(3, Random(3), loss=0.0)
    run.join_and_wait(2)
    victim, other = sorted(run.workers, key=lambda worker: worker.rank)
    victim.feedback.drop_residual()
    before = victim.feedback.parameters.copy()
    victim.change = other.change = 0.0

    victim.replica.values[7] += 2**20
    victim.step()
    assert victim.sent == 1
    wait_until_mended(run)
    victim.step()
    run.network.run_for(1.0)
    other.pull()

    assert victim.sent == 2
    assert np.abs(victim.feedback.parameters - before).max() < 2.0**-23
    assert np.abs(other.feedback.parameters - before).max() < 2 * CHANGE


def test_damage_of_the_master_is_said_where_it_is_sent_and_does_not_spread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = begin(2, Random(2), loss=0.0)
    run.join_and_wait(3)
    run.train(3)

    run.state.replica.values[0] ^= 1 << 5
    run.train(3)
    wait_until_mended(run)

    assert run.sample("digest_mismatches_total") == 0
    victim = run.workers[0]
    victim.replica.values[5] += 1
    for _ in range(90):
        victim.pull()
        run.network.run_for(0.1)
    assert "block 0 of the replica (weights[0] to weights[" in caplog.text
    assert "came from the master damaged" in caplog.text
    assert victim.participant.shared.repair.repairs == 0
    assert is_but_for(run, victim, 5)
