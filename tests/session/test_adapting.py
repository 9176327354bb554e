"""Sessions that adapt an optimizer, multiply changes and measure delays, with a master on loopback.

Updates of a session come to its peer in order, so that waits are for numbers, never for time.
"""

import logging
import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gradwire import UsageError
from gradwire.metrics import SessionCollector
from gradwire.settings.training import Feedback
from gradwire_protocol import Role
from support.local_master import LocalMaster
from support.optimizers import hooks_of
from support.sessions import (
    HALF,
    RUN_KEY,
    change,
    delivered,
    finish,
    join,
    membership_of,
    pull,
    zeros,
)
from support.waiting import wait_until

FEEDBACKS = pytest.mark.parametrize("feedback", ["local", "shared"])


def linear() -> nn.Linear:
    """Return a model of four parameters that are 0."""
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer, *gradient: float) -> None:
    [parameter] = model.parameters()
    parameter.grad = torch.tensor([gradient])
    optimizer.step()


def momentum_of(optimizer: torch.optim.Optimizer) -> float:
    [group] = optimizer.param_groups
    return float(group["betas"][0] if "betas" in group else group["momentum"])


def weights(model: nn.Module) -> list[float]:
    values: list[float] = next(model.parameters()).detach().flatten().tolist()
    return values


# Multiplying changes.


@FEEDBACKS
def test_without_an_optimizer_the_change_itself_is_multiplied(
    master: LocalMaster, feedback: Feedback
) -> None:
    target, theirs = zeros(), zeros()
    session = join(master, target, feedback=feedback, scale=0.5)
    other = join(master, theirs)
    target += change(1.0, 0, -2.0, 0.5)

    session.step()
    pull(other, 1)

    assert theirs.tolist() == [HALF, 0, -1.0, 0]
    kept = session.state_dict()["residual"].tolist()
    assert kept == [0, 0, 0, 0.25]  # half of what did not reach the threshold
    session.step()
    assert session.state_dict()["residual"].tolist() == kept
    assert session.stats.scale == 0.5


