"""A training that diverges is told so: by a warning first, and by an error that names the cause."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gradwire
from gradwire import DivergedError, GradwireWarning
from support.local_master import LocalMaster
from support.sessions import HALF, change, delivered, join, zeros
from support.waiting import wait_until
from support.wording import naming


def quadratic(rate: float) -> tuple[torch.nn.Linear, torch.optim.Optimizer, Callable[[], None]]:
    """Return a model, its optimizer, and a step; with rates above 1 they diverge."""
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), rate)

    def step() -> None:
        optimizer.zero_grad()
        (model.weight**2).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return model, optimizer, step


def largest(model: torch.nn.Linear) -> float:
    return float(model.weight.detach().abs().max())


@pytest.mark.parametrize("rate", [1.02, 1.1])
def test_training_at_far_too_high_a_rate_is_warned_of_long_before_its_error(
    master: LocalMaster, rate: float
) -> None:
    model, optimizer, step = quadratic(rate)
    session = join(master, model, optimizer=optimizer, threshold=2.0**-10)
    warned_at: list[float] = []

    def train() -> None:
        while True:
            step()
            session.step()
            if caught and not warned_at:
                warned_at.append(largest(model))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(DivergedError) as ended:
            train()

    [warning] = caught
    assert warning.category is GradwireWarning
    assert str(warning.message) == naming("seems to diverge", f"learning rate {rate}")
    assert warned_at[0] < 128 / 10
    assert str(ended.value) == naming(
        "weight[0, ", f"step {session.stats.steps} ", f"rate {rate}", "1 workers", "scale 1"
    )
    assert "quantum" not in str(ended.value)


@pytest.mark.parametrize(
    "growth",
    [
        pytest.param(lambda step: 1.0, id="from 0 at a constant rate"),
        pytest.param(lambda step: step, id="from 0 at a rate that rises"),
    ],
)
def test_training_that_begins_at_0_is_not_taken_for_divergence(
    master: LocalMaster, growth: Callable[[int], float]
) -> None:
    target = zeros()
    session = join(master, target, threshold=2.0**-12)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(1, 200):
            target += np.float32(1e-3 * growth(step))
            session.step()


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (float("nan"), ("array[2]", "nan")),
        (float("inf"), ("array[2]", "inf")),
        (-200.0, ("array[2]", -200, 128)),
        (1e30, ("array[2]", "1e+30", 128)),
    ],
)
def test_the_error_names_the_parameter_its_value_and_how_the_training_stood(
    master: LocalMaster, value: float, named: tuple[Any, ...]
) -> None:
    target = zeros()
    session = join(master, target)
    target[2] = value

    with pytest.raises(DivergedError, match=naming(*named, "step 1 ", "checkpoint")) as refused:
        session.step()

    assert "quantum" not in str(refused.value)
    assert session.stats.updates_sent == 0


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({}, "lower the learning rate"),
        ({"scale": "sum"}, "leave scale at 'auto'"),
    ],
)
def test_the_error_says_what_to_do(
    master: LocalMaster, options: dict[str, Any], remedy: str
) -> None:
    target = zeros()
    session, other = join(master, target, **options), join(master)
    session.wait(2)
    target[0] = np.nan

    with pytest.raises(DivergedError, match=remedy):
        session.step()
    other.close()


def test_what_grows_out_of_the_range_little_by_little_is_told_of_the_quantum(
    master: LocalMaster,
) -> None:
    target = zeros()
    session = join(master, target)
    for _ in range(4):
        session.push(change(30.0, 0, 0, 0))

    with pytest.raises(
        gradwire.OutOfRangeError, match=naming("array[0]", 150, 128, f"quantum={2.0**-22}")
    ):
        session.push(change(30.0, 0, 0, 0))


def test_what_only_all_workers_together_take_out_of_the_range_is_no_fault_of_the_network(
    master: LocalMaster,
) -> None:
    one, other = join(master), join(master)
    one.push(change(100.0, 0, 0, 0))
    delivered(one, 1)
    errors: list[gradwire.GradwireError] = []

    def ends() -> bool:
        try:
            other.push(change(0, 0, 0, HALF))  # without a pull: it does not know of the other's
        except gradwire.GradwireError as error:
            errors.append(error)
        return bool(errors)

    other.push(change(100.0, 0, 0, 0))
    wait_until(ends, "the master's answer")

    [error] = errors
    assert isinstance(error, DivergedError)
    assert str(error) == naming("array[0]", 128, "step ", "2 workers")
