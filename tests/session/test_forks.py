"""A fork of a process that trains: it has no part in the session, and can have one of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

import gradwire
from gradwire.threads.signals import postpone, uninterrupted
from support.local_master import LocalMaster
from support.sessions import finish
from support.waiting import PROCESS, comes_true

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def in_a_fork(play: Callable[[], object]) -> int:
    """Return how a fork ends that does this: 0 if it returns, 1 if it raises, or -signal."""
    child = os.fork()
    if not child:
        status = 1
        try:
            play()
            status = 0
        finally:
            os._exit(status)
    ended = list[int]()

    def has_ended() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            ended.append(os.waitstatus_to_exitcode(status))
        return bool(ended)

    if not comes_true(has_ended, seconds=PROCESS):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the fork has not ended")
    return ended[0]


FORKS_FROM_A_THREAD = """
import os, signal, sys, threading
import numpy as np
import gradwire
from gradwire.threads.signals import uninterrupted

def fork():
    child = os.fork()
    if not child:
        signal.raise_signal(signal.SIGTERM)
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

with gradwire.join(np.zeros(100, np.float32), master=sys.argv[1], log_level='warning'):
    with uninterrupted():
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
"""


def test_a_signal_ends_a_fork_that_another_thread_made_in_the_middle_of_a_step(
    master: LocalMaster,
) -> None:
    """As pools do that replace their processes: nothing in the fork ever ends that step.

    In a process of its own, as other tests leave threads behind that do not bear a fork.
    """
    done = subprocess.run(
        [sys.executable, "-c", FORKS_FROM_A_THREAD, master.address],
        capture_output=True, text=True, timeout=PROCESS, check=True,
    )  # fmt: skip

    assert int(done.stdout) == -signal.SIGTERM


def test_a_fork_that_the_step_itself_made_goes_on_inside_of_it() -> None:
    def play() -> None:
        called = list[str]()
        assert postpone(lambda: called.append("later"))
        block.__exit__(None, None, None)
        assert called == ["later"]
        assert not postpone(lambda: None)

    block = uninterrupted()
    with block:
        status = in_a_fork(play)

    assert status == 0


def test_a_fork_lets_go_of_what_is_trained_and_may_join_by_itself(master: LocalMaster) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    session = gradwire.join(model, optimizer=optimizer, master=master.address)
    hooks = len(optimizer._optimizer_step_pre_hooks)

    def train_alone() -> None:
        assert not session.is_open
        session.close()
        assert len(optimizer._optimizer_step_pre_hooks) == hooks - 1
        model(torch.ones(2)).sum().backward()
        optimizer.step()

    def join_too() -> None:
        own = gradwire.join(model, optimizer=optimizer, master=master.address)
        assert own.rank == 1
        own.step()
        own.close()

    assert in_a_fork(train_alone) == 0
    assert in_a_fork(join_too) == 0

    assert session.is_open
    finish(session)
    assert all(np.isfinite(each.detach().numpy()).all() for each in model.parameters())


def test_an_end_in_a_fork_is_refused_and_says_nothing_of_steps(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    session = gradwire.join(torch.nn.Linear(2, 1), master=master.address)

    def end() -> None:
        with pytest.raises(gradwire.UsageError, match="fork"):
            session.finish()
        assert "made no step" not in caplog.text

    assert in_a_fork(end) == 0

    session.close()
