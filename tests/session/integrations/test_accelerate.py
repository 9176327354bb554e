"""The tracker for accelerate: a real Accelerator, and a master of the test's own."""

import pytest
import torch
from torch import nn

import gradwire
from support.curves import logged_by
from support.local_master import LocalMaster
from support.sessions import HALF

pytest.importorskip("accelerate")

from accelerate import Accelerator  # only if it is there
from accelerate.state import AcceleratorState, GradientState, PartialState

from gradwire.integrations.accelerate import GradwireTracker


def test_what_a_script_gives_to_accelerate_the_master_gets(master: LocalMaster) -> None:
    accelerator = Accelerator(cpu=True)
    try:
        plain = nn.Linear(4, 1)
        model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
        with gradwire.join(
            model, optimizer=optimizer, master=master.address, threshold=HALF
        ) as session:
            accelerator.trackers.append(GradwireTracker(session))
            series = master.series
            for step in range(3):
                loss = model(torch.ones(2, 4)).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                session.step()
                accelerator.log(
                    {"loss": 2.0 * step, "nan": float("nan"), "note": "x", "tensor": loss},
                    step=step,
                )
            session.finish()
            accelerator.log({"loss": 9.0}, step=9)
        assert accelerator.get_tracker("gradwire", unwrap=True) is session
    finally:
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()

    logged = logged_by(series, 0)
    assert logged["loss"] == [(0, 0.0), (1, 2.0), (2, 4.0)]
    assert logged.keys() == {"loss", "nan"}
