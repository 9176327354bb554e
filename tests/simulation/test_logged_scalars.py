"""What workers log comes to the master, whatever the network does, and counts once."""

from itertools import pairwise

import pytest

from gradwire_protocol.messages.checkpoint import parse
from gradwire_server.config import MasterConfig
from gradwire_server.http.api.documents import OWN_PREFIX
from gradwire_server.series.series import Series
from gradwire_server.state.run import Run
from support.checkpointing import ScriptedWriter
from support.curves import Bucket, buckets_in
from support.distributions import histograms, steps_in
from support.keyed import RUN_KEY
from support.network import Link
from support.operating import SimulatedOperator
from support.relayed_run import RelayedRun
from support.simulated_worker import SimulatedWorker
from support.training import MASTER, SimulatedRun
from support.two_masters import PairedRun

STEPS = 30


def join(run: SimulatedRun, count: int) -> list[SimulatedWorker]:
    workers = [run.join() for _ in range(count)]
    run.network.run(lambda: all(worker.live for worker in workers), seconds=30)
    return workers


def train(run: SimulatedRun, steps: int) -> None:
    """Let all workers make steps, and log their number and twice that."""
    for _ in range(steps):
        run.train(1)
        for worker in run.workers:
            if worker.live:
                of = worker.participant.tally.steps
                worker.participant.log(None, {"step": float(of), "twice": 2.0 * of})


def log_histograms(run: SimulatedRun, seconds: int) -> int:
    """Let all workers log histograms of what they train; return how many messages were made."""
    made = 0
    for _ in range(4 * seconds):
        run.train(1)
        for worker in run.workers:
            if not worker.live:
                continue
            participant, of = worker.participant, worker.participant.tally.steps
            waiting = participant.worker.logged.histograms
            if waiting.has_room():
                some = histograms(1, of, "weight", "bias")
                waiting.put(of, some.tensors, some.names, some.histograms, worker.now)
                participant.membership.post(waiting.wake)
                made += 1
            else:
                waiting.leave_out()
        run.network.run_for(0.25)
    return made


def series_of(run: SimulatedRun) -> Series:
    assert run.master.run is not None
    return run.master.run.series


def of_script(series: Series) -> dict[tuple[str, int | None], list[Bucket]]:
    """Return the buckets of what scripts log, but for what sessions report themselves."""
    found = buckets_in(series)
    return {key: each for key, each in found.items() if not key[0].startswith(OWN_PREFIX)}


def has_all(run: SimulatedRun, steps: int) -> bool:
    """Return whether every scalar of the script has come; sessions report some of their own."""
    found = [
        bucket.count
        for (_, rank), buckets in of_script(series_of(run)).items()
        if rank is not None
        for bucket in buckets
    ]
    return sum(found) >= 2 * steps * len(run.workers)


def check(run: SimulatedRun, steps: int) -> None:
    """Check that every scalar is there once."""
    found = buckets_in(series_of(run))
    for rank in (None, *(worker.rank for worker in run.workers)):
        for name, times in (("step", 1), ("twice", 2)):
            buckets = found[name, rank]
            assert [(bucket.step, bucket.mean) for bucket in buckets] == [
                (step, float(times * step)) for step in range(1, steps + 1)
            ]
            assert {b.count for b in buckets} == {1 if rank is not None else len(run.workers)}
    names = [name for name in series_of(run).names() if not name.startswith(OWN_PREFIX)]
    assert names == ["step", "twice"]
    assert series_of(run).dropped == 0