def test_workers_whose_steps_agree_count_less_than_by_the_root(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gradwire.session")
    models = [linear(), linear()]
    optimizers = [torch.optim.Adam(model.parameters(), lr=HALF) for model in models]
    sessions = [
        join(master, model, optimizer=optimizer, momentum="keep")
        for model, optimizer in zip(models, optimizers, strict=True)
    ]
    sessions[0].wait(2)
    assert sessions[0].stats.agreement is None

    def agree() -> bool:
        for model, optimizer, session in zip(models, optimizers, sessions, strict=True):
            step(model, optimizer, 1.0, 1.0, -1.0, 1.0)
            session.step()
        return all((session.stats.agreement or 0.0) > 0.7 for session in sessions)

    wait_until(agree, "both to know that they agree")
    agree()

    for session in sessions:
        assert 0.5 <= session.stats.scale < (2 * 1.6) ** -0.5
    assert [line for line in caplog.messages if "scale='agreement': with it, all workers" in line]
    finish(*sessions)


@FEEDBACKS
def test_what_peers_send_is_not_multiplied(master: LocalMaster, feedback: Feedback) -> None:
    target, theirs = zeros(), zeros()
    session = join(master, target, feedback=feedback, scale="sqrt", workers=4)
    others = [join(master, theirs if i == 0 else None) for i in range(3)]
    session.wait(4)

    target[0] += 1.0
    others[0].push(change(0, 1.0, 0, 0))
    pull(session, 1)  # in the middle of a step of ours
    target[0] += 1.0
    session.step()
    pull(others[0], 1)

    assert target.tolist() == theirs.tolist() == [1.0, 1.0, 0, 0]


@FEEDBACKS
def test_a_change_that_is_pushed_is_multiplied(master: LocalMaster, feedback: Feedback) -> None:
    target = zeros()
    session = join(master, target, feedback=feedback, scale=0.5)
    target[1] += 1.0

    session.push(change(2.0, 0, 0, 1.0))

    assert target.tolist() == [1.0, HALF, 0, HALF]


@FEEDBACKS
def test_a_change_that_cannot_be_sent_is_not_multiplied(
    master: LocalMaster, feedback: Feedback
) -> None:
    target = zeros()
    session = join(master, target, feedback=feedback, scale=0.5)
    target[:] = [1.0, np.inf, 0, 0]
    for attempt in (session.step, partial(session.push, change(1.0, 0, 0, 0))):
        with pytest.raises(UsageError, match=r"array\[1\] is inf"):
            attempt()
        assert target.tolist() == [1.0, np.inf, 0, 0]

    target[1] = 0.0
    session.step()

    assert target.tolist() == [HALF, 0, 0, 0]


def test_what_is_trained_after_the_last_step_is_multiplied_in_the_end(master: LocalMaster) -> None:
    target, theirs = zeros(), zeros()
    session, other = join(master, target, scale=0.5), join(master, theirs)
    target += change(1.0, 0, 0, 0.5)

    finish(session, other)

    assert target.tolist() == theirs.tolist() == [HALF, 0, 0, 0.25]


# With an optimizer.


def test_workers_that_come_or_go_move_the_scale_smoothly(master: LocalMaster) -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    session = join(master, model, optimizer=optimizer)
    scales = []

    def steps(n: int) -> None:
        for _ in range(n):
            step(model, optimizer, -1.0, 0, 0, 0)
            session.step()
            scales.append(session.stats.scale)

    steps(2)
    _other = join(master, linear())
    session.wait(2)
    steps(100)

    assert scales[:2] == [1.0, 1.0]
    assert scales == sorted(scales, reverse=True)
    assert all(later > 0.95 * before for before, later in pairwise(scales))
    assert scales[-1] == pytest.approx(0.5, rel=0.01)


@FEEDBACKS
def test_an_optimizer_is_scaled_by_its_rate(master: LocalMaster, feedback: Feedback) -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    session = join(master, model, optimizer=optimizer, feedback=feedback, scale=0.5)

    step(model, optimizer, -2.0, 0, 0, 0)
    assert weights(model) == [1.0, 0, 0, 0]  # before the session has seen it
    session.step()
    session.push(change(0, 1.0, 0, 0))

    assert weights(model) == [1.0, HALF, 0, 0]
    assert optimizer.param_groups[0]["lr"] == 1.0


@FEEDBACKS
@pytest.mark.parametrize(
    ("make", "lowest", "highest"),
    [
        (lambda p: torch.optim.SGD(p, 0.01, momentum=0.9), 0.8, 0.899),
        (lambda p: torch.optim.Adam(p, 0.01, betas=(0.9, 0.999)), 0.0, 0.88),
    ],
    ids=["SGD", "Adam"],
)
def test_momentum_is_lowered_by_the_delays_and_restored(
    master: LocalMaster,
    feedback: Feedback,
    make: Callable[[Any], torch.optim.Optimizer],
    lowest: float,
    highest: float,
) -> None:
    """Elements below the threshold wait in the residual; the peer's updates come from afar."""
    model = linear()
    optimizer = make(model.parameters())
    own, untouched = momentum_of(optimizer), hooks_of(optimizer)
    session = join(master, model, optimizer=optimizer, feedback=feedback)
    join(master, linear())
    session.wait(2)
    for _ in range(60):
        step(model, optimizer, -1.0, 0, 0, 0)
        session.step()

    stats = session.stats
    assert stats.residual_age_steps > 2.0
    part = {"local": 0.5, "shared": 1.0}[feedback]
    assert stats.delay_steps == pytest.approx(part * stats.residual_age_steps)
    assert stats.momentum is not None
    assert lowest <= stats.momentum < highest
    assert momentum_of(optimizer) == own == 0.9
    session.close()
    assert hooks_of(optimizer) == untouched


@pytest.mark.parametrize("momentum", ["auto", "keep"])
def test_steps_are_smaller_where_updates_of_peers_come_late(
    master: LocalMaster, momentum: str
) -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    session = join(master, model, optimizer=optimizer, momentum=momentum, scale="sum")
    other = join(master, linear())
    session.wait(2)
    for _ in range(9):
        session.push(change(0, 1.0, 0, 0))
    other.push(change(0, 0, 1.0, 0))  # which knows none of these
    pull(session, 1)

    step(model, optimizer, -1.0, 0, 0, 0)

    assert session.stats.staleness == 9.0
    late = 9 / 2 - 1 / 2  # steps; half of all changes come from the peer
    expected = 1 / math.sqrt(1 + late / 2) if momentum == "auto" else 1.0
    assert weights(model)[0] == pytest.approx(expected)
    assert optimizer.param_groups[0]["lr"] == 1.0


# Steps that were none.


def test_with_two_optimizers_each_ones_steps_are_sent_and_scaled(master: LocalMaster) -> None:
    """Where one of two is given, nobody knows of the other's steps."""
    model = nn.ParameterList([torch.zeros(2), torch.zeros(2)])
    one, two = (torch.optim.SGD([parameter], 1.0) for parameter in model)
    session = join(master, model, optimizer=one, scale=0.5)
    for optimizer, parameter in ((one, model[0]), (two, model[1]), (two, model[1])):
        parameter.grad = torch.tensor([-2.0, 0.0])
        optimizer.step()
        session.step()

    assert [parameter.tolist() for parameter in model] == [[1.0, 0.0], [2.0, 0.0]]
    assert (session.stats.updates_sent, session.stats.steps_untrained) == (3, 0)


# What is measured.


def test_staleness_is_known_for_each_rank_and_for_our_own_updates(master: LocalMaster) -> None:
    one, other, third = join(master), join(master), join(master)
    one.push(change(HALF, 0, 0, 0))
    one.push(change(HALF, 0, 0, 0))
    third.push(change(0, 0, HALF, 0))
    delivered(one, 2)
    delivered(third, 1)
    wait_until(lambda: membership_of(other).updates_received == 3, "what the others sent")

    other.push(change(0, HALF, 0, 0))  # computed without any of these
    pull(one, 2)
    delivered(other, 1)
    other.push(change(0, HALF, 0, 0))  # takes note of what became of the first one

    assert one.stats.staleness_by_rank[1] in (2.0, 3.0)  # whether the third one's came before
    assert set(one.stats.staleness_by_rank) == {1, 2}
    [by_rank] = [
        family.samples
        for family in SessionCollector(one).collect()
        if family.name == "gradwire_session_staleness_by_rank"
    ]
    scraped = {int(sample.labels["rank"]): sample.value for sample in by_rank}
    assert scraped == one.stats.staleness_by_rank
    assert one.stats.staleness_distribution.count == 2
    assert other.stats.own_staleness == 3.0
    assert other.stats.own_staleness_distribution.at_most[:4] == (0, 0, 0, 1)


# What cannot work, and what is only said.


def test_momentum_that_nobody_lowers_is_mentioned(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    def mentioned(**options: Any) -> int:
        caplog.clear()
        with caplog.at_level(logging.INFO, "gradwire.session"):
            join(master, zeros(), **options).close()
        return sum("given no optimizer" in message for message in caplog.messages)

    assert mentioned() == 1
    assert mentioned(momentum="keep") == 0


def test_an_observer_adapts_nothing(keyed_master: LocalMaster) -> None:
    join(keyed_master, linear(), key=RUN_KEY.worker_key("one"))
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 1.0, momentum=0.9)
    eyes = RUN_KEY.worker_key("eyes", Role.OBSERVER)
    observer = join(keyed_master, model, optimizer=optimizer, scale=0.5, key=eyes)

    step(model, optimizer, -1.0, 0, 0, 0)
    observer.step()

    assert weights(model) == [1.0, 0, 0, 0]
    assert observer.stats.momentum is None
