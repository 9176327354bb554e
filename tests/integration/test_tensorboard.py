"""``gradwire master --tensorboard``: what workers log is what TensorBoard reads."""

import signal
from pathlib import Path

import numpy as np

import gradwire
from support.local_master import MasterProcess
from support.tensorboard import scalars_in


def test_tensorboard_has_what_workers_have_logged_when_the_master_has_ended(
    tmp_path: Path,
) -> None:
    with MasterProcess("--tensorboard", str(tmp_path)) as master:
        targets = [np.zeros(5, np.float32) for _ in range(2)]
        sessions = [
            gradwire.join(target, master=master.address, run="bert", threshold=0.5)
            for target in targets
        ]
        for step in range(3):
            for rank, session in enumerate(sessions):
                targets[rank][rank] += 1
                session.log(loss=float(step + rank))
                session.step()
        for session in sessions:
            session.leave()
        status, _, log = master.stop(signal.SIGTERM)

    assert status == 0, log
    found = scalars_in(tmp_path)
    assert [value for _, value in found["bert/worker-0"]["loss"]] == [0.0, 1.0, 2.0]
    assert [value for _, value in found["bert/worker-1"]["loss"]] == [1.0, 2.0, 3.0]
    assert [value for _, value in found["bert/mean"]["loss"]] == [0.5, 1.5, 2.5]
