"""`log_histograms_every`, against a real master."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradwire
from gradwire import Averaging, Central, Session
from gradwire_codecs.arrays import Float32Array
from gradwire_server.series.series import Series
from support.curves import buckets_in
from support.distributions import Shown, shown_in
from support.local_master import LocalMaster
from support.sessions import HALF, finish, join, zeros
from support.waiting import wait_until


def series_of(master: LocalMaster) -> Series:
    run = master.master.run
    assert run is not None
    return run.series


def newest(master: LocalMaster, layer: str = "array") -> dict[str, Shown]:
    """Return the newest histograms of a tensor, by quantity."""
    found = shown_in(series_of(master), history=False)
    return {quantity: shown[0] for (name, quantity), shown in found.items() if name == layer}


def ratios(master: LocalMaster, layer: str = "array") -> list[tuple[int, float]]:
    buckets = buckets_in(series_of(master)).get((f"gradwire/update_ratio/{layer}", None), [])
    return [(bucket.step, bucket.mean) for bucket in buckets]


def until_taken(master: LocalMaster, count: int) -> None:
    wait_until(lambda: series_of(master).histograms.taken == count, "the histograms to come")


@contextmanager
def without_pace(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Send each message at once."""
    with monkeypatch.context() as patch:
        patch.setattr("gradwire.worker.exchanges.logged_messages.EVERY_SECONDS", 0.0)
        yield


def test_what_a_step_changed_and_left_comes_to_the_master(master: LocalMaster) -> None:
    mine = np.array([1.0, -2.0, 0.0, 4.0], np.float32)
    with join(master, mine, log_histograms_every=3) as session:
        for step in range(1, 6):
            mine += np.array([HALF, 0, 0.125 * step, 0], np.float32)
            session.step()
        until_taken(master, 1)

        found = newest(master)
        assert {each["step"] for each in found.values()} == {3}
        assert {each["elements"] for each in found.values()} == {4}
        assert [sum(each["bins"]) for each in found.values()] == [4, 4, 4]
        ends = {name: (each["lowest"], each["highest"]) for name, each in found.items()}
        # Of the third element 0.125 + 0.25 + 0.375 was trained, and a half sent.
        assert ends == {"parameters": (-2.0, 4.0), "update": (0.0, HALF), "residual": (0.0, 0.25)}
        wait_until(lambda: len(ratios(master)) == 1, "the ratio to come")
        of_update, of_parameters = np.hypot(0.5, 0.375), np.linalg.norm([2.5, -2, 0.75, 4])
        [(step, ratio)] = ratios(master)
        assert step == 3
        assert ratio == pytest.approx(float(of_update / of_parameters))


def test_without_the_setting_there_are_none(master: LocalMaster) -> None:
    with join(master, zeros()) as session:
        session.step()
        session.log(loss=1.0)
        wait_until(lambda: series_of(master).taken == 1, "the scalar to come")
        assert series_of(master).histograms.taken == 0


@pytest.mark.parametrize("feedback", ["local", "shared", 0.5])
def test_a_change_that_is_pushed_is_the_update(master: LocalMaster, feedback: Any) -> None:
    mine = np.ones(4, np.float32)
    with join(master, mine, log_histograms_every=1, feedback=feedback, scale="sum") as session:
        session.push(np.array([0, 0, 0.25, -0.75], np.float32))
        session.pull()
        until_taken(master, 1)

        found = newest(master)
        assert (found["update"]["lowest"], found["update"]["highest"]) == (-0.75, 0.25)


def test_a_change_that_is_refused_is_no_update(master: LocalMaster) -> None:
    with join(master, zeros(), log_histograms_every=1) as session:
        with pytest.raises(gradwire.UsageError):
            session.push(np.zeros(3, np.float32))
        session.push(np.full(4, 0.25, np.float32))
        session.pull()
        session.push(np.full(4, 0.125, np.float32))
        session.pull()
        until_taken(master, 1)
        assert newest(master)["update"]["highest"] == 0.125


