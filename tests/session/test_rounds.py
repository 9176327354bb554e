"""Modes with rounds, in sessions against a real master: means, bits, who comes and who goes."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import gradwire
from gradwire import Averaging, DiLoCo, Mode, Session, Sharing, Synchronous
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.replica.round_sum import RANGE_ELEMENTS_MIN
from gradwire_protocol import Role
from gradwire_server.config import MasterConfig
from support.local_master import LocalMaster
from support.sessions import (
    RUN_KEY,
    at_once,
    change,
    finish,
    join,
    participant_of,
    values_of,
    zeros,
)
from support.waiting import SOON, wait_until
from support.wording import naming

QUANTUM = 2.0**-24
EXACT: dict[str, Any] = {"threshold": QUANTUM, "shake_up_steps": 0}
STEPS = 30
WORKERS = 3
BATCH = 8
FEATURES = 6


def step_all(*sessions: Session) -> None:
    at_once(*(session.step for session in sessions))


def two(master: LocalMaster, mode: Any, **options: Any) -> list[tuple[Session, Float32Array]]:
    """Return two sessions in a mode, with their parameters."""
    targets = zeros(), zeros()
    sessions = [join(master, target, mode=mode, **options) for target in targets]
    wait_until(lambda: len(sessions[0].workers) == len(sessions), "both to take part")
    return list(zip(sessions, targets, strict=True))


# Equal to one process with all batches.


def batch_of(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1_000 * rank + step)
    inputs = torch.randn(BATCH, FEATURES, generator=generator)
    return inputs, torch.tanh(2 * inputs[:, :2])


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 2))


def train(module: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Make one step of plain SGD with all these batches."""
    inputs, targets = (torch.cat(each) for each in zip(*batches, strict=True))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.zero_grad()
    ((module(inputs) - targets) ** 2).mean().backward()
    optimizer.step()


@pytest.mark.parametrize(
    "mode", [Averaging(every=1, bits=0, waits=True), Synchronous(bits=0)], ids=str
)
def test_with_plain_sgd_it_is_one_process_with_all_batches(master: LocalMaster, mode: Any) -> None:
    alone, expected = net(), []
    for step in range(STEPS):
        train(alone, [batch_of(rank, step) for rank in range(WORKERS)])
        expected.append(values_of(alone))
    found: dict[int, list[torch.Tensor]] = {rank: [] for rank in range(WORKERS)}
    ready = threading.Barrier(WORKERS)

    def work(rank: int) -> None:
        module = net()
        session = join(master, module, mode=mode, rank=rank, **EXACT)
        ready.wait(SOON)
        session.wait(WORKERS)
        for step in range(STEPS):
            train(module, [batch_of(session.rank, step)])
            session.step()
            found[session.rank].append(values_of(module))
        session.finish()

    join(master, net(), mode=mode, rank=WORKERS).leave()  # else two could found the run
    at_once(*(lambda rank=rank: work(rank) for rank in range(WORKERS)))

    for step, values in enumerate(expected, 1):
        mine, *others = (each[step - 1] for each in found.values())
        assert (mine - values).abs().max() <= (step + 1) * QUANTUM
        assert all(torch.equal(mine, other) for other in others)


RATE, MOMENTUM, EVERY, ROUNDS = 0.7, 0.9, 3, 8


def outer_reference() -> list[torch.Tensor]:
    """Return the parameters after each round of algorithm 1 of DiLoCo, in float64."""
    outer = net().double()
    shared = values_of(outer).clone()
    velocity = torch.zeros_like(shared)
    found = []
    for done in range(ROUNDS):
        changes = []
        for rank in range(WORKERS):
            nn.utils.vector_to_parameters(shared.clone(), outer.parameters())
            for step in range(EVERY * done, EVERY * (done + 1)):
                inputs, targets = batch_of(rank, step)
                train(outer, [(inputs.double(), targets.double())])
            changes.append(values_of(outer) - shared)
        mean = torch.stack(changes).mean(0)
        velocity = MOMENTUM * velocity + mean
        shared = shared + RATE * (mean + MOMENTUM * velocity)
        found.append(shared)
    return found


def test_diloco_is_the_algorithm_of_the_paper(master: LocalMaster) -> None:
    expected = outer_reference()
    mode = DiLoCo(every=EVERY, outer_lr=RATE, outer_momentum=MOMENTUM, bits=0, waits=True)
    found: dict[int, list[torch.Tensor]] = {rank: [] for rank in range(WORKERS)}
    at_the_end: list[torch.Tensor] = []

    def work(rank: int) -> None:
        module = net()
        session = join(master, module, mode=mode, rank=rank, **EXACT)
        session.wait(WORKERS)
        for step in range(EVERY * ROUNDS):
            train(module, [batch_of(session.rank, step)])
            session.step()
            if (step + 1) % EVERY == 0:
                found[session.rank].append(values_of(module))
        session.finish()
        at_the_end.append(values_of(module))

    first = join(master, net(), mode=mode, rank=WORKERS)
    first.leave()  # else two could found the run
    at_once(*(lambda rank=rank: work(rank) for rank in range(WORKERS)))

    for done, values in enumerate(expected, 1):
        mine, *others = (each[done - 1] for each in found.values())
        assert (mine - values).abs().max() <= 30 * done * QUANTUM
        assert all(torch.equal(mine, other) for other in others)
    assert (at_the_end[0] - expected[-1]).abs().max() <= 30 * ROUNDS * QUANTUM
    assert all(torch.equal(at_the_end[0], other) for other in at_the_end)


