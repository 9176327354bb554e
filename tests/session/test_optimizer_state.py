"""A session with an optimizer whose state is shared: what may be asked for, and what it does."""

import logging
from typing import Any

import numpy as np
import pytest
import torch

import gradwire
from gradwire import DeadlineError, UsageError
from support.local_master import LocalMaster
from support.sessions import join
from support.waiting import wait_until
from support.wording import naming

NOWHERE = "127.0.0.1:9"


def adam(tensors: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(tensors)


def tensors() -> list[torch.Tensor]:
    return [torch.nn.Parameter(torch.zeros(4))]


def sharing(master: LocalMaster, mine: list[torch.Tensor], optimizer: Any) -> gradwire.Session:
    return join(master, mine, optimizer=optimizer, share_optimizer_state=True, threshold=1e-4)


def step(session: gradwire.Session, mine: list[torch.Tensor], optimizer: Any) -> None:
    for tensor in mine:
        tensor.grad = torch.ones_like(tensor)
    optimizer.step()
    session.step()


@pytest.mark.parametrize(
    ("target", "optimizer", "named"),
    [
        (tensors(), None, ("share_optimizer_state", "optimizer")),
        (tensors(), "Adam", ("optimizer", "str", "param_groups")),
        (np.zeros(4, np.float32), adam(tensors()), ("1 parameters", "target")),
        (tensors(), adam(tensors()), ("1 parameters", "target")),
    ],
)
def test_what_cannot_be_shared_is_said_before_anybody_is_dialled(
    target: object, optimizer: object, named: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError, match=naming(*named)):
        gradwire.join(target, optimizer=optimizer, share_optimizer_state=True, master=NOWHERE)


def test_an_optimizer_that_is_warm_keeps_what_it_has(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gradwire.join")
    first, second = tensors(), tensors()
    adams = [adam(first), adam(second)]
    second[0].grad = torch.ones(4)
    adams[1].step()
    one = sharing(master, first, adams[0])
    step(one, first, adams[0])
    sharing(master, second, adams[1])

    assert adams[1].state[second[0]]["step"].item() == 1
    assert master.sample("gradwire_optimizer_state_parts_total") == 0
    assert naming("Adam", "keeps") in caplog.messages


def test_whose_kept_values_are_not_known_begins_cold(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise RuntimeError("only in real life")

    first, second = tensors(), tensors()
    optimizer = adam(first)
    one = sharing(master, first, optimizer)
    step(one, first, optimizer)
    wait_until(lambda: one.stats.updates_delivered > 0, "the master to know of the step")
    sharing(master, second, Failing(second, lr=0.1))

    assert naming("without the state", "Failing") in caplog.messages


def test_a_worker_that_finishes_gives_no_more(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = tensors(), tensors()
    adams = [adam(first), adam(second)]
    one = sharing(master, first, adams[0])
    step(one, first, adams[0])
    join(master, second, threshold=1e-4)
    with pytest.raises(DeadlineError):
        one.finish(timeout=0.2)  # the other one has not finished
    sharing(master, third := tensors(), adam(third))

    assert naming("without the state") in caplog.messages