def test_where_a_step_has_changed_nothing_the_next_one_counts(
    master: LocalMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = zeros()
    with without_pace(monkeypatch), join(master, mine, log_histograms_every=4) as session:
        for step in range(1, 17):
            if not step % 5:
                mine += HALF
            session.step()
            if step in (5, 10, 15):
                until_taken(master, step // 5)
        steps = [each["step"] for each in shown_in(series_of(master))["array", "update"]]
        # At 8 to 11, 10 has changed something, and at 12 to 15 the last one.
        assert steps == [5, 10, 15]
        assert newest(master)["update"]["lowest"] == HALF


def test_a_run_that_changes_nothing_says_so(master: LocalMaster) -> None:
    with join(master, zeros(), log_histograms_every=2) as session:
        for _ in range(3):
            session.step()
        until_taken(master, 1)
        assert newest(master)["update"]["bins"][0] == 4
        assert newest(master)["update"]["step"] == 3
        assert ratios(master) == []


def test_what_others_send_is_no_update(master: LocalMaster) -> None:
    mine, theirs = zeros(), zeros()
    one = join(master, mine, log_histograms_every=2)
    other = join(master, theirs)
    theirs += 8.0
    other.step()

    def has_come() -> bool:
        mine[0] += 0.125
        one.step()
        return bool(mine[1] > 7)

    wait_until(has_come, "the other one's change to come")
    until_taken(master, 1)
    found = newest(master)["update"]
    assert (found["lowest"], found["highest"]) == (0.0, 0.125)
    finish(one, other)


def test_tensors_of_a_module_are_named_and_of_half_precision_too(master: LocalMaster) -> None:
    torch.manual_seed(0)
    first = nn.Linear(3, 5)
    module = nn.Sequential(first, nn.Linear(5, 2).to(torch.bfloat16))
    optimizer = torch.optim.SGD(first.parameters(), 0.5)
    with join(master, module, optimizer=optimizer, log_histograms_every=1) as session:
        first(torch.ones(3)).sum().backward()
        before = first.weight.detach().clone()
        optimizer.step()
        changed = (first.weight.detach() - before).numpy()
        session.step()
        until_taken(master, 1)

        names = [name for name, quantity in shown_in(series_of(master)) if quantity == "update"]
        assert names == ["0.weight", "0.bias", "1.weight", "1.bias"]
        update = newest(master, "0.weight")["update"]
        assert update["mean"] == pytest.approx(float(changed.mean()))
        assert newest(master, "1.bias")["update"]["highest"] == 0.0
        assert newest(master, "1.weight")["parameters"]["elements"] == 10


def trained(master: LocalMaster, **options: Any) -> tuple[Session, nn.Linear]:
    module = nn.Linear(3, 2)
    return join(master, module, log_histograms_every=1, **options), module


@pytest.mark.parametrize("mode", [Averaging(every=2), "synchronous", "diloco(every=2)"])
def test_in_a_mode_with_rounds_the_update_is_this_worker_s(master: LocalMaster, mode: Any) -> None:
    session, module = trained(master, mode=mode)
    with session:
        with torch.no_grad():
            module.bias.add_(torch.tensor([0.25, -0.5]))
        session.step()
        until_taken(master, 1)
        found = newest(master, "bias")["update"]
        assert (found["lowest"], found["highest"]) == (-0.5, 0.25)


def test_the_update_of_a_master_s_optimizer_is_its_step(master: LocalMaster) -> None:
    session, module = trained(master, mode=Central(lr=0.5, bits=0))
    with session:
        before = module.bias.detach().clone()
        (module(torch.ones(3)).sum()).backward()
        session.step()
        assert (before - module.bias.detach()).tolist() == [0.5, 0.5]
        until_taken(master, 1)
        found = newest(master, "bias")["update"]
        assert (found["lowest"], found["highest"], found["step"]) == (-0.5, -0.5, 1)


def test_of_several_masters_the_first_has_histograms_of_all(master: LocalMaster) -> None:
    mine = np.zeros(1_000, np.float32)
    with LocalMaster() as other, join([master, other], mine, log_histograms_every=1) as session:
        mine[:] = np.arange(1_000, dtype=np.float32) / 1_000
        session.step()
        until_taken(master, 1)

        found = newest(master)
        assert found["update"]["elements"] == sum(found["update"]["bins"]) == 1_000
        assert found["update"]["highest"] == pytest.approx(0.999)
        assert 0 < found["residual"]["highest"] < HALF
        assert sum(found["residual"]["bins"]) == 1_000
        assert series_of(other).histograms.taken == 0


def test_an_evaluation_on_paused_parameters_is_no_update(master: LocalMaster) -> None:
    mine = zeros()
    with join(master, mine, log_histograms_every=2) as session:
        mine += HALF
        session.step()
        with session.paused():
            mine += 16.0
            session.step()
            mine += 16.0
            session.step()
        for _ in range(2):
            mine += 0.25
            session.step()
        until_taken(master, 1)
        assert newest(master)["update"]["highest"] == 0.25


def test_a_worker_that_finishes_has_sent_the_last_ones(master: LocalMaster) -> None:
    mine: Float32Array = zeros()
    other, session = join(master, zeros()), join(master, mine, log_histograms_every=1)
    series = series_of(master)
    for _ in range(2):
        mine += HALF
        session.step()
    finish(session, other)
    assert series.histograms.taken == 2


def test_there_is_no_copy_of_the_parameters_between_two_times(master: LocalMaster) -> None:
    session = join(master, zeros(), log_histograms_every=5)
    kept: Callable[[], Any] = lambda: session._participant.features[-1]._before  # type: ignore[attr-defined]  # noqa: E731

    held = []
    for _ in range(10):
        held.append(kept() is not None)
        session.step()

    assert held[:5] == [False, False, False, False, True]
    session.close()
