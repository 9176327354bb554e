"""The state of optimizers while their momentum is moved, against references in numpy."""

import numpy as np
import pytest
import torch
from torch import nn

from support.optimizers import OPTIMIZERS, controlled, watch

# Adam and its kin: the estimate stays a mean.


def estimates(betas: list[float], gradients: list[float]) -> list[float]:
    """Return the mean of the gradients after each step, of weights that add up to 1."""
    found, estimate = [], 0.0
    for t, (beta, gradient) in enumerate(zip(betas, gradients, strict=True), 1):
        old, new = beta * (1 - beta ** (t - 1)), 1 - beta
        estimate = (old * estimate + new * gradient) / (old + new)
        found.append(estimate)
    return found


ADAMS = ["Adam", "Adam amsgrad", "Adam foreach", "Adam fused", "Adam tensor", "AdamW", "RAdam",
         "Adamax"]  # fmt: skip


@pytest.mark.parametrize("name", ADAMS)
@pytest.mark.parametrize("lag", [2.0, 9.0, 50.0])
def test_the_estimate_of_adam_is_a_mean_while_beta_moves(name: str, lag: float) -> None:
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = OPTIMIZERS[name]([parameter])
    random = np.random.default_rng(3)
    gradients = [float(g) for g in random.normal(1.0, 1.0, 60)]
    found = []

    with controlled(optimizer, lag=lag):
        seen = watch(optimizer)
        for t, gradient in enumerate(gradients, 1):
            parameter.grad = torch.full((3,), gradient)
            optimizer.step()
            beta = float(seen[-1]["betas"][0])
            found.append(float(optimizer.state[parameter]["exp_avg"][0]) / (1 - beta**t))
        betas = [float(group["betas"][0]) for group in seen]

    assert betas[-1] < betas[0] < 0.9  # it has moved, from the first step on
    assert found == pytest.approx(estimates(betas, gradients), rel=1e-4, abs=1e-5)
    # And what is left is a mean for the optimizer's own beta.
    left = float(optimizer.state[parameter]["exp_avg"][0]) / (1 - 0.9 ** len(gradients))
    assert left == pytest.approx(found[-1], rel=1e-4)


def test_adam_moves_as_a_reference_in_numpy_does() -> None:
    parameter = nn.Parameter(torch.ones(4, dtype=torch.float64))
    optimizer = torch.optim.Adam([parameter], 0.05, betas=(0.9, 0.99), eps=1e-8)
    random = np.random.default_rng(5)
    expected, mean, square = np.ones(4), np.zeros(4), np.zeros(4)

    with controlled(optimizer, lag=4.0, factor=0.5):
        seen = watch(optimizer)
        for t in range(1, 80):
            gradient = random.normal(0.3, 1.0, 4)
            parameter.grad = torch.from_numpy(gradient)
            optimizer.step()
            beta = seen[-1]["betas"][0]
            old = beta * (1 - beta ** (t - 1))
            mean = (old * mean + (1 - beta) * gradient) / (old + 1 - beta)
            square = 0.99 * square + 0.01 * gradient**2
            expected -= 0.05 * 0.5 * mean / (np.sqrt(square / (1 - 0.99**t)) + 1e-8)

            assert parameter.detach().numpy() == pytest.approx(expected, rel=1e-7)


# SGD and RMSprop: the velocity goes on.


@pytest.mark.parametrize("name", ["SGD momentum", "Nesterov", "SGD foreach", "RMSprop momentum"])
def test_what_the_buffer_moves_by_goes_on_where_momentum_moves(name: str) -> None:
    """Whatever momentum is, learning rate times buffer is that of a constant gradient."""
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = OPTIMIZERS[name]([parameter])
    optimizer.param_groups[0]["weight_decay"] = 0.0

    def step(times: int) -> float:
        for _ in range(times):
            before = parameter.detach().clone()
            parameter.grad = torch.ones(3)
            optimizer.step()
        return float((before - parameter.detach())[0])

    steady = step(2000)
    with controlled(optimizer, lag=5.0):
        moved = [step(1) for _ in range(100)]
    moved += [step(1) for _ in range(5)]

    assert moved == pytest.approx([steady] * len(moved), rel=2e-3)
