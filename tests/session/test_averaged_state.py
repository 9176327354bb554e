"""Averaging with the state of optimizers, in sessions against a real master."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gradwire import Averaging, DivergedError, RefusedError, UsageError
from gradwire_server.config import MasterConfig
from support.local_master import LocalMaster
from support.sessions import at_once, join, participant_of
from support.tiers import variants
from support.wording import naming

EVERY = 2
MODE = Averaging(every=EVERY, optimizer_state=True, waits=True)
ROUNDS = 6
SHAPE = (3, 5)

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adadelta": torch.optim.Adadelta,
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw": torch.optim.AdamW,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
}
"""Every optimizer of torch that keeps a value for each element."""


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(SHAPE)), nn.Parameter(torch.zeros(4))]


class Trainer:
    """A worker, whose gradients have a size of their own for each element."""

    def __init__(
        self, master: LocalMaster, name: str, seed: int, *, mode: Any = MODE, size: float = 1.0
    ) -> None:
        self.parameters = parameters()
        self.optimizer = OPTIMIZERS[name](self.parameters)
        self.random = np.random.default_rng(seed)
        scales = np.random.default_rng(0)  # as of one model: those of all workers are alike
        self.scales = [size * 10 ** scales.uniform(-4, 0, tuple(p.shape)) for p in self.parameters]
        self.session = join(master, self.parameters, optimizer=self.optimizer, mode=mode)

    def train(self) -> None:
        for parameter, scale in zip(self.parameters, self.scales, strict=True):
            gradient = scale * self.random.normal(1, 0.3, scale.shape)
            parameter.grad = torch.from_numpy(gradient.astype(np.float32))
        self.optimizer.step()

    def step(self) -> None:
        self.train()
        self.session.step()

    def states(self) -> list[dict[str, Any]]:
        return [
            {key: torch.as_tensor(value).clone() for key, value in self.optimizer.state[p].items()}
            for p in self.parameters
        ]


def play(workers: list[Trainer], steps: int) -> None:
    for _ in range(steps):
        at_once(*(worker.step for worker in workers))


def assert_equal(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    for mine, others in zip(ours, theirs, strict=True):
        assert mine.keys() == others.keys()
        for key in mine:
            torch.testing.assert_close(mine[key], others[key], rtol=0, atol=0, msg=key)


@pytest.mark.parametrize("name", variants("adam", *(name for name in OPTIMIZERS if name != "adam")))
def test_after_a_round_all_optimizers_have_the_same_state(master: LocalMaster, name: str) -> None:
    workers = [Trainer(master, name, seed) for seed in (1, 2)]
    play(workers, EVERY * ROUNDS)
    first, second = (worker.states() for worker in workers)
    assert_equal(first, second)
    if "step" in first[0]:
        assert [state["step"].item() for state in first] == [EVERY * ROUNDS] * len(first)
    at_once(*(worker.session.finish for worker in workers))
    assert_equal(*(worker.states() for worker in workers))


def noting_states(worker: Trainer) -> list[Any]:
    """Return a list that is extended with the state that each contribution is made from."""
    contributing = participant_of(worker.session).contributing
    assert contributing is not None
    averaged = contributing._averaged
    assert averaged is not None
    seen: list[Any] = []
    read = averaged.read

    def noted() -> None:
        seen.append(worker.states())
        read()

    averaged.read = noted  # type: ignore[method-assign]
    return seen


def coordinates(states: list[dict[str, Any]], name: str) -> torch.Tensor:
    """Return what is averaged: squares by their logarithm, means as parts of a root."""
    found = []
    for state in states:
        value = state[name].double()
        if name in ("exp_avg_sq", "sum"):
            value = value.log2() + 126
        if name == "exp_avg":
            value /= state["exp_avg_sq"].double().sqrt()
        found.append(value.flatten())
    return torch.cat(found)


@pytest.mark.parametrize(
    ("name", "kept", "resolution"),
    variants(
        ("adam", "exp_avg_sq", 2.0**-16),
        ("adam", "exp_avg", 2.0**-16),
        ("momentum", "momentum_buffer", 2.0**-20),
        ("adagrad", "sum", 2.0**-16),
    ),
)
def test_it_is_the_mean_and_what_bits_leave_out_follows(
    master: LocalMaster, name: str, kept: str, resolution: float
) -> None:
    """The gradients of one worker are 16 times those of the other."""
    workers = [Trainer(master, name, seed, size=size) for seed, size in ((1, 1.0), (2, 16.0))]
    seen = [noting_states(worker) for worker in workers]
    now = torch.zeros(sum(p.numel() for p in workers[0].parameters))
    units = [0.0]
    for _ in range(ROUNDS):
        play(workers, EVERY)
        before, own = now, [coordinates(each[-1], kept) for each in seen]
        now = coordinates(workers[0].states(), kept)
        largest = max((each - before).abs().max().item() for each in own)
        units.append((largest + 2 * units[-1]) / 127)
        off = (now - sum(own) / len(own)).abs().max().item()
        # Half a unit of this round and of the last one: of what workers left, and of what the
        # master did.
        assert off <= 1.01 * (units[-1] + units[-2]) + 2 * resolution
    at_once(*(worker.session.finish for worker in workers))


def test_a_worker_that_joins_later_begins_with_the_state(master: LocalMaster) -> None:
    first = Trainer(master, "adam", 1)
    play([first], EVERY * ROUNDS)
    later = Trainer(master, "adam", 2)
    assert_equal(first.states(), later.states())
    play([first, later], EVERY)
    assert_equal(first.states(), later.states())
    at_once(first.session.finish, later.session.finish)


def test_a_run_begins_with_the_state_of_its_first_worker(master: LocalMaster) -> None:
    mine = parameters()
    optimizer = OPTIMIZERS["nadam"](mine)
    for parameter in mine:
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    first = join(master, mine, optimizer=optimizer, mode=MODE)
    others = parameters()
    its = OPTIMIZERS["nadam"](others)
    with join(master, others, optimizer=its) as second:
        for parameter, other in zip(mine, others, strict=True):
            for key, value in optimizer.state[parameter].items():
                torch.testing.assert_close(its.state[other][key], value, rtol=1e-4, atol=1e-7)
        at_once(first.finish, second.finish)


# What cannot be averaged.


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (lambda p: None, ("optimizer_state=True", "join(model, optimizer=optimizer")),
        (lambda p: torch.optim.SGD(p), ("optimizer_state", "SGD keeps no state")),
        (lambda p: torch.optim.Adafactor(p), ("Adafactor", "row_var", "each element")),
        (lambda p: torch.optim.LBFGS(p), ("optimizer_state", "LBFGS")),
    ],
    ids=["none", "nothing", "factors", "closure"],
)
def test_an_optimizer_without_such_a_state_is_refused(
    master: LocalMaster, optimizer: Callable[[Any], Any], named: tuple[str, ...]
) -> None:
    mine = parameters()
    with pytest.raises(UsageError) as caught:
        join(master, mine, optimizer=optimizer(mine), mode=MODE)
    assert str(caught.value) == naming(*named)


def test_another_optimizer_is_refused_with_both(master: LocalMaster) -> None:
    first = Trainer(master, "adamw", 1)
    with pytest.raises(RefusedError) as refused:
        Trainer(master, "adagrad", 2)
    with pytest.raises(UsageError) as caught:  # it did not say a mode
        Trainer(master, "adagrad", 2, mode=None)
    with pytest.raises(UsageError, match="averages the state of its optimizers"):
        join(master, parameters())
    for error in (str(refused.value), str(caught.value)):
        assert error == naming("AdamW[exp_avg exp_avg_sq; step]", "Adagrad[sum; step]")
    first.session.finish()


def test_a_master_that_insists_has_its_first_worker_say_what_is_kept() -> None:
    config = MasterConfig(mode="averaging(every=2, optimizer_state=True, waits=True)")
    with LocalMaster(config) as master:
        with pytest.raises(RefusedError, match="what its optimizer keeps"):
            Trainer(master, "adam", 1, mode=None)
        first = Trainer(master, "adam", 1)
        second = Trainer(master, "adam", 1, mode=None)
        assert str(participant_of(second.session).welcome.mode) == (
            "averaging(every=2, optimizer_state=Adam[exp_avg exp_avg_sq max_exp_avg_sq; step],"
            " waits=True)"
        )
        at_once(first.session.finish, second.session.finish)


def test_a_state_that_is_no_number_is_named(master: LocalMaster) -> None:
    worker = Trainer(master, "adam", 1)
    play([worker], EVERY - 1)
    worker.train()
    worker.optimizer.state[worker.parameters[1]]["exp_avg"][2] = torch.nan
    with pytest.raises(DivergedError) as caught:
        worker.session.step()
    assert str(caught.value) == naming("__optimizer__.exp_avg[17]", "nan", "nothing was sent")
