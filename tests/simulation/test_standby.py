"""A run with two masters, either of which is killed, started anew, or cut off from the other.

``pytest tests/simulation/test_standby.py -k '[17]'`` shows one history again.
"""

from functools import partial
from random import Random

import pytest

from gradwire_protocol.messages.fields import covers
from support.keyed import RUN_KEY
from support.network import Link, link_of
from support.training import MASTER
from support.two_masters import STANDBY, PairedRun


def paired(seed: int, random: Random, *, sealed: bool = False) -> PairedRun:
    """Let a run begin on a network that loses, repeats, delays and reorders."""
    run = PairedRun(
        seed,
        link_of(random),
        elements=random.choice([50, 400, 3000]),
        run_key=RUN_KEY if sealed else None,
    )
    run.begin(random.randint(2, 5))
    return run


def small(seed: int, workers: int) -> PairedRun:
    """Let a run begin on a network that loses nothing."""
    run = PairedRun(seed, Link(delay=0.005))
    run.begin(workers)
    return run


def have_the_standby_take_over(run: PairedRun, *, back_after: float | None = None) -> None:
    """Kill the primary, and wait until all workers are back with the standby."""
    run.kill_primary(back_after=back_after)
    run.network.run(lambda: run.standby.terms.in_charge, seconds=30)
    run.wait_until_all_are_back(seconds=200)


def come_to_rest(run: PairedRun, *, after: float = 0.0) -> None:
    """Wait some seconds, and until all workers are back with a master; train on, and finish."""
    run.network.run_for(after)
    run.wait_until_all_are_back(seconds=200)
    run.train(3)
    run.finish_all()


@pytest.mark.timeout(120)
@pytest.mark.seeds(30)
def test_histories_in_which_the_primary_is_killed(seed: int) -> None:
    random = Random(seed)
    run = paired(seed, random, sealed=seed % 3 == 0)
    run.network.after(random.uniform(0, 3), run.kill_primary)

    run.train(15, interval=0.3)
    run.network.run(lambda: run.standby.terms.in_charge, seconds=60)
    run.wait_until_all_are_back(seconds=200)
    run.train(3)

    assert run.standby.terms.term == 2
    run.finish_all()


@pytest.mark.timeout(120)
@pytest.mark.seeds(30)
def test_histories_in_which_the_primary_is_killed_and_started_anew_at_once(seed: int) -> None:
    """It and its standby race: whichever wins, there is one master, and nothing is lost."""
    random = Random(100 + seed)
    run = paired(100 + seed, random, sealed=seed % 3 == 0)
    for _ in range(random.choice([1, 1, 2])):
        back_after = random.choice([random.uniform(0.01, 1), random.uniform(1, 9)])
        run.network.after(random.uniform(0, 3), partial(run.kill_primary, back_after=back_after))
        run.train(15, interval=0.3)
        run.network.run_for(10)

    come_to_rest(run)


@pytest.mark.timeout(120)
@pytest.mark.seeds(40)
def test_histories_in_which_the_masters_are_cut_off_from_each_other(seed: int) -> None:
    """And some of the workers from one or from the other, so that either may have too few."""
    random = Random(200 + seed)
    run = paired(200 + seed, random)
    seconds = random.choice([random.uniform(1, 5), random.uniform(5, 25)])
    at = random.uniform(0, 3)
    run.network.after(at, partial(run.separate, MASTER, STANDBY, seconds))
    for worker in run.workers:
        side = random.choice([MASTER, STANDBY, None])
        if side is not None:
            jitter = random.uniform(0, 2)
            run.network.after(at + jitter, partial(run.separate, worker.name, side, seconds))

    run.train(20, interval=0.5)

    come_to_rest(run, after=30)


@pytest.mark.timeout(120)
@pytest.mark.seeds(20)
def test_histories_in_which_the_standby_is_killed_and_started_anew(seed: int) -> None:
    """Nobody is held up; and later it takes over as if nothing had been."""
    random = Random(300 + seed)
    run = paired(300 + seed, random)
    back_after = random.uniform(0.01, 8)
    run.network.after(random.uniform(0, 3), partial(run.kill_standby, back_after=back_after))
    run.train(15, interval=0.3)
    run.network.run_for(10)
    assert {worker.reconnections for worker in run.workers} == {0}

    run.wait_for_standby()
    run.kill_primary()
    run.train(3)
    run.network.run(lambda: run.standby.terms.in_charge, seconds=60)

    come_to_rest(run)


@pytest.mark.timeout(120)
@pytest.mark.seeds(20)
def test_histories_in_which_both_are_killed_and_started_anew(seed: int) -> None:
    """Workers bring the run back to the primary, which knows from its standby that it may go on."""
    random = Random(400 + seed)
    run = paired(400 + seed, random)
    run.network.after(
        random.uniform(0, 3), partial(run.kill_primary, back_after=random.uniform(0.1, 9))
    )
    run.network.after(
        random.uniform(0, 12), partial(run.kill_standby, back_after=random.uniform(0.1, 9))
    )
    run.train(15, interval=0.3)

    come_to_rest(run, after=25)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("kept", "winner"), [(0, STANDBY), (1, STANDBY), (2, MASTER), (3, MASTER), (4, MASTER)]
)
def test_of_two_masters_that_are_cut_off_the_one_goes_on_that_has_enough_workers(
    kept: int, winner: str
) -> None:
    run = small(7, 4)
    run.train(3)
    run.separate(MASTER, STANDBY, 1e6)
    for worker in run.workers[:kept]:
        run.separate(worker.name, STANDBY, 1e6)
    for worker in run.workers[kept:]:
        run.separate(worker.name, MASTER, 1e6)

    run.train(40, interval=0.5)

    goes_on, other = (run.standby, run.primary) if winner == STANDBY else (run.primary, run.standby)
    assert goes_on.terms.in_charge
    assert not other.terms.in_charge
    here = run.workers[kept:] if winner == STANDBY else run.workers[:kept]
    assert len(goes_on.roster.workers) == len(here)
    assert {worker.lost for worker in here} == {None}
    before = dict(run.told_stable)
    for worker in here:
        worker.step()
    run.network.run(lambda: run.told_stable != before, seconds=10)

    for worker in run.workers:
        for master in (MASTER, STANDBY):
            run.separate(worker.name, master, 0.0)
    run.wait_until_all_are_back(seconds=200)
    run.finish_all()


