"""A worker that joins a run under way begins with the state of another one's Adam, bit by bit."""

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest
import torch

import gradwire
from gradwire import Session
from gradwire_protocol.messages.states.records import STATE_PART_BYTES
from support.local_master import LocalMaster
from support.waiting import PROCESS

WIDTH = 192
"""So that the state has several parts."""


class Trainer:
    """A model, its Adam, and what that has kept after each step."""

    def __init__(self, address: str, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1)
        )
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.address = address
        self.options = options
        self.kept: dict[int, dict[Any, Any]] = {}
        self.session: Session

    def join(self) -> "Trainer":
        self.session = gradwire.join(
            self.model,
            optimizer=self.optimizer,
            share_optimizer_state=True,
            master=self.address,
            **{"threshold": 1e-4, "join_timeout_seconds": PROCESS, **self.options},
        )
        return self

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(4, WIDTH)).square().sum().backward()
        self.optimizer.step()
        self.kept[len(self.kept) + 1] = copy.deepcopy(self.optimizer.state_dict()["state"])
        self.session.step()

    @property
    def state(self) -> dict[Any, Any]:
        return dict(self.optimizer.state_dict()["state"])


@contextmanager
def training(*trainers: Trainer) -> Iterator[None]:
    """Let workers make steps inside the block, each on a thread of its own."""
    over = Event()

    def steps(trainer: Trainer) -> None:
        while not over.is_set():
            trainer.step()

    with ThreadPoolExecutor(len(trainers)) as pool:
        running = [pool.submit(steps, trainer) for trainer in trainers]
        try:
            yield
        finally:
            over.set()
        for each in running:
            each.result()


def equal(state: dict[Any, Any], other: dict[Any, Any]) -> bool:
    """Return whether two states of optimizers are the same, bit by bit."""
    return state.keys() == other.keys() and all(
        state[i].keys() == other[i].keys()
        and all(torch.equal(state[i][name], other[i][name]) for name in state[i])
        for i in state
    )


def check_third(address: str, **options: Any) -> Trainer:
    """Let two workers train, and a third join; return it."""
    first, second = (Trainer(address, **options).join() for _ in range(2))
    for trainer in (first, second):
        trainer.step()  # so that whichever is asked has a state
    with training(first, second):
        third = Trainer(address, **options).join()

    steps = int(third.state[0]["step"].item())
    assert steps >= 1
    assert any(equal(third.state, each.kept.get(steps, {})) for each in (first, second))
    assert third.state[0]["exp_avg"].abs().max() > 0
    third.step()
    assert third.state[0]["step"].item() == steps + 1
    for trainer in (first, second, third):
        trainer.session.close()
    return third


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_a_third_worker_begins_with_the_state_of_one_of_two(transport: str) -> None:
    with LocalMaster() as master:
        third = check_third(master.address, transport=transport)

        sent = sum(8 * p.numel() + 8 for p in third.model.parameters())
        parts = 1 + -(-sent // STATE_PART_BYTES)
        assert parts > 2
        assert master.sample("gradwire_optimizer_state_parts_total") == parts


def test_another_optimizer_begins_cold_and_says_what_differs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with LocalMaster() as master:
        first = Trainer(master.address).join()
        first.step()
        second = Trainer(master.address)
        second.optimizer = torch.optim.SGD(second.model.parameters(), lr=0.1, momentum=0.9)
        with training(first):
            second.join()
        assert second.optimizer.state == {}
        first.session.close()
        second.session.close()

    assert "it is of Adam; ours is SGD" in caplog.text