@pytest.mark.parametrize("seed", range(5))
def test_all_of_it_comes_once_over_a_bad_network(seed: int) -> None:
    link = Link(delay=0.02, jitter=0.03, loss=0.1, duplication=0.1)
    run = SimulatedRun(seed, link, idle_timeout_seconds=3.0)
    join(run, 3)
    train(run, STEPS // 2)
    run.cut_off(run.workers[seed % 3], 5.0)  # longer than until the master gives it up
    train(run, STEPS - STEPS // 2)

    run.network.run(lambda: has_all(run, STEPS), seconds=60)
    run.network.run_for(5.0)

    check(run, STEPS)
    run.finish()


@pytest.mark.parametrize("seed", range(3))
def test_histograms_come_once_over_a_bad_network(seed: int) -> None:
    link = Link(delay=0.02, jitter=0.03, loss=0.1, duplication=0.1)
    run = SimulatedRun(seed, link, idle_timeout_seconds=3.0)
    workers = join(run, 3)
    made = log_histograms(run, 6)
    [lowest] = [worker for worker in workers if worker.rank == 0]
    run.cut_off(lowest, 5.0)  # longer than until the master gives it up
    made += log_histograms(run, 12)

    found = series_of(run).histograms
    run.network.run_for(5.0)

    assert found.newest is not None
    assert found.newest.rank == 0
    assert found.newest.step == max(steps_in(series_of(run), "bias", "update"))
    waiting = [worker.worker.logged.histograms for worker in workers]
    left_out = sum(each.dropped - each._unsaid for each in waiting)
    assert found.taken + found.dropped == made + left_out, "each counts once"
    assert {frame.rank for frame in found.frames()} >= {0, 1}, "another one went on meanwhile"
    run.finish()


def test_histograms_come_through_relays() -> None:
    run = RelayedRun(1, Link(delay=0.005), parents=(MASTER, "relay0"))
    run.wait_for_relays()
    with run.round_accounts.watching(lambda: run.ledger):
        run.join_at("relay1")
        made = log_histograms(run, 5)
        run.network.run(lambda: series_of(run).histograms.taken >= made - 1, seconds=10)

        steps = steps_in(series_of(run), "weight")
        assert len(steps) >= 4
        assert all(a < b for a, b in pairwise(steps))
        run.finish_all()


def test_it_comes_through_relays() -> None:
    run = RelayedRun(1, Link(delay=0.005), parents=(MASTER, "relay0"))
    run.wait_for_relays()
    with run.round_accounts.watching(lambda: run.ledger):
        run.join_at("relay0", "relay1", MASTER)
        train(run, STEPS)

        run.network.run(lambda: has_all(run, STEPS), seconds=60)

        check(run, STEPS)
        run.finish_all()


def test_what_was_logged_last_comes_before_a_worker_has_finished() -> None:
    run = SimulatedRun(1, Link(delay=0.02))
    first, second = join(run, 2)
    train(run, 3)
    first.finish()
    run.network.run_for(0.2)

    found = buckets_in(series_of(run))
    steps = [bucket.step for name in ("step", "twice") for bucket in found[name, first.rank]]
    assert steps == [1, 2, 3] * 2
    second.finish()


# What becomes of it where the master does not stay.


def restart(run: SimulatedRun, writer: ScriptedWriter, seconds: float) -> None:
    """Let the master die, and another one go on from what was written last."""
    data = b"".join(writer.copies[-1].pieces())
    checkpoint, values = parse(bytearray(data))
    series = Series.restored(data[len(data) - checkpoint.logged :])
    resumed = Run.resume(checkpoint, values, series=series)

    def begin() -> None:
        initial = run.initial
        run.start_master(resumed, ScriptedWriter())
        run.initial = initial  # its workers train on, and begin nothing
        run.runs.begin(run.network.now)
        run.network.turn(run.master_host)

    before = run.master
    run.network.kill(run.master_host)
    run.network.after(seconds, begin)
    run.network.run(lambda: run.master is not before, seconds=30)
    run.wait_until_all_are_back()


@pytest.mark.parametrize("seed", range(5))
def test_a_master_that_goes_on_from_a_checkpoint_has_what_was_logged_until_then(seed: int) -> None:
    link = Link(delay=0.02, jitter=0.03, loss=0.05, duplication=0.05)
    writer = ScriptedWriter()
    run = SimulatedRun(
        seed,
        link,
        idle_timeout_seconds=3.0,
        master=MasterConfig(idle_timeout_seconds=3.0, recovery_seconds=4.0),
        writer=writer,
        run_key=RUN_KEY,
    )
    join(run, 3)
    train(run, STEPS)
    log_histograms(run, 5)
    SimulatedOperator(run).order("checkpoint")
    wanted = {key: len(found) for key, found in of_script(series_of(run)).items()}
    train(run, 3)  # of which the checkpoint has nothing
    restart(run, writer, 1.0)
    at_once = of_script(series_of(run))
    train(run, STEPS)
    run.network.run_for(5.0)

    found = of_script(series_of(run))
    assert found.keys() == wanted.keys()
    for key, buckets in found.items():
        assert len(at_once[key]) >= wanted[key] - 1
        assert len(buckets) >= wanted[key] + STEPS
        # Nothing counts twice. What came after the checkpoint may be lost.
        assert {bucket.count for bucket in buckets} <= {1} | ({2, 3} if key[1] is None else set())
        seconds = [bucket.seconds for bucket in buckets]
        assert all(b - a > -0.2 for a, b in pairwise(seconds)), "but for the network's jitter"
    steps = steps_in(series_of(run), "weight")
    assert len(steps) >= 4
    run.finish()


@pytest.mark.parametrize("seed", range(5))
def test_a_standby_that_takes_over_has_what_was_logged(seed: int) -> None:
    run = PairedRun(seed, Link(delay=0.02, jitter=0.01, loss=0.02 * (seed % 3)))
    run.begin(3)
    train(run, STEPS)
    log_histograms(run, 3)
    if seed % 2:
        run.kill_standby(back_after=1.0)  # the next one gets all of it at once
        run.network.run_for(5.0)
        run.wait_for_standby()
    train(run, STEPS)
    run.network.run_for(3.0)
    before = series_of(run)
    wanted, histograms_before = buckets_in(before), steps_in(before, "weight")
    run.kill_primary()
    run.network.run(lambda: run.standby.terms.in_charge, seconds=60)
    run.wait_until_all_are_back(seconds=200)

    there = run.standby.run
    assert there is not None
    found = buckets_in(there.series)
    assert there.series is not before
    shown = [[(b.step, b.mean, b.count) for b in buckets] for buckets in found.values()]
    assert shown == [[(b.step, b.mean, b.count) for b in each] for each in wanted.values()]
    assert list(found) == list(wanted)
    late = [
        abs(one.seconds - other.seconds)
        for key in found
        for one, other in zip(found[key], wanted[key], strict=True)
    ]
    assert max(late) < 3.0
    assert steps_in(there.series, "weight") == histograms_before
    train(run, 3)
    counted = sum(bucket.count for each in of_script(before).values() for bucket in each)
    run.network.run(
        lambda: (
            sum(b.count for each in of_script(there.series).values() for b in each)
            >= counted + 2 * (2 * 3 * 3)
        ),  # by worker, and in the mean of all
        seconds=60,
    )
    assert all({b.count for b in each} <= {1, 3} for each in of_script(there.series).values())
    run.finish_all()
