"""A master that is lost for good: what was trained stays, and a script may go on alone."""

import logging
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gradwire
from gradwire import Session
from gradwire_codecs.arrays import Float32Array
from support.local_master import LocalMaster, MasterProcess
from support.sessions import HALF, change, join, loss_of, membership_of, participant_of, zeros
from support.tiers import variants
from support.waiting import BRIEF, comes_true, wait_until
from support.wording import naming

FEEDBACKS = pytest.mark.parametrize("feedback", ["local", "shared"])
ROUNDS = ["averaging(every=2)", "diloco(every=2)", "diloco(every=2, streams=2)", "synchronous"]
KEPT = "the model keeps what this worker has trained"
STEP = change(HALF + 0.25, 0.125, 0, 0)


def lost(session: Session, master: LocalMaster) -> None:
    """Let the master of a session end, and wait until that is known."""
    master.stop("maintenance")
    wait_until(lambda: membership_of(session).closed, "the loss")


@contextmanager
def killed_after_joining(log: Path, target: Any, **options: Any) -> Iterator[Session]:
    """Join a master and kill it, without a word."""
    with (
        log.open("w") as file,
        MasterProcess(log=file) as master,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("gradwire.session.lifetime.LEAVE_SECONDS", BRIEF)
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
    feedback: str, caplog: pytest.LogCaptureFixture
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
    assert session.state_dict()["residual"].tolist() == [0.25, 0.125, 0, 0]


def test_a_session_that_is_lost_inside_of_an_evaluation_leaves_what_was_trained(
    master: LocalMaster,
) -> None:
    mine = zeros()
    session = join(master, mine, feedback="shared")
    session.push(STEP)
    session.pull()

    with session.paused(shared=True):
        lost(session, master)
        loss_of(session)

    assert mine.tolist() == STEP.tolist()


@contextmanager
def lost_in_a_round(mine: Float32Array, mode: str, **options: Any) -> Iterator[Session]:
    """Yield a session; its master ends when it has contributed to a round that cannot close."""
    with LocalMaster() as master, ThreadPoolExecutor() as pool:
        session = join(master, mine, mode=mode, threshold=None, **options)
        join(master, mode=mode, threshold=None)
        wait_until(lambda: len(session.workers) == 2, "both to take part")

        def lose() -> None:
            wait_until(lambda: session.stats.updates_delivered > 0, "a contribution")
            master.stop("maintenance")

        losing = pool.submit(lose)
        yield session
        losing.result()


def steps_until_lost(session: Session, mine: Float32Array) -> tuple[int, str]:
    """Train on; return how many steps were made, the lost one included, and the error."""
    steps = 0
    while True:
        mine += STEP
        steps += 1
        try:
            session.step()
        except gradwire.ConnectionLostError as error:
            return steps, str(error)


@FEEDBACKS
@pytest.mark.parametrize("mode", ROUNDS)
def test_what_was_contributed_to_a_round_without_a_result_stays_too(
    mode: str, feedback: str
) -> None:
    mine = zeros()
    with lost_in_a_round(mine, mode, feedback=feedback) as session:
        steps, said = steps_until_lost(session, mine)

    assert said == naming("maintenance", KEPT, str(steps))
    np.testing.assert_allclose(mine, steps * STEP, rtol=0, atol=2.0**-21)


@FEEDBACKS
@pytest.mark.parametrize(
    ("mode", "portion"),
    [
        *(("sharing", portion) for portion in ("send", "auto", "drop")),
        *((mode, "auto") for mode in ("averaging(every=2, bits=0)", *ROUNDS[:3])),
    ],
)
@pytest.mark.parametrize("closes", variants(False, True))
def test_an_end_in_vain_leaves_what_was_trained(
    mode: str, portion: str, feedback: str, *, closes: bool
) -> None:
    mine = zeros()
    options: dict[str, Any] = {"finish_residual": portion, "finish_timeout_seconds": 0.2}

    def train(master: LocalMaster) -> None:
        session = join(master, mine, feedback=feedback, mode=mode, **options)
        with nullcontext() if closes else session:
            session.push(STEP)
            session.pull()
            if closes:
                session.finish()

    with LocalMaster() as master:
        other = join(master, mode=mode)
        with pytest.raises(gradwire.DeadlineError, match="0" if closes else naming("0", KEPT)):
            train(master)
        for session in master.sessions:
            session.close()
        assert not other.is_open

    np.testing.assert_allclose(mine, STEP, rtol=0, atol=2.0**-22)


@FEEDBACKS
@pytest.mark.parametrize(
    "error",
    [LookupError(), KeyboardInterrupt(), SystemExit(1), gradwire.UsageError("no")],
    ids=repr,
)
def test_a_block_that_fails_leaves_what_was_trained_and_its_error_says_so(
    master: LocalMaster, feedback: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    mine = zeros()

    def train() -> None:
        with join(master, mine, feedback=feedback) as session:
            session.push(STEP)
            session.pull()
            raise error

    with pytest.raises(type(error)) as caught:
        train()

    assert mine.tolist() == STEP.tolist()
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert f"{KEPT} in 1 steps" in said
    assert f"{KEPT} in 1 steps" in caplog.text


@FEEDBACKS
def test_a_session_that_is_closed_leaves_what_was_trained(
    master: LocalMaster, feedback: str
) -> None:
    mine = zeros()
    session = join(master, mine, feedback=feedback)
    session.push(STEP)
    session.pull()

    session.close()
    session.close()

    assert mine.tolist() == STEP.tolist()
    assert session.state_dict()["residual"].tolist() == [0.25, 0.125, 0, 0]


# on_lost="finish".


@FEEDBACKS
def test_a_script_may_go_on_alone_to_its_own_end(
    feedback: str, caplog: pytest.LogCaptureFixture
) -> None:
    mine = zeros()
    with (
        LocalMaster() as master,
        join(master, mine, feedback=feedback, on_lost="finish") as session,
    ):
        session.push(STEP)
        session.pull()
        lost(session, master)
        mine += STEP
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


def test_a_loop_over_items_may_begin_when_the_master_is_lost() -> None:
    with LocalMaster() as master:
        session = join(master, on_lost="finish")
        lost(session, master)

        assert [int(item) for item in session.items("work", 3)] == [0, 1, 2]
        session.close()


@pytest.mark.parametrize("mode", ROUNDS)
def test_a_step_whose_round_has_no_result_counts_once(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    mine = zeros()
    with lost_in_a_round(mine, mode, on_lost="finish") as session:
        steps = 0
        while session.is_open:
            session.push(STEP)
            session.pull()
            steps += 1
        session.push(STEP)
        mine += STEP
        session.step()
        session.finish()

    steps += 2
    np.testing.assert_allclose(mine, steps * STEP, rtol=0, atol=2.0**-21)
    assert session.stats.steps == steps
    assert naming("finished", f"{steps} steps", "2 of them alone") in caplog.messages


def waits_for_workers(session: Session) -> None:
    session.wait(2, timeout=BRIEF)


def waits_for_an_item(session: Session) -> None:
    next(session.items("work", 1, lease_seconds=1))


@pytest.mark.parametrize("wait", variants(waits_for_workers, waits_for_an_item))
def test_who_waits_for_something_else_does_not_give_the_master_up(
    tmp_path: Path, wait: Callable[[Session], None]
) -> None:
    options: dict[str, Any] = {"on_lost": "finish", "reconnect_seconds": 3_600.0}
    with killed_after_joining(tmp_path / "log", zeros(), **options) as session:
        wait_until(lambda: membership_of(session).lost is not None, "the loss")

        with pytest.raises(gradwire.DeadlineError, match="waited"):
            wait(session)

        assert session.is_open


@pytest.mark.parametrize("mode", ROUNDS)
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
        participant_of(session).offline_steps_max = 3

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
