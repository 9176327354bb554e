"""Sessions against a real master on loopback: who takes part, evaluating, and the end."""

import asyncio
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

import gradwire.replica.push
import gradwire.worker.membership
from gradwire import Session
from gradwire_protocol.messages.admission import Join
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import Link, Message
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.updates import Finish, Finished, Leave
from gradwire_server.config import MasterConfig
from gradwire_server.master import intake
from gradwire_server.updates.vetting import NORMS_MIN, OutlierPolicy
from support.local_master import Answering, LocalMaster
from support.peer import welcome
from support.sessions import (
    HALF,
    change,
    delivered,
    finish,
    join,
    loss_of,
    pull,
    zeros,
)
from support.tiers import variants
from support.waiting import wait_until
from support.wording import naming

FEEDBACKS = pytest.mark.parametrize("feedback", ["local", "shared"])


# Evaluating.


def test_while_paused_nothing_is_applied_and_afterwards_everything_is(
    master: LocalMaster,
) -> None:
    mine = zeros()
    one, other = join(master, mine), join(master)
    other.push(change(1.0, 0, 0, 0))
    delivered(other, 1)
    wait_until(lambda: master.master.unstable == 0, "the update to arrive")

    with one.paused():
        with one.paused():
            one.step()
        one.step()
        assert one.pull() == []
        assert mine.tolist() == [0, 0, 0, 0]
    one.step()

    assert mine.tolist() == [1.0, 0, 0, 0]


def test_an_evaluation_that_fails_does_not_stay_paused(master: LocalMaster) -> None:
    mine = zeros()
    one, other = join(master, mine), join(master)

    with pytest.raises(LookupError), one.paused():
        raise LookupError
    other.push(change(HALF, 0, 0, 0))
    pull(one, 1)

    assert mine.tolist() == [HALF, 0, 0, 0]


# Who takes part.


def test_the_world_grows_and_who_is_in_it_comes_and_goes(master: LocalMaster) -> None:
    one = join(master)
    assert (one.rank, one.world_size) == (0, 1)

    other = join(master)
    one.wait(2)
    assert (one.world_size, other.world_size) == (2, 2)
    assert [worker.rank for worker in one.workers] == [0, 1]
    other.close()
    wait_until(lambda: len(one.workers) == 1, "the other one to leave")

    assert one.world_size == 2


def test_what_the_launcher_says_of_the_world_holds_from_the_beginning(master: LocalMaster) -> None:
    assert join(master, workers=4).world_size == 4


