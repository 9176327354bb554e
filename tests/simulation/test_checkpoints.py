"""Checkpoints of a simulated master: written at the right moments, and a run goes on from them."""

import numpy as np
import pytest

from gradwire_protocol.messages.admission import RefusalCode, Refuse, Welcome
from gradwire_protocol.messages.checkpoint.format import parse
from gradwire_protocol.messages.fields import covers
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_server.checkpoints.writer import Copy
from gradwire_server.config import MasterConfig
from gradwire_server.state.run import Run
from support.checkpointing import ScriptedWriter
from support.keyed import RUN_KEY
from support.network import Link
from support.operating import SimulatedOperator
from support.peer import join_request
from support.training import SimulatedRun

SECONDS = 600.0
"""So long that only what is special is written."""

LOSSY = Link(loss=0.02, duplication=0.02, delay=0.01)


def run_with(
    workers: int, writer: ScriptedWriter, *, seed: int = 1, resumed: Run | None = None
) -> SimulatedRun:
    config = MasterConfig(checkpoint_seconds=SECONDS)
    run = SimulatedRun(
        seed, LOSSY, elements=60, master=config, writer=writer, resumed=resumed,
        run_key=RUN_KEY,
    )  # fmt: skip
    run.join_and_wait(workers)
    return run


def read_again(copy: Copy) -> Run:
    """Return the run in the file that a copy is written to."""
    checkpoint, values, buffers = parse(bytearray(b"".join(copy.pieces())))
    run = Run.resume(checkpoint, values, buffers=buffers)
    assert run.replica.digest() == checkpoint.digest
    return run


def crashed_after_training(writer: ScriptedWriter, *, seed: int = 1) -> tuple[SimulatedRun, Run]:
    """Return a run that was written in the midst of training, and what was."""
    run = run_with(3, writer, seed=seed)
    run.train(5)
    SimulatedOperator(run).order("checkpoint")
    return run, read_again(writer.copies[-1])


@pytest.mark.seeds(5)
def test_a_run_that_is_resumed_goes_on_exactly_where_the_checkpoint_ends(seed: int) -> None:
    before, resumed = crashed_after_training(ScriptedWriter(), seed=seed)
    expected = before.initial + before.ledger.sum_of(resumed.relay.versions, before.elements)
    assert resumed.replica.values.tolist() == expected.tolist()
    assert sum(resumed.relay.versions.values()) > 0
    versions = dict(resumed.relay.versions)

    run = run_with(0, ScriptedWriter(), seed=seed + 100, resumed=resumed)
    assert run.sample("parameters") == 60
    run.join_and_wait(2)
    for worker in run.workers:
        assert worker.welcome is not None
        assert not worker.welcome.founder
        assert worker.welcome.sequence == versions.get(worker.rank, 0)
        assert worker.snapshot_values.tolist() == expected.tolist()
    run.train(5)
    run.join_and_wait(2)
    run.train(5)
    run.finish()

    assert all(
        worker.versions[rank] >= versions[rank] for worker in run.workers for rank in versions
    )


def restarted_from_a_checkpoint(steps_after_it: int) -> SimulatedRun:
    """Return a run whose master was killed, and begins with a checkpoint that workers have."""
    writer = ScriptedWriter()
    run = run_with(3, writer)
    run.train(5)
    run.network.run_for(5)
    for worker in run.workers:
        worker.pull()
    SimulatedOperator(run).order("checkpoint")
    ahead = run.workers[1]
    for _ in range(steps_after_it):
        ahead.step()
    run.network.kill(run.master_host)
    run.network.run(lambda: all(w.lost is not None for w in run.workers), seconds=60)
    initial = run.initial
    run.start_master(read_again(writer.copies[-1]), ScriptedWriter())
    run.initial = initial  # what there was before it is in the ledger
    return run


@pytest.mark.parametrize("steps_after_it", [0, 3])
def test_workers_that_live_go_on_with_what_they_have_or_with_the_checkpoint(
    steps_after_it: int,
) -> None:
    run = restarted_from_a_checkpoint(steps_after_it)

    run.network.run(lambda: all(w.lost is None for w in run.workers), seconds=60)
    run.train(3)

    run.finish()


def test_where_those_who_are_back_die_again_the_run_goes_on_with_what_there_was() -> None:
    run = restarted_from_a_checkpoint(3)
    resumed = run.master.run
    first, ahead, last = run.workers
    for worker in (first, last):
        run.network.kill(worker.host)
    run.network.run(lambda: run.master.run is not resumed, seconds=30)
    run.network.kill(ahead.host)

    run.network.run(lambda: not len(run.master.roster), seconds=120)
    [heir] = run.join_and_wait(1, seconds=30)

    assert resumed is not None
    assert covers(run.state.relay.versions, resumed.relay.versions)
    assert heir.snapshot_values.tolist() == run.state.replica.values.tolist()


OTHER_LAYOUT = Layout((Tensor("weights", (59,)),))


def test_a_run_that_is_resumed_waits_for_its_workers_and_for_no_others() -> None:
    _, resumed = crashed_after_training(ScriptedWriter())
    run = run_with(0, ScriptedWriter(), resumed=resumed)
    run.network.run_for(600)
    assert run.master.run is resumed

    for join, code, says in (
        (join_request(layout=OTHER_LAYOUT), RefusalCode.OTHER_LAYOUT,
         "the model differs from that of run 'default': 'weights' of shape (59,) where the run has "
         "'weights' of shape (60,). "),
    ):  # fmt: skip
        peer = run.dial(f"other-{code}")
        peer.say(join)
        refusal = peer.wait_for(Refuse)
        assert (refusal.code, refusal.reason.startswith(says)) == (code, True), refusal.reason
    run.observe()
    run.network.run(lambda: all(o.live for o in run.observers), seconds=60)
    still = resumed.awaits_workers
    run.join_and_wait(1)

    assert (still, resumed.awaits_workers) == (True, False), "an observer does not take part"
    run.train(3)
    run.finish()


def test_when_its_workers_have_come_and_gone_it_is_a_run_like_any_other() -> None:
    _, resumed = crashed_after_training(ScriptedWriter())
    writer = ScriptedWriter()
    run = run_with(1, writer, resumed=resumed)
    run.train(3)
    run.workers[0].leave()
    run.network.run(lambda: not run.master.roster.workers, seconds=60)
    assert run.master.run is resumed

    assert run.enter("b", layout=OTHER_LAYOUT).all(Welcome)[0].founder

    [last] = writer.copies
    assert last.of is resumed, "what it had come to is written before it is gone"
    assert np.array_equal(last.replica.values, resumed.replica.values)


def test_a_run_is_written_as_often_as_was_said() -> None:
    writer = ScriptedWriter()
    run = run_with(2, writer)
    run.train(2)
    assert writer.copies == []

    run.network.run_for(SECONDS + 1)

    assert len(writer.copies) == 1
    writer.fail()
    run.network.run_for(SECONDS + 1)
    assert len(writer.copies) == 2, "and again, where that failed"
    run.train(2)
    writer.succeed()
    run.finish()
