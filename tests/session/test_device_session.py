"""Sessions whose model is on a device share with those whose model is not."""

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
import torch

import gradwire
from gradwire import UsageError
from gradwire.settings.training import Feedback
from gradwire.target.torch_parameters import TorchParameters
from gradwire_codecs.arrays import Float32Array
from support.device import DEVICE
from support.histograms import shown_in
from support.local_master import LocalMaster
from support.sessions import HALF, change, finish, join, pull
from support.waiting import wait_until
from support.wording import naming

FEEDBACKS = pytest.mark.parametrize("feedback", ["local", "shared"])

CPU = torch.device("cpu")


class Model(torch.nn.Module):
    """Four parameters in two tensors, of which one may be of half precision."""

    def __init__(self, device: torch.device = DEVICE, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(2, dtype=dtype, device=device))
        self.second = torch.nn.Parameter(torch.zeros(2, device=device))

    @torch.no_grad()
    def change(self, *values: float) -> None:
        """Change the parameters as an optimizer does."""
        self.first.add_(torch.tensor(values[:2]).to(self.first))
        self.second.add_(torch.tensor(values[2:]).to(self.second))

    def values(self) -> list[float]:
        flat = torch.cat([self.first.detach().float(), self.second.detach()])
        return cast("list[float]", flat.tolist())


@pytest.fixture
def codec_on_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what lets the codec treat tensors as a device's, where there is no other device."""

    def treat() -> None:
        monkeypatch.setattr(TorchParameters, "on_device", True)

    return treat


@FEEDBACKS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_on_a_device_and_one_on_the_host_train_each_other(
    master: LocalMaster,
    codec_on_device: Callable[[], None],
    feedback: Feedback,
    dtype: torch.dtype,
) -> None:
    here, there = Model(CPU), Model(DEVICE, dtype)
    host = join(master, here, feedback=feedback)
    codec_on_device()
    device = join(master, there, feedback=feedback)

    there.change(HALF, 0, -1.25, 0.125)
    assert device.push() == 2
    pull(host, 1)
    assert here.values() == [HALF, 0, -1.0, 0]
    here.change(0, 2.0, 0, 0)
    host.push()
    pull(device, 1)

    kept = [-0.25, 0.125] if feedback == "local" else [0, 0]
    assert there.values() == [HALF, 2.0, -1.0 + kept[0], kept[1]]
    assert device.digest() == host.digest()
    finish(device, host)
    assert there.values() == here.values() == [HALF, 2.0, -1.25, 0.125]


def test_of_a_model_on_a_device_histograms_come_to_the_master(
    master: LocalMaster, codec_on_device: Callable[[], None]
) -> None:
    codec_on_device()
    model = Model()
    session = join(master, model, log_histograms_every=1)
    model.change(HALF, 0, -1.25, 0.125)
    session.step()
    run = master.master.run
    assert run is not None
    wait_until(lambda: run.histograms.taken == 1, "the histograms to come")

    found = shown_in(run.histograms)
    ends = [(each["lowest"], each["highest"]) for each in found.values()]
    assert ends == [(0, HALF)] * 2 + [(-1.25, 0.125)] * 2
    session.finish()


@FEEDBACKS
def test_a_session_on_a_device_is_saved_and_loaded(
    master: LocalMaster, codec_on_device: Callable[[], None], feedback: Feedback
) -> None:
    codec_on_device()
    model = Model()
    session = join(master, model, feedback=feedback)
    model.change(0.25, 0.75, 0, 0)
    session.step()

    state = session.state_dict()
    model.change(8.0, 8.0, 8.0, 8.0)
    session.load_state_dict(state)

    assert state["residual"].tolist() == [0.25, 0.25, 0, 0]
    assert state["residual"].device.type == "cpu"
    assert session.push(torch.full((4,), 0.25, device=DEVICE)) == 2


def test_a_change_that_cannot_be_sent_is_taken_back(
    master: LocalMaster, codec_on_device: Callable[[], None]
) -> None:
    codec_on_device()
    model = Model()
    session = join(master, model)
    model.change(0.25, 0, 0, 0)

    with pytest.raises(gradwire.DivergedError, match=r"second\[1\]"):
        session.push(change(0, 0, 0, 1e9))
    with pytest.raises(UsageError, match=naming("float32", "(3,)")):
        session.push(torch.zeros(3))

    assert model.values() == [0.25, 0, 0, 0]


def test_a_model_on_a_device_starts_a_run_and_joins_one(
    master: LocalMaster, codec_on_device: Callable[[], None]
) -> None:
    """Its values go to the master, and the run's come to it."""
    codec_on_device()
    first, second = Model(), Model()
    first.change(0.1, 0.2, 0.3, 0.4)

    founder, joiner = join(master, first), join(master, second)

    assert second.values() == first.values() != [0, 0, 0, 0]
    assert founder.digest() == joiner.digest()
    vector: Float32Array = np.array(first.values(), np.float32)
    assert np.abs(vector - [0.1, 0.2, 0.3, 0.4]).max() <= 2.0**-24
