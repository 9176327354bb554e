"""The master's optimizer, and a real master that is started again."""

import signal
from pathlib import Path

import numpy as np
import pytest

import gradwire
from gradwire import Central
from support.local_master import MasterProcess
from support.sessions import change

RATE, MOMENTUM, STEPS = 0.1, 0.9, 20


def push(session: gradwire.Session, steps: int) -> None:
    for _ in range(steps):
        session.push(change(1, 0, 0, 0))
        session.pull()


def test_a_checkpoint_has_the_optimizers_state(tmp_path: Path) -> None:
    mode = Central(lr=RATE, momentum=MOMENTUM)
    expected = velocity = 0.0
    for _ in range(STEPS):
        velocity = MOMENTUM * velocity + 1.0
        expected -= RATE * velocity
    first, again = np.zeros(4, np.float32), np.zeros(4, np.float32)
    with MasterProcess("--checkpoint", str(tmp_path)) as master:
        session = gradwire.join(first, master=master.address, mode=mode)
        push(session, STEPS // 2)
        session.leave()
        assert master.stop(signal.SIGTERM)[0] == 0
    with MasterProcess("--checkpoint", str(tmp_path), "--resume", "auto") as master:
        with gradwire.join(again, master=master.address) as session:
            assert again == pytest.approx(first, abs=1e-4)  # rounding had left something
            push(session, STEPS // 2)
        master.stop(signal.SIGTERM)

    assert again[0] == pytest.approx(expected, rel=0.05)
    loaded = np.zeros(4, np.float32)
    found = gradwire.load_checkpoint(tmp_path, loaded)
    assert (found.elements, loaded.tolist()) == (4, again.tolist())
