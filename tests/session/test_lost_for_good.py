"""A master that is lost for good: what was trained stays, and a script may go on alone."""

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gradwire
from gradwire import Session
from support.local_master import LocalMaster, MasterProcess
from support.sessions import HALF, change, join, loss_of, membership_of, participant_of, zeros
from support.waiting import comes_true, wait_until
from support.wording import naming

FEEDBACKS = pytest.mark.parametrize("feedback", ["local", "shared"])
KEPT = "the model keeps what this worker has trained"
STEP = change(HALF + 0.25, 0.125, 0, 0)


def lost(session: Session, master: LocalMaster) -> None:
    """Let the master of a session end, and wait until that is known."""
    master.stop("maintenance")
    wait_until(lambda: membership_of(session).closed, "the loss")


@contextmanager
def killed_after_joining(log: Path, target: Any, **options: Any) -> Iterator[Session]:
    """Join a master and kill it, without a word."""
    with log.open("w") as file, MasterProcess(log=file) as master:
        session = gradwire.join(target, master=master.address, threshold=HALF, **options)
        master.signal(signal.SIGKILL)
        try:
            yield session
        finally:
            session.close()


def test_a_master_that_is_killed_is_missed_within_a_second(tmp_path: Path) -> None:
    """Not after the idle timeout: its port refuses."""
    with killed_after_joining(tmp_path / "log", zeros(), idle_timeout_seconds=3_600.0) as session:
        wait_until(lambda: membership_of(session).lost is not None, "the loss")

        assert membership_of(session).lost == naming("nothing listens", "Connection refused")


@FEEDBACKS
def test_a_session_that_is_lost_leaves_what_was_trained_and_says_so(
    feedback: str | float, caplog: pytest.LogCaptureFixture
) -> None:
    mine = zeros()
    with LocalMaster() as master:
        session = join(master, mine, feedback=feedback)
        session.push(STEP)
        session.pull()
        lost(session, master)

        error = loss_of(session)

    assert mine.tolist() == STEP.tolist()
    assert str(error) == naming("maintenance", KEPT, "1")
    assert KEPT in caplog.text


@FEEDBACKS
@pytest.mark.parametrize("portion", ["send", "auto", "drop"])
def test_an_end_in_vain_leaves_what_was_trained(feedback: str | float, portion: str) -> None:
    mine = zeros()
    options: dict[str, Any] = {"finish_residual": portion, "finish_timeout_seconds": 0.2}

    def train(master: LocalMaster) -> None:
        with join(master, mine, feedback=feedback, **options) as session:
            session.push(STEP)
            session.pull()

    with LocalMaster() as master:
        other = join(master)
        with pytest.raises(gradwire.DeadlineError, match=naming("0", KEPT)):
            train(master)
        other.close()

    np.testing.assert_allclose(mine, STEP, rtol=0, atol=2.0**-22)


@FEEDBACKS
def test_a_block_that_fails_leaves_what_was_trained_and_its_error_says_so(
    master: LocalMaster, feedback: str | float
) -> None:
    mine = zeros()

    def train() -> None:
        with join(master, mine, feedback=feedback) as session:
            session.push(STEP)
            session.pull()
            raise LookupError

    with pytest.raises(LookupError) as caught:
        train()

    assert mine.tolist() == STEP.tolist()
    assert caught.value.__notes__ == [f"gradwire: {KEPT} in 1 steps"]


# on_lost="finish".


@FEEDBACKS
def test_a_script_may_go_on_alone_to_its_own_end(
    feedback: str | float, caplog: pytest.LogCaptureFixture
) -> None:
    mine = zeros()
    with (
        LocalMaster() as master,
        join(master, mine, feedback=feedback, on_lost="finish") as session,
    ):
        session.push(STEP)
        session.pull()
        lost(session, master)
        mine += STEP * (feedback if isinstance(feedback, float) else 1.0)  # as the rate has it
        session.step()
        mine += STEP
        session.step()
        assert session.push(STEP) == 0
        assert session.pull() == []
        session.wait(5)
        with session.paused(shared=True):
            assert mine.tolist() == (4 * STEP).tolist()

    assert mine.tolist() == (4 * STEP).tolist()
    assert not session.is_open
    [begins, ends] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING][-2:]
    assert begins == naming("maintenance", "on_lost", "goes on alone")
    assert ends == naming("finished", "without the master", "4 steps", "3 of them alone")
    with pytest.raises(gradwire.UsageError, match="over"):
        session.step()


@pytest.mark.parametrize("end", [Session.finish, Session.leave, Session.close])
def test_every_end_is_one_without_a_master(end: Callable[[Session], None]) -> None:
    mine = zeros()
    with LocalMaster() as master:
        session = join(master, mine, on_lost="finish")
        lost(session, master)
        mine += STEP

        end(session)

    assert mine.tolist() == STEP.tolist()
    assert not session.is_open


def test_items_go_on_after_the_last_one_that_was_granted() -> None:
    with LocalMaster() as master:
        session = join(master, on_lost="finish")
        seen = []
        for item in session.items("work", 3, epochs=2):
            seen.append((item.epoch, int(item)))
            if len(seen) == 2:
                lost(session, master)
        more = [int(item) for item in session.items("more", 2)]
        session.stop_training("enough")
        stopped = list(session.items("yet more", 2))
        session.close()

    assert seen == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert more == [0, 1]
    assert (session.stopping, stopped) == ("enough", [])


@pytest.mark.parametrize("mode", ["averaging(every=2)", "diloco(every=2)", "synchronous"])
def test_in_rounds_a_script_goes_on_alone_too(mode: str) -> None:
    mine = zeros()
    with LocalMaster() as master:
        options = {"mode": mode, "on_lost": "finish", "threshold": None}
        with join(master, mine, **options, staleness_bound="auto") as session:
            lost(session, master)
            for _ in range(5):
                mine += STEP
                session.step()

    assert mine.tolist() == (5 * STEP).tolist()


def test_a_master_that_does_not_come_back_in_time_is_lost_for_good(tmp_path: Path) -> None:
    mine = zeros()
    options = {"on_lost": "finish", "reconnect_seconds": 0.5}
    with killed_after_joining(tmp_path / "log", mine, **options) as session:
        participant_of(session).offline.steps_max = 3

        def steps_alone() -> bool:
            session.step()
            return not session.is_open

        assert comes_true(steps_alone)
        session.finish()


def test_the_optimizer_gets_its_own_values_back() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    with LocalMaster() as master:
        options: dict[str, Any] = {"optimizer": optimizer, "scale": 0.25, "on_lost": "finish"}
        session = join(master, model, **options)
        lost(session, master)
        session.step()
        before = model.bias.detach().clone()
        model.bias.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        session.finish()

    np.testing.assert_allclose((before - model.bias.detach()).numpy(), 0.5, rtol=1e-6)
