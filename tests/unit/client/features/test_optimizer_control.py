"""An optimizer under control: right while it steps, its own again afterwards, whatever it is."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks.defaults.optimizers import Lion
from gradwire.errors import UsageError
from gradwire.features.optimizer_control import OptimizerControl, torch_optimizer
from gradwire.optimizer.momentum import compensated, rate_factor
from gradwire.replica.stats import Tally
from support.optimizers import (
    OPTIMIZERS,
    controlled,
    equal,
    matrix,
    momentum_of,
    same,
    train,
    watch,
)
from support.wording import naming

EVERY = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


# What every optimizer is owed.


@EVERY
def test_without_delay_and_scale_training_is_the_same_to_the_last_bit(
    make: Callable[[Any], Optimizer],
) -> None:
    mine, reference = matrix(), matrix()
    optimizer, other = make(mine), make(reference)

    with controlled(optimizer):
        train(mine, optimizer, 30)
    train(reference, other, 30)

    assert same(mine, reference)
    assert equal(list(optimizer.state.values()), list(other.state.values()))


@EVERY
def test_between_steps_its_values_are_its_own(make: Callable[[Any], Optimizer]) -> None:
    parameters = matrix()
    optimizer = make(parameters)
    before = copy.deepcopy(optimizer.state_dict()["param_groups"])
    own = dict(optimizer.param_groups[0])

    with controlled(optimizer, lag=5.0, factor=0.5):
        seen = watch(optimizer)
        for _ in range(40):
            train(parameters, optimizer, 1)
            group = optimizer.param_groups[0]
            assert all(group[key] is own[key] for key in own)
            assert optimizer.state_dict()["param_groups"] == before

    momentum = momentum_of(own)
    put = momentum_of(seen[-1])
    if not momentum or "momentum_decay" in own:  # NAdam keeps its own
        assert (put, seen[-1]["lr"]) == (momentum, own["lr"] * 0.5)
        return
    assert put is not None
    nesterov = bool(own.get("nesterov"))
    # The delay that is reckoned with has come near the measured one.
    assert put == pytest.approx(compensated(momentum, 4.6, nesterov=nesterov), rel=0.08)
    gain = rate_factor(momentum, put) if "betas" not in own and "ns_steps" not in own else 1.0
    assert float(seen[-1]["lr"]) == pytest.approx(float(own["lr"]) * 0.5 * gain)


class OwnAdam(Optimizer):
    """Not torch's, with the state that Adam's relatives keep."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (first, second), rate = group["betas"], group["lr"]
            for parameter in group["params"]:
                state = self.state[parameter]
                for name in ("exp_avg", "exp_avg_sq"):
                    state.setdefault(name, torch.zeros_like(parameter))
                state["exp_avg"].lerp_(parameter.grad, 1.0 - first)
                state["exp_avg_sq"].lerp_(parameter.grad.square(), 1.0 - second)
                parameter.sub_(rate * state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8))


@pytest.mark.parametrize(
    ("make", "is_adapted"),
    [(OwnAdam, True), (lambda p: Lion(p, 0.01), False)],
    ids=["Adam's state", "Lion"],
)
def test_of_unknown_optimizers_those_are_adapted_that_keep_what_adam_keeps(
    make: Callable[[Any], Optimizer], *, is_adapted: bool
) -> None:
    """Lion has betas, too, but without its first one it steps by the sign of one gradient."""
    parameters = matrix()
    optimizer = make(parameters)
    with controlled(optimizer, lag=1000.0, factor=0.5):
        seen = watch(optimizer)
        train(parameters, optimizer, 100)

    own = momentum_of(optimizer.param_groups[0])
    momenta = [momentum_of(group) for group in seen]
    assert momenta[0] == own == 0.9  # nothing is known before its first step
    assert (momenta[-1] == 0.0) == is_adapted
    assert is_adapted or set(momenta) == {own}
    assert {group["lr"] for group in seen} == {0.005}


@EVERY
def test_what_is_saved_is_what_is_left(make: Callable[[Any], Optimizer]) -> None:
    """A checkpoint under control holds the state that the optimizer has after it."""
    parameters = matrix()
    optimizer = make(parameters)
    with controlled(optimizer, lag=6.0):
        train(parameters, optimizer, 12)
        saved = copy.deepcopy(optimizer.state_dict())
        again = copy.deepcopy(optimizer.state_dict())
    left = optimizer.state_dict()

    for number, state in left["state"].items():
        for key, value in state.items():
            kept, kept_again = saved["state"][number][key], again["state"][number][key]
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(kept, value, rtol=1e-5, atol=1e-7)
                torch.testing.assert_close(kept, kept_again, rtol=0, atol=0)
            elif isinstance(value, float):
                assert kept == pytest.approx(value)


