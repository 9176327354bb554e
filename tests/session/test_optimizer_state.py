"""A session with an optimizer whose state is shared: what may be asked for, and what it does."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import gradwire
from gradwire import ConnectionLostError, DeadlineError, UsageError
from gradwire.features.optimizer_state import OptimizerStateSharing
from gradwire.optimizer.torch_state import TorchOptimizer
from gradwire.worker.exchanges.optimizer_state import OptimizerStateExchange
from gradwire.worker.membership import Membership
from gradwire.worker.state import WorkerState
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.replicas import Blocks
from support.local_master import LocalMaster
from support.peer import welcome
from support.sessions import join, participant_of
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


class Cut:
    """A network and a `Pull`: the connection is lost, and then the replica is compared."""

    def __init__(self) -> None:
        self.worker = SimpleNamespace(
            optimizer_states=OptimizerStateExchange(cast("WorkerState", None))
        )
        self.membership, self.pulls = Membership(4), 0
        layout, mine = Layout((Tensor("0", (4,)),)), tensors()
        self.membership.on_welcome(welcome(1, layout, {0: 1}))
        self.membership.post = self.post
        self.part = OptimizerStateSharing(
            TorchOptimizer(adam(mine), mine, layout), layout, self.membership,
            cast("Any", self.worker),
        )  # fmt: skip

    def take_over(self) -> None:
        """Have the state of another worker taken over, and wait for nothing."""
        for _ in self.part.take_over(cast("Any", self), monotonic() + 10, monotonic):
            pass

    def post(self, function: Any) -> None:
        if function == self.worker.optimizer_states.ask and not self.membership.closed:
            self.membership.on_blocks(Blocks({}, bytes(8)), missed=True)

    @contextmanager
    def lent(self, *, applies: bool) -> Iterator[None]:
        assert applies
        yield

    def pull(self) -> None:
        self.pulls += 1
        if self.pulls == 1:
            self.membership.on_roster(())  # news, but none for the comparison
            self.membership.updates_received += 1
        elif self.pulls == 2:
            self.membership.comparison = None
            self.part.on_state(None, "nobody has one")


def test_who_is_cut_off_while_it_waits_has_its_replica_compared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cut = Cut()

    cut.take_over()

    assert cut.pulls == 2
    assert naming("without the state", "nobody") in caplog.messages


def test_joining_fails_with_the_connection_and_not_for_want_of_a_state() -> None:
    cut = Cut()
    cut.membership.on_closed(ConnectionLostError("gone"))

    with pytest.raises(ConnectionLostError, match="gone"):
        cut.take_over()


def test_what_cannot_be_copied_is_said_to_who_asks_and_once_in_the_log(
    master: LocalMaster,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = tensors()
    plain = torch.optim.SGD(first, lr=0.1)
    one = sharing(master, first, plain)
    step(one, first, plain)
    [part] = [
        part for part in participant_of(one).features if isinstance(part, OptimizerStateSharing)
    ]
    for _ in range(2):
        part.on_state_wanted()
        step(one, first, plain)

    asked = "another worker asked for the state of our optimizer: SGD keeps no state"
    assert caplog.text.count(asked) == 1


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
