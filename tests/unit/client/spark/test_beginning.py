"""A training that goes on from a model begins with its buffers and with what its optimizer kept."""

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: make frameworks")

import torch
from torch import nn

from gradwire.spark.training.beginning import (
    Beginning,
    OptimizerState,
    beginning_of,
    buffers_of_state,
    kept_state,
)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    made = model()
    optimizer = torch.optim.Adam(made.parameters(), lr=0.1)
    made(torch.randn(8, 2)).square().sum().backward()
    optimizer.step()
    return made, optimizer


def kept(optimizer: torch.optim.Optimizer) -> OptimizerState:
    found = kept_state(optimizer, 1 << 20)
    assert found is not None
    return found


def test_buffers_and_the_state_of_the_optimizer_are_taken_over() -> None:
    first, optimizer = trained()
    buffers = buffers_of_state(first, first.state_dict())
    content = Beginning(buffers, kept(optimizer)).packed()
    second = model()
    its_optimizer = torch.optim.Adam(second.parameters(), lr=0.5)

    took = beginning_of(content).give(second, its_optimizer)

    assert took
    assert second[1].running_mean.tolist() == first[1].running_mean.tolist()  # type: ignore[index]
    before, after = (each.state_dict() for each in (optimizer, its_optimizer))
    assert after["param_groups"][0]["lr"] == 0.5
    for place, state in before["state"].items():
        assert after["state"][place]["exp_avg"].tolist() == state["exp_avg"].tolist()


@pytest.mark.parametrize(
    "other",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, amsgrad=True),
    ],
    ids=["another class", "another switch"],
)
def test_an_optimizer_of_another_kind_begins_anew(other: Any) -> None:
    _, optimizer = trained()
    second = model()
    its_optimizer = other(second.parameters())

    took = beginning_of(Beginning({}, kept(optimizer)).packed()).give(second, its_optimizer)

    assert not took
    assert its_optimizer.state_dict()["state"] == {}


def test_a_state_that_is_too_large_or_empty_is_not_kept() -> None:
    made, optimizer = trained()

    assert kept_state(optimizer, 10) is None
    assert kept_state(torch.optim.Adam(made.parameters()), 1 << 20) is None