# Steps of a round.


@pytest.mark.parametrize(
    "mode", [Averaging(every=2, bits=0, waits=True), DiLoCo(every=2, bits=0, waits=True)], ids=str
)
def test_sparse_rounds_end_with_what_all_have_and_not_with_the_residual(
    master: LocalMaster, mode: Mode
) -> None:
    """A change below the threshold waits in the residual; the last steps, above it, count."""
    (one, mine), (other, theirs) = two(master, mode, threshold=0.5)
    for _ in range(2):
        mine += change(0.5, 0.125, 0, 0)
        theirs += change(0.5, 0, 0.125, 0)
        step_all(one, other)
    had = mine.tolist()
    assert mine[0] > 0
    mine += change(0, 0, 0, 1)
    one.step()

    finish(one, other)

    assert mine.tolist() == theirs.tolist()
    assert mine[:3] == pytest.approx(had[:3], abs=1e-5)
    assert mine[1] == mine[2] == 0
    assert mine[3] > 0


# Workers that come and go.


def test_an_observer_sees_means(keyed_master: LocalMaster) -> None:
    master = keyed_master
    target = zeros()
    worker = join(master, target, mode=Synchronous(bits=0), key=RUN_KEY, **EXACT)
    seen = zeros()
    observer = join(master, seen, key=RUN_KEY.worker_key("eyes", Role.OBSERVER))
    target += change(0, 1, 0, 0)
    worker.step()

    def is_there() -> bool:
        observer.step()
        return bool(seen[1] == 1)

    wait_until(is_there, "the observer to see the mean")
    worker.finish()


def test_workers_with_items_do_not_wait_for_who_waits_for_an_item(master: LocalMaster) -> None:
    (one, mine), (other, _) = two(master, Synchronous(bits=0), **EXACT)
    taken: list[int] = []

    def train_on(session: Session) -> None:
        for item in session.items("train", 1):
            for _ in range(3):
                session._participant.shared.parameters.vector[:] += change(1, 0, 0, 0)
                session.step()
            taken.append(item.index)

    at_once(lambda: train_on(one), lambda: train_on(other))

    assert taken == [0]
    finish(one, other)
    assert mine[0] >= 1.5


def test_tensors_that_change_by_far_more_than_others_are_no_outliers(master: LocalMaster) -> None:
    targets = [[torch.zeros(RANGE_ELEMENTS_MIN), torch.zeros(RANGE_ELEMENTS_MIN)] for _ in "ab"]
    sessions = [join(master, tensors, mode=Synchronous(bits=4)) for tensors in targets]
    wait_until(lambda: len(sessions[0].workers) == len(sessions), "both to take part")
    for _ in range(8):
        for large, small in targets:
            large += 1.0
            small += 1e-5
        step_all(*sessions)

    assert master.sample("gradwire_quarantined_workers") == 0
    assert master.sample("gradwire_rounds_closed_total") == 8
    finish(*sessions)


# Which mode.


def test_another_mode_is_refused_with_both(master: LocalMaster) -> None:
    first = join(master, mode=Averaging(every=3))

    with pytest.raises(gradwire.RefusedError, match=naming("synchronous", "averaging(every=3)")):
        join(master, mode=Synchronous())
    with pytest.raises(gradwire.RefusedError, match=naming("sharing", "averaging(every=3)")):
        join(master, mode=Sharing())
    first.finish()


@pytest.fixture
def insisting() -> Iterator[LocalMaster]:
    with LocalMaster(MasterConfig(mode="synchronous(bits=4)")) as running:
        yield running


def test_a_master_may_insist(insisting: LocalMaster) -> None:
    with pytest.raises(gradwire.RefusedError, match=naming("averaging", "synchronous(bits=4)")):
        join(insisting, mode=Averaging())

    session = join(insisting)
    assert participant_of(session).welcome.mode == Synchronous(bits=4)
    session.finish()


@pytest.mark.parametrize(
    "settings",
    [
        {"scale": "mean"},
        {"staleness_bound": 3},
        {"finish_residual": "drop"},
        {"warm_up_workers": 1},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_a_setting_without_a_meaning_is_refused(
    master: LocalMaster, settings: dict[str, Any]
) -> None:
    [name] = settings
    with pytest.raises(gradwire.UsageError, match=naming(name, settings[name], "averaging")):
        join(master, mode=Averaging(), **settings)


def test_what_is_no_mode_is_refused_before_anybody_is_dialled() -> None:
    with pytest.raises(gradwire.UsageError, match=naming("gossip", "averaging")):
        gradwire.join(zeros(), master="127.0.0.1:1", mode="gossip")
    with pytest.raises(gradwire.UsageError, match=naming("every", 0)):
        Averaging(every=0)