# Schedulers, errors, what is no step.


def test_schedulers_see_and_set_the_optimizers_own_values() -> None:
    def run(lag: float) -> list[tuple[float, tuple[float, float]]]:
        parameters = matrix()
        optimizer = torch.optim.AdamW(parameters, 1e-3)
        schedule = OneCycleLR(optimizer, 0.1, total_steps=40, cycle_momentum=True)
        seen = []
        with controlled(optimizer, lag=lag, factor=0.25):
            for _ in range(39):
                train(parameters, optimizer, 1)
                schedule.step()
                group = optimizer.param_groups[0]
                seen.append((group["lr"], group["betas"]))
                assert schedule.get_last_lr() == [group["lr"]]
        return seen

    assert run(lag=5.0) == run(lag=0.0)


def test_a_first_beta_that_is_a_tensor_stays_that_tensor() -> None:
    parameters, beta = matrix(), torch.tensor(0.9)
    optimizer = torch.optim.Adam(parameters, 0.5, foreach=False)
    optimizer.param_groups[0]["betas"] = [beta, 0.99]
    with controlled(optimizer, lag=90.0):
        seen = watch(optimizer)
        train(parameters, optimizer, 1)

    assert isinstance(seen[0]["betas"][0], torch.Tensor)
    assert float(seen[0]["betas"][0]) == pytest.approx(compensated(0.9, 4.5))
    assert optimizer.param_groups[0]["betas"][0] is beta


def fail() -> float:
    raise RuntimeError("no loss")


def test_a_step_that_raises_leaves_no_other_values_behind() -> None:
    parameters = matrix()
    optimizer = torch.optim.SGD(parameters, 0.5, momentum=0.9)

    with controlled(optimizer, lag=5.0, factor=0.5) as control:
        for put_back in (control.before_push, lambda: train(parameters, optimizer, 1)):
            with pytest.raises(RuntimeError, match="no loss"):
                optimizer.step(fail)
            put_back()

            assert optimizer.param_groups[0]["lr"] == 0.5
            assert optimizer.param_groups[0]["momentum"] == 0.9
        with pytest.raises(RuntimeError, match="no loss"):
            optimizer.step(fail)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_scale_of_no_use_is_an_error_of_the_step_and_changes_nothing() -> None:
    parameters, reference = matrix(), matrix()
    optimizer = torch.optim.SGD(parameters, 0.5)

    def factor() -> float:
        raise UsageError("scale(4, 1) returned 0")

    control = OptimizerControl(optimizer, lag=None, factors=[factor], tally=Tally())
    with pytest.raises(UsageError, match="returned 0"):
        train(parameters, optimizer, 1)
    control.on_leave()

    assert same(parameters, reference)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_grad_scaler_skips_is_none(fused: bool) -> None:
    """A fused optimizer is called all the same, and skips it itself."""
    parameters, reference = matrix(), matrix()
    optimizer = torch.optim.AdamW(parameters, 0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with controlled(optimizer) as control:
        trained = []
        for value in (1.0, float("inf"), 1.0):
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, value)
            scaler.scale(torch.zeros(()))
            scaler.step(optimizer)
            scaler.update()
            control.before_push()
            trained.append(control.has_trained())

    assert trained == [True, False, True]
    assert not same(parameters, reference)


# What is no optimizer of the target.


class Wrapper:
    """What Accelerate and Lightning hand to a script."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups


class Other:
    param_groups = ()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (0.1, "param_groups"),
        ("Adam", "param_groups"),
        (nn.Linear(2, 2), "param_groups"),
        (Other(), "Other"),
    ],
)
def test_what_is_no_optimizer_of_torch_is_named(wrong: object, named: str) -> None:
    with pytest.raises(UsageError, match=naming("optimizer", named, "torch.optim.Optimizer")):
        torch_optimizer(wrong, nn.Linear(2, 2))


@pytest.mark.parametrize("target", [nn.Linear(2, 2), np.zeros(4, np.float32)])
def test_an_optimizer_of_something_else_is_refused(target: object) -> None:
    optimizer = torch.optim.SGD(nn.Linear(3, 2).parameters(), 0.1)

    with pytest.raises(UsageError, match=naming("2 parameters", "parameter 0", "(2, 3)")):
        torch_optimizer(optimizer, target)
