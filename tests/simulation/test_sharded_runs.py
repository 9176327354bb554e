"""Several masters that share the parameters: whatever goes wrong with one, all is as with one."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest

from gradwire.errors import UsageError
from gradwire.session import sharded_entry
from gradwire.session.entry import Entry
from gradwire.target.part import Part
from gradwire_protocol.messages.modes.mode import Mode, parse_mode
from support.keyed import RUN_KEY
from support.network import Link, link_of
from support.relayed_run import RelayedRun
from support.sharded_run import IDLE_SECONDS, PlainPart, ShardedRun, ShardedWorker
from support.tiers import count
from support.training import SimulatedRun
from support.two_masters import PairedRun

PARTS: tuple[tuple[type[SimulatedRun], ...], ...] = (
    (PlainPart, PlainPart),
    (PlainPart, PairedRun),
    (PairedRun, PlainPart),
    (PlainPart, PlainPart, PlainPart),
    (RelayedRun, PlainPart),
    (PlainPart, RelayedRun, PairedRun),
)
"""What each of the masters has besides workers: nothing, a standby, relays."""

HISTORIES = count(1_000, quick=20, of="histories with several masters")
BATCH = 5

IN_ROUNDS = parse_mode("averaging(every=2, round_timeout_seconds=1)")

MIXED_SEED = 19
"""Of a beginning in which a master loses its part."""

RANKS_SEED = 11
"""Of a history without faults, in which workers reach the masters in different orders."""


def begin(*kinds: type[SimulatedRun], workers: int = 3, seed: int = 1) -> ShardedRun:
    """Return a run with so many workers, on a good network."""
    run = ShardedRun(seed, Link(delay=0.005), kinds)
    run.begin(workers)
    return run


def test_workers_train_in_all_parts_and_end_with_the_same_bits() -> None:
    run = begin(PlainPart, PlainPart)
    run.train(20)
    accepted = [part.sample("updates_accepted_total") for part in run.runs]
    run.finish()

    assert all(accepted)


def part_faults(run: SimulatedRun, random: Random) -> list[Callable[[], object]]:
    """Return what may go wrong with one master, and with what stands beside it."""
    back_after = random.uniform(0.01, 6.0)
    if isinstance(run, PairedRun):
        return [
            partial(run.kill_primary, back_after=back_after),
            partial(run.kill_standby, back_after=back_after),
        ]
    if isinstance(run, RelayedRun):
        relay = random.choice([*run.relays])
        return [
            partial(run.kill_relay, relay, back_after=back_after),
            partial(run.kill_relay, relay),
            partial(run.restart_master, back_after),
        ]
    return [partial(run.restart_master, back_after)]


def faults_of(run: ShardedRun, random: Random) -> list[Callable[[], object]]:
    """Return what may go wrong in any place."""
    number = random.randrange(len(run.runs))
    worker = random.choice(run.workers)
    seconds = random.uniform(0.1, 6.0)
    return [
        *part_faults(run.runs[number], random),
        *part_faults(run.runs[number], random),
        partial(kill_one_of_several, run, worker),
        partial(cut_off, run, worker, [number], seconds),
        partial(cut_off, run, worker, range(len(run.runs)), seconds),
        partial(run.join_some, 1),
    ]


def kill_one_of_several(run: ShardedRun, worker: ShardedWorker) -> None:
    """Let a worker die, if another one is left."""
    if len(run.taking_part) > 1:
        worker.kill()


def cut_off(run: ShardedRun, worker: ShardedWorker, numbers: Sequence[int], seconds: float) -> None:
    """Let nothing through between a worker and some of the masters."""
    for shard in worker.shards:
        if shard.shard in numbers:
            run.runs[shard.shard].cut_off(shard, seconds)


def play(seed: int, mode: Mode | None = None) -> ShardedRun:
    """Play a history of a seed."""
    random = Random(seed)
    run = ShardedRun(
        seed,
        link_of(random),
        random.choice(PARTS),
        elements=random.choice([24, 400]),
        run_key=RUN_KEY if random.random() < 0.3 else None,
        watches_transport=random.random() < 0.2,
        mode=mode,
    )
    with run.watching_rounds():
        run.begin(random.randint(2, 5))
        faults = random.randint(0, 4)
        for _ in range(faults):
            run.network.after(random.uniform(0.0, 4.0), random.choice(faults_of(run, random)))
        run.train(15, interval=0.3)
        run.network.run_for(2 * IDLE_SECONDS + 6.0)  # all that is lost is missed
        run.wait_until_all_are_back()
        if random.random() < 0.5:
            run.join_and_wait(1)
        run.train(5)
        run.finish()
        if not faults:
            run.check_ranks()
    return run


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, HISTORIES, BATCH))
def test_whatever_goes_wrong_with_one_master_nothing_is_lost(first: int) -> None:
    for seed in range(first, first + BATCH):
        play(seed)


@pytest.mark.timeout(300)
@pytest.mark.seeds(60)
def test_nothing_is_lost_where_several_masters_have_rounds(seed: int) -> None:
    play(seed, IN_ROUNDS)


def begin_again(run: ShardedRun) -> None:
    """Let a worker join; where the masters are of several minds, after they are restarted."""
    run.wait_for_masters()
    [worker] = run.join_and_wait(1)
    if not worker.live and isinstance(worker.error, UsageError):
        for part in run.runs:
            part.restart_master(0.0)
        run.network.run_for(30.0)
        run.wait_for_masters()
        [worker] = run.join_and_wait(1)
    assert worker.live


def play_beginning(seed: int) -> ShardedRun:
    """Play a history in which a worker or a master dies while the run begins."""
    random = Random(seed)
    run = ShardedRun(seed, link_of(random), random.choice(PARTS), elements=random.choice([24, 400]))
    run.wait_for_masters()
    with run.watching_rounds():
        workers = run.join_some(random.randint(2, 4))
        part = random.choice([None, *run.runs])
        lost = workers[0].kill if part is None else partial(part.restart_master, random.random())
        run.network.after(random.uniform(0.0, 1.0), lost)
        run.network.run_for(1.0)
        run.network.run(lambda: all(w.live or w.is_gone for w in workers), seconds=200)
        if not run.taking_part:
            begin_again(run)
        run.train(5)
        run.finish()
    return run


@pytest.mark.timeout(120)
@pytest.mark.seeds(300)
def test_whoever_dies_while_a_run_begins_one_worker_begins_all_of_it(seed: int) -> None:
    play_beginning(seed)


# Planted faults.


def test_a_run_that_is_made_of_two_workers_parameters_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharded_entry, "_check_that_all_begin", lambda entries: None)

    with pytest.raises(AssertionError, match="one begins all parts"):
        play_beginning(MIXED_SEED)


def test_a_worker_with_a_rank_of_its_own_at_each_master_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dial = ShardedWorker._dial

    def without_rank(self: ShardedWorker, number: int, part: Part, _: int | None) -> Entry:
        return dial(self, number, part, None)

    monkeypatch.setattr(ShardedWorker, "_dial", without_rank)

    with pytest.raises(AssertionError, match="one rank everywhere"):
        play(RANKS_SEED)
