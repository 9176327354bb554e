"""The mode ``central``, in sessions against a real master: gradients go there, steps come back."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradwire
from gradwire import Central
from gradwire_server.config import MasterConfig
from support.local_master import LocalMaster
from support.sessions import at_once, change, join, values_of, zeros
from support.tiers import variants
from support.wording import naming

GRADIENT_QUANTUM = 2.0**-25
STEPS = 25
WORKERS = 3
FEATURES = 6
EXACT: dict[str, Any] = {"threshold": GRADIENT_QUANTUM, "shake_up_steps": 0}
"""With bits=0: everything is sent."""


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 2))


def loss_of(module: nn.Module, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(8, FEATURES, generator=generator)
    loss: torch.Tensor = ((module(inputs) - torch.tanh(2 * inputs[:, :2])) ** 2).mean()
    return loss


def backward(module: nn.Module, seed: int, share: float = 1.0) -> None:
    """Compute the gradient of a batch, or a share of it."""
    (share * loss_of(module, seed)).backward()  # type: ignore[no-untyped-call]


LOCAL: list[tuple[Any, Callable[[Any], torch.optim.Optimizer]]] = [
    (Central(lr=0.1, bits=0), lambda p: torch.optim.SGD(p, 0.1)),
    (
        Central(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, bits=0),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    (Central("adagrad", lr=0.1, bits=0), lambda p: torch.optim.Adagrad(p, 0.1)),
    (Central("rmsprop", lr=0.01, bits=0), lambda p: torch.optim.RMSprop(p, 0.01)),
    (Central("adam", lr=0.01, bits=0), lambda p: torch.optim.Adam(p, 0.01)),
    (
        Central("adamw", lr=0.01, weight_decay=0.1, bits=0),
        lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    ),
]


@pytest.mark.parametrize(("mode", "optimizer"), variants(*LOCAL[::-1]))
def test_with_one_worker_it_is_the_same_optimizer_in_this_process(
    master: LocalMaster, mode: Any, optimizer: Callable[[Any], torch.optim.Optimizer]
) -> None:
    alone, module = net(), net()
    stepping = optimizer(alone.parameters())
    session = join(master, module, mode=mode, **EXACT)
    for step in range(STEPS):
        stepping.zero_grad()
        backward(alone, step)
        stepping.step()
        backward(module, step)
        session.step()

        assert (values_of(alone) - values_of(module)).abs().max() <= 2e-6 * (step + 1)
        assert all(parameter.grad is None for parameter in module.parameters())
    session.finish()


def test_with_the_gradients_of_all_it_is_one_process_with_all_batches(master: LocalMaster) -> None:
    mode = Central(lr=0.1, momentum=0.9, gradients_per_update=WORKERS, bits=0)
    alone = net()
    stepping = torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9)
    expected = []
    for step in range(STEPS):
        stepping.zero_grad()
        for rank in range(WORKERS):
            backward(alone, 100 * rank + step, 1 / WORKERS)
        stepping.step()
        expected.append(values_of(alone))
    found: dict[int, list[torch.Tensor]] = {rank: [] for rank in range(WORKERS)}

    def work(rank: int) -> None:
        module = net()
        session = join(master, module, mode=mode, rank=rank, **EXACT)
        session.wait(WORKERS)
        for step in range(STEPS):
            backward(module, 100 * session.rank + step)
            session.step()
            found[session.rank].append(values_of(module))
        session.finish()

    join(master, net(), mode=mode, rank=WORKERS).leave()  # else two could found the run
    at_once(*(lambda rank=rank: work(rank) for rank in range(WORKERS)))

    for step, values in enumerate(expected, 1):
        mine, *others = (each[step - 1] for each in found.values())
        assert (mine - values).abs().max() <= 2e-6 * step
        assert all(torch.equal(mine, other) for other in others)


# Mistakes.


def test_an_optimizer_in_the_worker_is_refused(master: LocalMaster) -> None:
    module = net()
    optimizer = torch.optim.Adam(module.parameters())

    with pytest.raises(
        gradwire.UsageError, match=naming("optimizer=Adam", "master steps", "sgd", "without")
    ):
        join(master, module, mode=Central(lr=0.1), optimizer=optimizer)


def test_a_step_of_the_script_is_refused(master: LocalMaster) -> None:
    module = net()
    session = join(master, module, mode=Central(lr=0.1))
    for step in range(2):
        backward(module, step)
        session.step()
    backward(module, 2)
    torch.optim.SGD(module.parameters(), 0.1).step()

    with pytest.raises(gradwire.UsageError, match=naming("sgd", "optimizer.step()")):
        session.step()


@pytest.mark.parametrize(
    ("value", "says"),
    [(float("nan"), "nan"), (float("inf"), "inf"), (40.0, "gradient_max"), (-1e30, "below 32")],
)
def test_a_gradient_that_is_none_is_not_sent(master: LocalMaster, value: float, says: str) -> None:
    target = zeros()
    session = join(master, target, mode=Central(lr=0.1))

    with pytest.raises(gradwire.GradwireError, match=naming("array[1]", says)):
        session.push(change(0, value, 0, 0))

    assert (target.tolist(), session.stats.updates_sent) == ([0, 0, 0, 0], 0)


def test_a_model_whose_state_the_master_has_no_room_for() -> None:
    with (
        LocalMaster(MasterConfig(parameters_max=8)) as master,
        pytest.raises(
            gradwire.RefusedError, match=naming("4 parameters", "8", "state of adam", "13")
        ),
    ):
        join(master, zeros(), mode=Central("adam"))
