"""Optimizers under control, with parameters and gradients for them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gradwire.features.optimizer_control import OptimizerControl
from gradwire.optimizer.momentum import Lag
from gradwire.replica.stats import Tally

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.01),
    "SGD momentum": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, weight_decay=0.01),
    "SGD dampening": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, dampening=0.5),
    "Nesterov": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, nesterov=True),
    "SGD foreach": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.01),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "Adam foreach": lambda p: torch.optim.Adam(p, 0.01, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, 0.01, fused=True),
    "Adam tensor": lambda p: torch.optim.Adam(p, torch.tensor(0.01), foreach=False),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01),
    "NAdam foreach": lambda p: torch.optim.NAdam(p, 0.01, foreach=True, momentum_decay=0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01),
    "RMSprop momentum": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.9, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.01),
}
if hasattr(torch.optim, "Muon"):
    OPTIMIZERS["Muon"] = lambda p: torch.optim.Muon([next(iter(p))], 0.01)


def matrix() -> list[nn.Parameter]:
    """Return parameters that every optimizer takes; Muon takes the first one alone."""
    random = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(4, 3, generator=random)), nn.Parameter(torch.ones(5))]


def train(parameters: list[nn.Parameter], optimizer: Optimizer, steps: int, seed: int = 7) -> None:
    """Make steps with gradients that depend on the parameters, and on noise."""
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        noise = [torch.randn(p.shape, generator=random) for p in parameters]

        def closure(noise: list[torch.Tensor] = noise) -> float:
            loss = 0.0
            for parameter, n in zip(parameters, noise, strict=True):
                parameter.grad = parameter.detach() + n
                loss += float((parameter.detach() ** 2 / 2 + parameter.detach() * n).sum())
            return loss

        closure()
        optimizer.step(closure if isinstance(optimizer, torch.optim.LBFGS) else None)


@contextmanager
def controlled(
    optimizer: Optimizer, *, lag: float = 0.0, factor: float = 1.0, tally: Tally | None = None
) -> Iterator[OptimizerControl]:
    control = OptimizerControl(
        optimizer,
        lag=lambda: Lag(network=lag),
        factors=[lambda: factor],
        tally=Tally() if tally is None else tally,
    )
    try:
        yield control
    finally:
        control.on_leave()


def watch(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return a list that grows by what the first group is in each step."""
    seen: list[dict[str, Any]] = []

    def note(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        group = optimizer.param_groups[0]
        seen.append({key: value for key, value in group.items() if key != "params"})

    optimizer.register_step_pre_hook(note)
    return seen


def hooks_of(optimizer: Optimizer) -> dict[str, dict[int, Any]]:
    """Return what torch calls at steps, saving and loading; torch has no public list of it."""
    return {
        "before a step": dict(optimizer._optimizer_step_pre_hooks),
        "after a step": dict(optimizer._optimizer_step_post_hooks),
        "after saving": dict(optimizer._optimizer_state_dict_post_hooks),
        "after loading": dict(optimizer._optimizer_load_state_dict_post_hooks),
    }


def momentum_of(group: dict[str, Any]) -> float | None:
    if "betas" in group:
        return float(group["betas"][0])
    return group.get("momentum")


def equal(one: Any, other: Any) -> bool:
    """Return whether two states are the same to the last bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def same(one: list[nn.Parameter], other: list[nn.Parameter]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