def test_waiting_for_workers_has_a_deadline_and_how_many_may_be_a_setting(
    master: LocalMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    one = join(master)
    with pytest.raises(gradwire.DeadlineError, match=naming("0.01 s", "2 workers", 1)):
        one.wait(timeout=0.01)

    one.step()
    join(master)
    one.wait()

    assert one.world_size == 2


def test_waiting_for_nobody_knows_how_many_is_refused(master: LocalMaster) -> None:
    session = join(master)

    with pytest.raises(gradwire.UsageError, match=naming("n_workers", "WORLD_SIZE")):
        session.wait()


# Finishing.


@FEEDBACKS
def test_who_has_finished_holds_the_same_bits_as_the_others(
    master: LocalMaster, feedback: str
) -> None:
    """What is left on either side is sent to the last quantum, and applied."""
    mine, theirs = zeros(), zeros()
    one, other = (join(master, t, feedback=feedback) for t in (mine, theirs))
    one.push(change(0.1, 0.9, -0.7, 1 / 3))
    other.push(change(0.2, 0, 0, 1 / 3))

    finish(one, other)

    assert mine.tobytes() == theirs.tobytes()
    assert one.digest() == other.digest()
    quanta = mine.astype(np.float64) * 2**24
    assert quanta.tolist() == np.rint(quanta).tolist()
    assert np.abs(mine - change(0.3, 0.9, -0.7, 2 / 3)).max() < 3 * 2.0**-24
    master.wait_for_workers(0)
    assert master.sample("gradwire_leaves_total", {"reason": "left"}) == 2
    assert master.sample("gradwire_runs_finished_total") == 1


def test_the_end_of_a_with_block_finishes(master: LocalMaster) -> None:
    target = zeros()

    with join(master, target) as session:
        session.push(change(0.75, 0, 0, 0))

    assert target.tolist() == [0.75, 0, 0, 0]
    assert master.sample("gradwire_runs_finished_total") == 1
    with pytest.raises(gradwire.UsageError, match=naming("finished", "join again")):
        session.step()


def test_updates_that_are_known_and_do_not_arrive_are_counted() -> None:
    def answer(link: Link, message: Message) -> None:
        if isinstance(message, Join):
            link.send(welcome(layout=message.layout))
            link.send_block(Snapshot(0, bytes(4 * 4)))
        elif isinstance(message, Finish):
            link.send(Finished({0: 0, 1: 2, 2: 1}))
        elif isinstance(message, Leave):
            link.connection.close(EndCode.LEFT, "left", asyncio.get_running_loop().time())

    with LocalMaster(application=Answering(answer)) as master:
        session = join(master)
        said: list[str] = []

        def is_told() -> bool:
            with pytest.raises(gradwire.DeadlineError) as late:
                session.finish(timeout=0.05)
            said.append(str(late.value))
            return said[-1] == naming("finish()", "3 updates")

        wait_until(is_told, "the count of the updates")


def test_a_with_block_whose_peers_do_not_finish_leaves_all_the_same(master: LocalMaster) -> None:
    other = join(master)

    with (
        pytest.raises(gradwire.DeadlineError, match=naming("ranks", 0)),
        join(master, finish_timeout_seconds=0.05),
    ):
        pass

    wait_until(lambda: len(other.workers) == 1, "the impatient one to leave")


def test_what_is_left_goes_out_as_fast_as_the_slowest_takes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sent at once by all, it would be more than the master keeps for a worker."""
    monkeypatch.setattr(gradwire.replica.push, "FLUSH_BYTES_MAX", 1024)
    random = np.random.default_rng(1)
    with LocalMaster(MasterConfig(stable_interval_seconds=0.01)) as master:
        mine, theirs = np.zeros(2000, np.float32), np.zeros(2000, np.float32)
        one, other = join(master, mine), join(master, theirs)
        one.wait(2)  # each of two may send half of it
        one.push(random.normal(0, 0.1, 2000).astype(np.float32))

        with master.held_up(), pytest.raises(gradwire.DeadlineError) as late:
            one.finish(timeout=0.05)
        sent_at_first = one.stats.bytes_encoded
        kept = np.abs(one.state_dict()["residual"]).sum()
        finish(one, other)

    assert str(late.value) == naming("finish()", "elements", "again", "close()")
    assert re.search(r"\b1\d{3} of our elements\b", str(late.value))
    assert 0 < sent_at_first <= 512
    assert kept > 0.9 * np.abs(mine).sum() > 100, "a checkpoint has what was not sent"
    assert one.stats.bytes_encoded > 4 * 512
    assert np.abs(mine).max() > 0.1
    assert mine.tobytes() == theirs.tobytes()


def test_who_finishes_a_second_time_sends_nothing_more(master: LocalMaster) -> None:
    """The others may have finished meanwhile, and hold what there was then."""
    random = np.random.default_rng(1)
    mine = random.normal(0, 3, 2000).astype(np.float32)
    theirs = mine.copy()
    one, other = (join(master, t, threshold=2.0**-24) for t in (mine, theirs))
    for _ in range(5):  # a sum rounds otherwise than the replica does: a residual comes of it
        other.push(random.normal(0, 1e-3, 2000).astype(np.float32))
    delivered(other, other.stats.updates_sent)
    wait_until(lambda: master.master.unstable == 0, "the updates to arrive")
    with pytest.raises(gradwire.DeadlineError):
        one.finish(timeout=0.05)

    other.finish()
    one.finish()

    assert one.stats.updates_sent == 0
    assert one.digest() == other.digest()
    assert mine.tobytes() == theirs.tobytes()


# Leaving.


def test_a_block_that_fails_tells_the_master_why(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    other = join(master)

    with (
        caplog.at_level(logging.INFO, "gradwire.master"),
        pytest.raises(ZeroDivisionError),
        join(master),
    ):
        raise ZeroDivisionError("loss is zero\n\x1b[31mand red")
    wait_until(lambda: len(other.workers) == 1, "the failed one to leave")

    left = [message for message in caplog.messages if message.startswith("rank 1")][-1]
    assert left == naming("left", "ZeroDivisionError: loss is zero  [31mand red")
    assert master.sample("gradwire_runs_finished_total") == 0


def test_a_master_that_does_not_confirm_is_left_anyway(
    master: LocalMaster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.session.lifetime.LEAVE_SECONDS", 0.05)
    session = join(master)

    with master.held_up():
        session.push(change(HALF, 0, 0, 0))
        session.close()

    assert caplog.messages == [naming("left", "confirm", "0.05 s")]
    with pytest.raises(gradwire.UsageError, match=naming("closed")):
        session.step()


CALLS: dict[str, Callable[[Session], object]] = {
    "step": Session.step,
    "push": Session.push,
    "pull": Session.pull,
    "wait": lambda session: session.wait(1),
    "finish": Session.finish,
    "load_state_dict": lambda session: session.load_state_dict(session.state_dict()),
}


def test_a_session_that_is_over_cannot_be_used(master: LocalMaster) -> None:
    session = join(master)
    session.close("enough")

    for call in CALLS.values():
        with pytest.raises(gradwire.UsageError, match=naming("enough", "join again")):
            call(session)


def test_a_session_whose_master_stopped_says_why(master: LocalMaster) -> None:
    session = join(master)
    master.stop("maintenance at noon")
    loss_of(session)

    why = naming(master.address, "maintenance at noon")
    for call in CALLS.values():
        with pytest.raises(gradwire.ConnectionLostError, match=why):
            call(session)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_session_belongs_to_the_process_that_joined(master: LocalMaster) -> None:
    session = join(master)
    reader, writer = os.pipe()

    child = os.fork()
    if not child:
        said = list[str]()
        try:
            session.close()
            for call in CALLS.values():
                try:
                    call(session)
                except gradwire.UsageError as error:
                    said.append(str(error))
        finally:
            os.write(writer, "\n".join(said).encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said_by_child = pipe.read().decode().splitlines()
    os.waitpid(child, 0)

    assert said_by_child == [naming("process that joined", "fork")] * len(CALLS)
    session.push(change(HALF, 0, 0, 0))
    delivered(session, 1)


@pytest.mark.parametrize(
    ("end", "warned"),
    variants(
        ("", True),
        ("del session", True),
        ("raise SystemExit", True),
        ("session.close()", False),
        ("session.finish()", False),
    ),
)
def test_a_script_that_has_trained_and_does_not_finish_leaves_with_a_warning(
    master: LocalMaster, caplog: pytest.LogCaptureFixture, end: str, warned: bool
) -> None:
    script = (
        "import numpy, gradwire\n"
        "parameters = numpy.zeros(4, numpy.float32)\n"
        f"session = gradwire.join(parameters, master='{master.address}', log_level='warning')\n"
        "for _ in range(3):\n"
        "    parameters += 1\n"
        "    session.step()\n"
        f"{end}\n"
    )

    with caplog.at_level(logging.INFO, "gradwire.master"):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.returncode == 0
    if not warned:
        assert not done.stderr
        return
    assert caplog.messages[-1] == naming("left", "the process ended")
    [line] = done.stderr.splitlines()
    assert line == naming("GradwireWarning", "rank 0", "3 steps", "finish()", "with gradwire.join")


# What the master passes on of updates that are far too large.


def outliers(policy: OutlierPolicy) -> MasterConfig:
    return MasterConfig(outliers=policy, outlier_norm_multiple=10.0)


def sharing_as_equals(one: Session, other: Session, n: int = 2 * NORMS_MIN) -> None:
    """Let both send so much that each is a reference for the other."""
    for _ in range(n):
        one.push(change(HALF, 0, 0, 0))
        other.push(change(0, HALF, 0, 0))
    pull(one, n)
    pull(other, n)


def test_a_worker_in_quarantine_is_told_at_once_and_when_the_others_have_finished(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(intake, "WORKERS_MIN", 2)
    mine, theirs = zeros(), zeros()
    with LocalMaster(outliers("quarantine")) as master:
        one, other = join(master, mine), join(master, theirs)
        sharing_as_equals(one, other)

        other.push(change(0, 0, 40.0, 0))
        wait_until(lambda: master.sample("gradwire_quarantined_workers") == 1, "the quarantine")
        wait_until(lambda: "keeps the updates of this worker aside" in caplog.text, "a warning")
        one.finish()

        assert mine.tolist() == [HALF * 2 * NORMS_MIN, HALF * 2 * NORMS_MIN, 0, 0]
        assert str(loss_of(other)) == naming("quarantine", "update")


# Numbers.


def test_the_numbers_add_up(master: LocalMaster) -> None:
    one, other = join(master), join(master)
    one.push(change(HALF, HALF, 0, 0))
    pull(other, 1)
    one.push(change(HALF, 0, 0, 0))
    one.push()
    other.push(change(0, 0, 0, 1.0))
    pull(one, 1)
    pull(other, 1)
    wait_until(lambda: one.stats.updates_stable == 2, "the updates to be stable")

    mine, theirs = one.stats, other.stats

    assert (mine.steps, mine.steps_deferred) == (3, 0)
    assert (mine.updates_sent, mine.updates_delivered, mine.updates_stable) == (2, 2, 2)
    assert (mine.updates_applied, theirs.updates_applied) == (1, 2)
    assert (mine.updates_conflated, theirs.updates_conflated) == (0, 0)
    assert (mine.elements_sent, theirs.elements_sent) == (3, 1)
    assert (mine.density, theirs.density) == (0.0, 0.25)
    assert (mine.threshold, theirs.threshold) == (HALF, HALF)
    assert mine.bytes_encoded < mine.bytes_sent
    assert mine.datagrams_sent > 0
    assert mine.datagrams_received > 0
    assert mine.bytes_received > theirs.bytes_encoded
    assert mine.rtt_seconds is not None
    assert mine.rtt_seconds > 0
    assert mine.encode_seconds > 0
    assert mine.apply_seconds > 0
