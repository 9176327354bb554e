"""Optimizers that wrap another one: what all workers' steps come to is what one worker's would."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gradwire import Session
from gradwire.features.optimizer_control import torch_optimizer
from support.local_master import LocalMaster
from support.sessions import finish, join, membership_of
from support.waiting import wait_until

EVERY, PART, STEPS = 5, 0.5, 20


class Lookahead:
    """Every so many steps it goes back a part of the way (M. Zhang et al., 2019)."""

    def __init__(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        setattr(self, name, optimizer)
        self._name = name
        self.param_groups = optimizer.param_groups
        self._slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]
        self._steps = 0

    def zero_grad(self) -> None:
        getattr(self, self._name).zero_grad()

    def step(self) -> None:
        getattr(self, self._name).step()
        self._steps += 1
        if self._steps % EVERY:
            return
        fast = [p for group in self.param_groups for p in group["params"]]
        with torch.no_grad():
            for slow, parameter in zip(self._slow, fast, strict=True):
                slow += PART * (parameter - slow)
                parameter.copy_(slow)


class HookedLookahead(torch.optim.Optimizer, Lookahead):
    """The same, as one of torch's classes."""

    def __init__(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        torch.optim.Optimizer.__init__(self, optimizer.param_groups, {})
        Lookahead.__init__(self, optimizer, name)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        Lookahead.step(self)


class UnhookedLookahead(Lookahead, torch.optim.Optimizer):  # type: ignore[misc]
    """The same, as a subclass that does not call torch's `__init__`."""


Make = Callable[[torch.optim.Optimizer, str], Any]


def way(make: Make, name: str) -> tuple[torch.nn.Linear, Any]:
    """Return a model of one weight, 0, and its optimizer."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model, make(torch.optim.SGD(model.parameters(), lr=0.1), name)


def has_all(session: Session, other: Session) -> bool:
    """Return whether a session has received all that the other one has sent."""
    return membership_of(session).updates_received >= other.stats.updates_sent


def step(model: torch.nn.Linear, optimizer: Any) -> None:
    """Go towards 1."""
    optimizer.zero_grad()
    (0.5 * (model.weight - 1) ** 2).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@pytest.mark.parametrize("name", ["optimizer", "base"])
@pytest.mark.parametrize("make", [Lookahead, HookedLookahead, UnhookedLookahead])
def test_workers_go_as_far_together_as_one_goes_alone(
    master: LocalMaster, make: Make, name: str
) -> None:
    alone = way(make, name)
    together = [way(make, name) for _ in "ab"]
    sessions = [
        join(master, model, optimizer=optimizer, threshold=2.0**-12, momentum="keep")
        for model, optimizer in together
    ]
    for session in sessions:
        session.wait(2)

    for _ in range(STEPS):
        step(*alone)
        for (model, optimizer), session in zip(together, sessions, strict=True):
            step(model, optimizer)
            session.step()
        for session, other in zip(sessions, reversed(sessions), strict=True):
            wait_until(partial(has_all, session, other), "the update of the other worker")
    finish(*sessions)

    reached = alone[0].weight.item()
    assert 0.4 < reached < 0.9
    for model, _ in together:
        assert model.weight.item() == pytest.approx(reached, rel=0.15)
    assert np.ptp([model.weight.item() for model, _ in together]) == 0


def test_what_only_hands_on_is_looked_through() -> None:
    model = torch.nn.Linear(1, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = type("AcceleratedOptimizer", (), {"__module__": "accelerate.optimizer"})()
    wrapper.optimizer = inner

    assert torch_optimizer(wrapper, model) is inner