def test_without_its_standby_a_primary_goes_on_and_soon_needs_no_half_of_its_workers() -> None:
    run = small(8, 4)
    run.kill_standby()
    run.network.run(lambda: run.primary.terms.term == 3, seconds=30)
    run.network.run_for(1)

    for worker in run.workers[1:]:
        run.network.kill(worker.host)
    run.train(20, interval=0.5)

    assert run.primary.terms.in_charge
    assert run.told_stable[run.workers[0].rank] > 0
    run.finish_all()


def test_a_worker_that_knows_only_the_standby_finds_the_primary() -> None:
    run = small(9, 2)
    run.dialled = STANDBY

    run.join_and_wait(1, seconds=30)

    assert len(run.primary.roster.workers) == 3
    run.train(3)
    run.finish_all()


def test_a_worker_that_knows_only_the_primary_finds_the_standby_in_its_place() -> None:
    run = small(10, 2)
    have_the_standby_take_over(run, back_after=8.0)
    run.network.run_for(8)

    run.join_and_wait(1, seconds=30)

    assert len(run.standby.roster.workers) == 3
    assert not run.primary.terms.in_charge
    run.train(3)
    run.finish_all()


def test_a_standby_that_is_started_anew_gives_the_run_back_to_the_primary() -> None:
    run = small(11, 3)
    have_the_standby_take_over(run, back_after=6.0)  # sooner, either may be in charge
    run.train(3)

    run.kill_standby(back_after=1.0)
    run.train(10, interval=0.5)
    run.network.run(lambda: run.primary.terms.in_charge, seconds=60)
    run.wait_until_all_are_back(seconds=200)

    assert run.primary.terms.term == 3
    run.wait_for_standby()
    run.finish_all()


def test_who_stops_in_order_hands_over() -> None:
    run = small(12, 3)
    run.train(3)

    run.primary.stop("its machine is needed", run.network.now)
    run.network.turn(run.primary_host)
    run.network.run_for(0.5)
    run.kill_primary()
    run.wait_until_all_are_back(seconds=200)

    assert run.standby.terms.in_charge
    run.finish_all()


def test_a_standby_that_lags_behind_holds_nobody_up() -> None:
    run = small(13, 2)
    run.network.set_link(MASTER, STANDBY, Link(delay=0.005, rate=3_000.0))

    run.train(200, interval=0.1)

    assert [worker.reconnections for worker in run.workers] == [0, 0]
    run.network.run(
        lambda: covers(run.told_stable, {w.rank: w.versions[w.rank] for w in run.workers}),
        seconds=60,
    )
    run.finish_all()


@pytest.mark.timeout(120)
@pytest.mark.seeds(40)
def test_histories_of_everything_at_once(seed: int) -> None:
    """Masters die and are back, anybody is cut off from anybody, workers die, others come."""
    random = Random(500 + seed)
    run = paired(500 + seed, random)
    everyone = [MASTER, STANDBY, *(worker.name for worker in run.workers)]
    for _ in range(random.randint(1, 6)):
        back_after = random.choice([random.uniform(0.01, 1), random.uniform(1, 9)])
        one, other = random.sample(everyone, 2)
        happens = random.choice(
            [
                partial(run.kill_primary, back_after=back_after),
                partial(run.kill_standby, back_after=back_after),
                partial(run.separate, MASTER, STANDBY, random.uniform(1, 15)),
                partial(run.separate, one, other, random.uniform(1, 15)),
                partial(run.separate, one, other, random.uniform(1, 15)),
            ]
        )
        run.network.after(random.uniform(0, 12), happens)
    if len(run.workers) > 3 and random.random() < 0.3:
        run.network.after(random.uniform(0, 6), partial(run.network.kill, run.workers[0].host))
    run.train(25, interval=0.6)
    run.network.run_for(30)
    run.wait_until_all_are_back(seconds=200)
    run.join_and_wait(1, seconds=30)
    run.train(3)

    run.finish_all()


def test_workers_come_back_before_new_ones_join_however_long_a_master_waits_for_its_standby() -> (
    None
):
    run = small(1, 2)
    run.train(5)
    before = [worker.rank for worker in run.workers]

    run.kill_primary(back_after=0.1)
    run.kill_standby(back_after=8.0)  # workers could have been back at the primary by then
    run.network.run_for(1.0)
    run.network.run(lambda: run.primary.terms.in_charge, seconds=30)
    new = run.join()
    run.network.run(lambda: new.live, seconds=30)

    assert [worker.rank for worker in run.workers] == [*before, 2]
    come_to_rest(run)
