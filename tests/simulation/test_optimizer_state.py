"""A joiner gets the state of another worker's optimizer, or hears that there is none.

Every value of a state says whose it is and of which step, so that one which was put together of two
would be noticed. ``pytest tests/simulation/test_optimizer_state.py -k '[17]'`` shows one history
again.
"""

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from gradwire.optimizer import state as optimizer_state
from gradwire_server.config import MasterConfig
from gradwire_server.master.optimizer_states import PARTS_UNDER_WAY_MAX, SOURCE_SECONDS
from support.keyed import RUN_KEY
from support.network import Host, Link, link_of
from support.state_keeper import StateKeeper, training
from support.training import SimulatedRun
from support.two_masters import PairedRun

ELEMENTS = 2_000
PART_BYTES = 2**9
PARTS = 1 + -(-(8 + 8 * ELEMENTS) // PART_BYTES)
IDLE_SECONDS = 3.0
SLOW = Link(delay=0.02)


@pytest.fixture(autouse=True)
def states_have_many_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small states travel as large ones do."""
    monkeypatch.setattr(optimizer_state, "STATE_PART_BYTES", PART_BYTES)


def begin(seed: int, link: Link = SLOW, **options: object) -> SimulatedRun:
    """Let a run begin whose workers give their states."""
    settings = MasterConfig(idle_timeout_seconds=IDLE_SECONDS, recovery_seconds=2.0)
    run = SimulatedRun(
        seed,
        link,
        elements=ELEMENTS,
        idle_timeout_seconds=IDLE_SECONDS,
        master=settings,
        watches_transport=False,
        **options,  # type: ignore[arg-type]
    )
    run.gives_state = True
    return run


def join(run: SimulatedRun, n: int = 1) -> list[StateKeeper]:
    """Let workers join, each with an optimizer, and wait until they are live."""
    keepers = [StateKeeper(run.join()) for _ in range(n)]
    run.network.run(lambda: all(keeper.worker.live for keeper in keepers), seconds=60)
    return keepers


def wait_until_answered(run: SimulatedRun, *keepers: StateKeeper, seconds: float = 120) -> None:
    run.network.run(lambda: all(keeper.answered for keeper in keepers), seconds=seconds)


def ask_and_wait(run: SimulatedRun, *keepers: StateKeeper, seconds: float = 120) -> None:
    """Let workers ask for states, and wait until they have them or know that there are none."""
    for keeper in keepers:
        keeper.ask()
    wait_until_answered(run, *keepers, seconds=seconds)


def wait_for_part(run: SimulatedRun, keeper: StateKeeper, n: int = 2) -> None:
    """Wait until some parts of a state are here, and others are not."""
    run.network.run(lambda: keeper.parts_received >= n, seconds=60)
    assert keeper.parts_received < PARTS


def asker_midway(run: SimulatedRun) -> StateKeeper:
    """Return one that has joined others who train, and has got a part of a state."""
    run.network.run_for(0.3)
    [joiner] = join(run)
    joiner.ask()
    wait_for_part(run, joiner)
    return joiner


def check_nothing_is_kept(run: SimulatedRun, *keepers: StateKeeper) -> None:
    """Nobody keeps anything of a state that was given."""
    run.network.run(
        lambda: not run.master.states_awaited and not any(k.copies or k.wanted for k in keepers),
        seconds=30,
    )


def check_run(run: SimulatedRun) -> None:
    """See that the run itself goes on as if nothing had been."""
    for worker in run.workers:
        if worker.host.alive and worker.live:
            assert worker.error is None
    run.finish()


def test_a_joiner_is_given_the_state_of_one_moment() -> None:
    run = begin(1)
    first, second = join(run, 2)
    with training(first, second):
        run.network.run_for(0.3)
        [joiner] = join(run)
        ask_and_wait(run, joiner)
        assert joiner.origin() in (first.mark, second.mark)
        check_nothing_is_kept(run, first, second)
    check_run(run)


def test_no_more_parts_are_under_way_than_the_master_may_keep() -> None:
    """Although the asker's link is a hundred times longer than the source's."""
    run = begin(2, Link(delay=0.001))
    [first] = join(run)
    [joiner] = join(run)
    run.network.set_link("master", joiner.worker.name, Link(delay=0.2))
    most = 0

    def look(host: Host) -> None:
        nonlocal most
        for member in run.master.roster:
            most = max(most, len(member.state_parts))

    run.network.after_turn = look
    with training(first):
        run.network.run_for(0.2)
        ask_and_wait(run, joiner)
    assert joiner.origin() == first.mark
    assert most == PARTS_UNDER_WAY_MAX


def test_the_source_dies_midway_and_another_one_gives_all_of_its_own() -> None:
    run = begin(3)
    first, second = join(run, 2)
    by_mark = {keeper.mark: keeper for keeper in (first, second)}
    with training(first, second):
        joiner = asker_midway(run)
        [source] = [keeper for keeper in (first, second) if keeper.copies]
        run.network.kill(source.worker.host)
        wait_until_answered(run, joiner)

    assert by_mark[joiner.origin()] is not source
    check_run(run)


def test_the_only_source_dies_midway_and_the_joiner_is_told() -> None:
    run = begin(4)
    [first] = join(run)
    with training(first):
        joiner = asker_midway(run)
        run.network.kill(first.worker.host)
        wait_until_answered(run, joiner)

    assert (joiner.state, joiner.reason) == (None, "worker0 has gone")
    check_run(run)


def test_the_joiner_dies_midway_and_the_source_forgets_the_copy() -> None:
    run = begin(5)
    [first] = join(run)
    with training(first):
        joiner = asker_midway(run)
        run.network.kill(joiner.worker.host)
        check_nothing_is_kept(run, first)

        [another] = join(run)
        ask_and_wait(run, another)
        assert another.origin() == first.mark
    check_run(run)


@pytest.mark.parametrize("who", ["joiner", "source"])
def test_a_connection_is_lost_midway_and_the_joiner_gets_a_state_all_the_same(who: str) -> None:
    run = begin(6)
    [first] = join(run)
    with training(first):
        joiner = asker_midway(run)
        run.cut_off((joiner if who == "joiner" else first).worker, 2 * IDLE_SECONDS)
        wait_until_answered(run, joiner)
        if who == "source":
            assert joiner.reason == "worker0 has gone"
        else:
            assert joiner.worker.reconnections == 1
            assert joiner.origin() == first.mark
        run.network.run_for(2 * IDLE_SECONDS)
        check_nothing_is_kept(run, first)
    check_run(run)


def test_a_master_that_is_started_anew_is_asked_again() -> None:
    run = begin(7)
    [first] = join(run)
    with training(first):
        joiner = asker_midway(run)
        run.kill_master(back_after=0.5)
        wait_until_answered(run, joiner)
        assert joiner.origin() == first.mark
        assert run.sample("optimizer_state_parts_total") == PARTS
        check_nothing_is_kept(run, first)
    check_run(run)


def test_a_standby_that_takes_over_is_asked_again() -> None:
    run = PairedRun(8, SLOW, elements=ELEMENTS)
    run.gives_state = True
    run.network.run(lambda: run.primary.terms.in_charge, seconds=30)
    first, second = join(run, 2)
    with training(first, second):
        run.network.run_for(0.3)
        [joiner] = join(run)
        run.wait_for_standby()
        joiner.ask()
        wait_for_part(run, joiner)
        run.kill_primary()
        wait_until_answered(run, joiner)

    assert run.standby.terms.in_charge
    assert joiner.origin() in (first.mark, second.mark)
    run.wait_until_all_are_back()
    run.finish_all()


def test_nobody_who_shares_is_said_at_once() -> None:
    run = begin(10)
    run.gives_state = False
    [first] = join(run)
    [joiner] = join(run)
    with training(first):
        ask_and_wait(run, joiner, seconds=1)

    assert (joiner.state, joiner.reason) == (None, "no other worker has one to give")
    check_run(run)


def test_who_has_made_no_step_says_so_at_once() -> None:
    run = begin(11)
    first, second = join(run, 2)
    run.network.run_for(1)  # so that the master knows that both are live

    ask_and_wait(run, first, second, seconds=1)

    assert [first.reason, second.reason] == [
        "worker1: it has made no step yet",
        "worker0: it has made no step yet",
    ]
    check_run(run)


def test_a_source_that_stands_still_is_left_for_one_that_steps() -> None:
    run = begin(12)
    first, second = join(run, 2)
    with training(first):
        run.network.run_for(1)
    with training(second):
        second.step()
        [joiner] = join(run)
        joiner.ask()
        assert joiner.worker.run is run
        run.network.run(lambda: first.wanted, seconds=5)
        began = run.network.now
        wait_until_answered(run, joiner)
        assert SOURCE_SECONDS <= run.network.now - began < SOURCE_SECONDS + 5
        assert joiner.origin() == second.mark
        check_nothing_is_kept(run, first, second)
    check_run(run)


def test_who_gives_up_waiting_is_not_sent_anything_more() -> None:
    run = begin(13)
    first, second = join(run, 2)
    with training(first):
        run.network.run_for(0.3)
    [joiner] = join(run)
    joiner.ask(give_up_after=2.0)
    wait_until_answered(run, joiner)
    check_nothing_is_kept(run, first, second)
    with training(first):
        run.network.run_for(2)

    assert joiner.reason == "none came in time"
    assert first.steps > 10
    assert run.sample("optimizer_state_parts_total") == 0
    check_run(run)


def test_several_joiners_share_the_sources_and_each_source_its_copy() -> None:
    run = begin(14, Link(delay=0.01))
    sources = join(run, 2)
    with training(*sources):
        run.network.run_for(0.3)
        joiners = join(run, 4)
        ask_and_wait(run, *joiners, seconds=60)
        marks = [joiner.origin() for joiner in joiners]
        assert sorted(marks) == sorted([source.mark for source in sources] * 2)
        check_nothing_is_kept(run, *sources)
    check_run(run)


@pytest.mark.seeds(40)
def test_histories_in_which_something_happens_while_states_are_given(seed: int) -> None:
    random = Random(seed)
    link = link_of(random)
    run = begin(seed, link, run_key=RUN_KEY if seed % 3 == 0 else None)
    sources = join(run, random.randint(1, 4))
    faults: list[Callable[[StateKeeper, StateKeeper], object]] = [
        lambda source, _: run.network.kill(source.worker.host),
        lambda _, joiner: run.network.kill(joiner.worker.host),
        lambda source, _: run.cut_off(source.worker, random.uniform(0.5, 8)),
        lambda _, joiner: run.cut_off(joiner.worker, random.uniform(0.5, 8)),
        lambda *_: run.kill_master(back_after=random.uniform(0.01, 1)),
    ]
    with training(*sources):
        run.network.run_for(0.3)
        joiners = join(run, random.randint(1, 2))
        for joiner in joiners:
            joiner.ask(give_up_after=60)
        for _ in range(random.randint(1, 2)):
            fault = random.choice(faults)
            source, joiner = random.choice(sources), random.choice(joiners)
            run.network.after(
                random.uniform(0, random.choice([0.6, 2])), partial(fault, source, joiner)
            )
        run.network.run_for(2)  # whatever strikes has struck by then
        alive = [joiner for joiner in joiners if joiner.worker.host.alive]
        wait_until_answered(run, *alive, seconds=70)
        for joiner in alive:
            if joiner.state is not None:
                assert joiner.origin() in [source.mark for source in sources]
        check_nothing_is_kept(run, *(s for s in sources if s.worker.host.alive))
    for worker in run.workers:
        assert worker.error is None
