"""What workers log comes to the master, whatever the network does, and counts once."""

import pytest

from gradwire_protocol.messages.checkpoint.format import parse
from gradwire_server.config import MasterConfig
from gradwire_server.series.journal import Happening
from gradwire_server.series.saved import SavedSeries
from gradwire_server.series.series import Series
from gradwire_server.state.run import Run
from support.checkpointing import ScriptedWriter
from support.curves import curves_in, means_in
from support.histograms import counted
from support.keyed import RUN_KEY
from support.network import Link
from support.operating import SimulatedOperator
from support.training import SimulatedRun

STEPS = 30
LOSSY = Link(delay=0.02, jitter=0.03, loss=0.1, duplication=0.1)


def train(run: SimulatedRun, steps: int) -> None:
    """Let all workers make steps, and log their number and twice that."""
    for _ in range(steps):
        run.train(1)
        for worker in run.workers:
            of = worker.participant.tally.steps
            worker.participant.log({"step": float(of), "twice": 2.0 * of})


def series_of(run: SimulatedRun) -> Series:
    assert run.master.run is not None
    return run.master.run.series


@pytest.mark.seeds(5)
def test_all_of_it_comes_once_over_a_bad_network(seed: int) -> None:
    run = SimulatedRun(seed, LOSSY, idle_timeout_seconds=3.0)
    run.join_and_wait(3)
    train(run, STEPS // 2)
    run.cut_off(run.workers[seed % 3], 5.0)  # longer than until the master gives it up
    train(run, STEPS - STEPS // 2)
    run.network.run_for(10.0)

    found = means_in(series_of(run))

    expected = [(step, float(step)) for step in range(1, STEPS + 1)]
    for rank in (None, 0, 1, 2):
        assert found["step", rank] == expected
        assert found["twice", rank] == [(step, 2 * value) for step, value in expected]
    counts = [sum(c.count) for (_, rank), c in curves_in(series_of(run)).items() if rank is None]
    assert run.sample("scalars_taken_total") == series_of(run).taken == sum(counts)
    assert run.sample("scalars_dropped_total") == series_of(run).dropped == 0
    run.finish()


@pytest.mark.seeds(5)
def test_of_histograms_the_last_of_the_lowest_rank_stay_and_all_others_are_counted(
    seed: int,
) -> None:
    run = SimulatedRun(seed, LOSSY, idle_timeout_seconds=3.0)
    run.join_and_wait(3)
    for _ in range(STEPS):
        run.train(1)
        for worker in run.workers:
            participant = worker.participant
            message = counted(1, participant.tally.steps)
            participant.log_histograms(message.step, message.names, message.histograms)
    run.network.run_for(10.0)

    assert run.master.run is not None
    kept = run.master.run.histograms
    assert (kept.rank, kept.step) == (0, STEPS)
    assert kept.taken + kept.dropped == 3 * STEPS
    assert run.sample("histograms_taken_total") == kept.taken
    assert run.sample("histograms_dropped_total") == kept.dropped
    run.finish()


@pytest.mark.seeds(5)
def test_a_master_that_goes_on_from_a_checkpoint_has_what_was_logged_until_then(seed: int) -> None:
    writer = ScriptedWriter()
    config = MasterConfig(recovery_seconds=4.0, checkpoint_seconds=600.0)
    run = SimulatedRun(seed, LOSSY, master=config, writer=writer, run_key=RUN_KEY)
    run.join_and_wait(3)
    train(run, STEPS)
    SimulatedOperator(run).order("checkpoint")
    wanted = {key: len(steps) for key, steps in means_in(series_of(run)).items()}
    train(run, 3)  # of which the checkpoint has nothing

    checkpoint, values, _ = parse(bytearray(b"".join(writer.copies[-1].pieces())))
    resumed = Run.resume(checkpoint, values)
    resumed.series = Series.restored(SavedSeries.decompressed(checkpoint.series))
    initial = run.initial
    run.network.kill(run.master_host)
    run.network.run(lambda: all(w.lost is not None for w in run.workers), seconds=60)
    run.start_master(resumed, ScriptedWriter())
    run.initial = initial  # its workers train on, and begin nothing
    run.wait_until_all_are_back()
    train(run, STEPS)
    run.network.run_for(5.0)

    found = curves_in(series_of(run))
    for key, count in wanted.items():
        curve = found[key]
        assert len(curve.step) >= count + STEPS
        # Nothing counts twice. What came after the checkpoint may be lost.
        assert set(curve.count.tolist()) <= ({1} if key[1] is not None else {1, 2, 3})
    run.finish()


def test_what_happens_in_a_run_is_in_the_journal_of_its_master() -> None:
    run = SimulatedRun(1, Link(delay=0.02), idle_timeout_seconds=3.0)
    run.join_and_wait(2)
    run.cut_off(run.workers[1], 5.0)
    run.network.run_for(5.0)
    run.wait_until_all_are_back()
    run.finish()

    entries = run.master.state.journal.after(0)
    name = entries[0].run
    assert [(each.kind, each.rank) for each in entries if each.kind != Happening.LEFT] == [
        (Happening.JOINED, 0),
        (Happening.JOINED, 1),
        (Happening.BEGAN, None),
        (Happening.LOST, 1),
        (Happening.BACK, 1),
        (Happening.FINISHED, None),
    ]
    assert {each.rank for each in entries if each.kind == Happening.LEFT} == {0, 1}
    assert {each.run for each in entries} == {name}
    assert [each.number for each in entries] == [*range(1, len(entries) + 1)]
