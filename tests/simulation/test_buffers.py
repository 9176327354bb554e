"""Buffers are averaged exactly: whatever happens, all who finish end with the same bits.

That what is averaged stays in the range of what was sent, `support.simulated_buffers` checks with
every mean. ``pytest tests/simulation/test_buffers.py -k '[17]'`` shows one history again.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from gradwire_server.config import MasterConfig
from support.keyed import RUN_KEY
from support.network import Link, link_of
from support.simulated_buffers import SimulatedBuffers
from support.simulated_worker import SimulatedWorker
from support.tiers import count
from support.training import SimulatedRun
from support.two_masters import PairedRun

IDLE_SECONDS = 3.0
UNSENT_STEPS = count(2_000, quick=300, of="steps that a worker does not hear of")


def begin(
    seed: int,
    random: Random,
    *,
    workers: int,
    steps: int | None = None,
    observes: bool = False,
) -> SimulatedRun:
    """Let a run begin in which all have buffers, on a network that does what networks do."""
    run = SimulatedRun(
        seed,
        link_of(random),
        elements=20,
        idle_timeout_seconds=IDLE_SECONDS,
        master=MasterConfig(idle_timeout_seconds=IDLE_SECONDS, recovery_seconds=4.0),
        run_key=RUN_KEY if observes else None,
    )
    return with_buffers(run, workers, steps=random.choice([0, 1, 3]) if steps is None else steps)


def with_buffers(run: SimulatedRun, workers: int, *, steps: int) -> SimulatedRun:
    """Let workers join whose buffers are averaged every so many steps."""
    run.buffer_steps = steps
    run.new_buffers = partial(new_buffers, run)  # type: ignore[method-assign]
    run.join_and_wait(workers)
    return run


def new_buffers(run: SimulatedRun, name: str) -> SimulatedBuffers:
    return SimulatedBuffers(name, run.seed, run.buffers_seen)


def let_all_finish(run: SimulatedRun, *, within: float) -> None:
    """Let all finish within some seconds, and wait until each is done, or gone for ever."""
    for worker in run.workers:
        if not worker.is_gone:
            run.network.after(within * run.random.random(), partial(finish, worker))

    def is_over(worker: SimulatedWorker) -> bool:
        return not worker.host.alive or worker.closed or worker.try_to_complete()

    run.network.run(lambda: sum(map(is_over, run.workers)) == len(run.workers), seconds=200)


def finish(worker: SimulatedWorker) -> None:
    if not worker.is_gone:
        worker.finish()


def check_ends(run: SimulatedRun) -> int:
    """Check that all with the same parameters have the same buffers; return how many have these.

    Who is cut off until the others have finished and left goes on alone, and ends with what is
    its own; so there may be two groups.
    """
    groups = defaultdict[bytes, list[SimulatedWorker]](list)
    for worker in run.workers:
        if worker.done:
            groups[worker.replica.values.tobytes()].append(worker)
    for group in groups.values():
        modules = [worker.module for worker in group if worker.module is not None]
        assert all(module.read().equals(modules[0].read()) for module in modules)
    return max(map(len, groups.values()))


def strike(run: SimulatedRun, random: Random) -> Callable[[], None]:
    """Return something that goes wrong."""
    victim = random.choice(run.workers)
    return random.choice(
        [
            partial(run.network.kill, victim.host),
            partial(run.kill_master, back_after=random.choice([0.01, 0.5, 4.0])),
            partial(run.cut_off, victim, IDLE_SECONDS * random.choice([0.5, 1.5, 2.5])),
            partial(run.network.suspend, run.master_host, IDLE_SECONDS * random.choice([0.5, 2])),
        ]
    )


@pytest.mark.timeout(120)
@pytest.mark.seeds(60)
def test_histories_in_which_something_goes_wrong_while_all_finish(seed: int) -> None:
    random = Random(seed)
    run = begin(seed, random, workers=random.randint(2, 5))
    run.train(random.randint(1, 6))
    within = random.choice([0.0, 0.1, 2.0])
    run.network.after(random.uniform(0, within + 0.3), strike(run, random))

    let_all_finish(run, within=within)

    assert check_ends(run) >= len(run.workers) - 1


@pytest.mark.timeout(120)
@pytest.mark.seeds(30)
def test_histories_in_which_the_primary_is_killed_while_all_finish(seed: int) -> None:
    random = Random(1_000 + seed)
    run = PairedRun(1_000 + seed, link_of(random), elements=20)
    run.network.run(lambda: run.primary.terms.in_charge, seconds=30)
    with_buffers(run, random.randint(2, 5), steps=random.choice([0, 1, 3]))
    run.wait_for_standby()
    run.train(random.randint(1, 6))
    within = random.choice([0.0, 0.1, 2.0])
    run.network.after(random.uniform(0, within + 0.3), run.kill_primary)

    let_all_finish(run, within=within)

    assert check_ends(run) == len(run.workers)


@pytest.mark.seeds(10)
def test_who_has_ended_and_died_with_the_master_has_ended_with_what_the_others_end_with(
    seed: int,
) -> None:
    """Only they can tell a master that is started anew what its last buffers were."""
    run = begin(seed, Random(seed), workers=3)
    run.train(4)
    ended, *others = run.workers
    deaf = {worker.name for worker in others}
    run.network.on_datagram = lambda source, target, datagram: (
        target not in deaf or run.master.run is None or not run.state.finished
    )
    for worker in run.workers:
        worker.finish()
    run.network.run(ended.try_to_complete, seconds=30)
    run.network.kill(run.master_host)
    run.network.kill(ended.host)
    run.network.on_datagram = lambda *_: True
    assert not any(worker.finished for worker in others)

    run.network.after(0.1, run.start_master_anew)
    run.network.run(lambda: sum(w.try_to_complete() for w in others) == 2, seconds=60)

    assert check_ends(run) == 3


@pytest.mark.seeds(5)
def test_who_has_finished_and_is_gone_counts_until_the_run_is_finished(seed: int) -> None:
    run = begin(seed, Random(seed), workers=3)
    run.train(4)
    gone, *others = run.workers
    gone.finish()
    run.network.run(lambda: any(peer.finished for peer in others[0].peers), seconds=10)
    run.network.kill(gone.host)
    run.network.run(lambda: len(others[0].peers) == 2, seconds=30)

    for worker in others:
        worker.finish()
    run.network.run(lambda: sum(w.try_to_complete() for w in others) == 2, seconds=30)

    assert check_ends(run) == 2
    assert set(others[0].buffers) == {gone.rank, others[1].rank}


@pytest.mark.seeds(5)
def test_who_leaves_counts_no_more_and_who_takes_its_rank_inherits_nothing(seed: int) -> None:
    run = begin(seed, Random(seed), workers=2, steps=1)
    stays, leaves = run.workers
    rank = leaves.rank
    run.train(1)
    run.network.run(lambda: rank in stays.buffers, seconds=10)
    leaves.leave()
    run.network.run(lambda: rank not in stays.buffers, seconds=10)

    [newcomer] = run.join_and_wait(1, seconds=10)

    assert newcomer.rank == rank
    assert rank not in stays.buffers
    run.train(3)
    run.finish()


@pytest.mark.seeds(5)
def test_a_joiner_and_who_is_back_know_what_the_others_have(seed: int) -> None:
    run = begin(seed, Random(seed), workers=3, steps=1)
    run.train(3)
    first, second, lost = run.workers
    run.network.run(lambda: len(first.buffers) == 2, seconds=10)
    run.cut_off(lost, 2 * IDLE_SECONDS)
    run.network.run(lambda: lost.rank not in first.buffers, seconds=30)

    joiner = run.join()
    run.network.run(lambda: joiner.live and len(joiner.membership.buffers) == 2, seconds=30)
    run.network.run(
        lambda: all(lost.rank in each.buffers for each in (first, second, joiner)), seconds=60
    )

    assert (
        joiner.membership.buffers[lost.rank]
        == first.buffers[lost.rank]
        == second.buffers[lost.rank]
    )
    assert set(lost.buffers) == {first.rank, second.rank}
    assert lost.buffers[first.rank] == second.buffers[first.rank]
    run.train(3)
    run.finish()


@pytest.mark.seeds(5)
def test_an_observer_ends_with_the_same_bits(seed: int) -> None:
    run = begin(seed, Random(seed), workers=3, observes=True)
    observer = run.observe()
    run.network.run(lambda: observer.live, seconds=30)
    run.train(4)

    run.finish()

    assert observer.done  # `check_the_end` has compared its buffers


def test_a_slow_worker_is_sent_only_the_latest_of_each_rank() -> None:
    run = with_buffers(
        SimulatedRun(1, Link(delay=0.001), elements=3, idle_timeout_seconds=1e3), 3, steps=1
    )
    slow, *others = run.workers
    run.cut_off(slow, 60.0)
    member = next(each for each in run.master.roster if each.rank == slow.rank)
    for _ in range(UNSENT_STEPS):
        for worker in others:
            worker.step()
        run.network.run_for(0.01)

    assert len(member.buffers.unsent) <= 2
    assert member.buffers.nbytes <= 5 * 2**20
    run.network.run(lambda: member.buffers.is_complete, seconds=120)
    first, second = others
    assert slow.buffers[first.rank] == second.buffers[first.rank]
    assert slow.buffers[second.rank] == first.buffers[second.rank]
    run.finish()
