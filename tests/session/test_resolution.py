"""What of a model is finer than the shared parameters can hold, and bounds that sums exceed."""

import logging

import numpy as np
import pytest
import torch

from gradwire_codecs.arrays import Float32Array
from support.local_master import LocalMaster
from support.sessions import finish, join
from support.wording import naming


def warnings_of_joining(
    master: LocalMaster, caplog: pytest.LogCaptureFixture, target: object
) -> list[str]:
    """Return what a worker is warned of that joins, and makes one step."""
    with caplog.at_level(logging.WARNING, "gradwire.session"):
        session = join(master, target)
        session.step()
        session.close()
    return caplog.messages


class Scaled(torch.nn.Module):
    """A weight, and a small number that is divided by."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.epsilon = torch.nn.Parameter(torch.tensor(epsilon))
        self.zeros = torch.nn.Parameter(torch.zeros(3))


def test_parameters_that_the_run_cannot_hold_are_named(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_of_joining(master, caplog, Scaled(1e-8)) == [
        naming("'epsilon'", "1e-08", "3e-08", "logarithm", "buffer")
    ]


def test_what_it_can_hold_gets_no_warning(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_of_joining(master, caplog, Scaled(1e-3)) == []


def test_digits_that_float32_lacks_are_warned_of(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_of_joining(master, caplog, torch.nn.Linear(2, 1).double()) == [
        naming("float64", "float32")
    ]


def test_weights_that_each_worker_clamps_leave_the_bound_together(master: LocalMaster) -> None:
    targets: list[Float32Array] = [np.zeros(2, np.float32) for _ in "ab"]
    sessions = [join(master, target, scale="sum") for target in targets]
    for target, session in zip(targets, sessions, strict=True):
        np.clip(target + 5, 0, 1, out=target)
        session.step()

    finish(*sessions)

    assert [target.tolist() for target in targets] == [[2, 2], [2, 2]]
