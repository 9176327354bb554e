"""The setting `log_histograms_every`, against a real master."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradwire
from gradwire import Averaging, Central, Session
from gradwire.features.layer_histograms import LayerHistograms as Feature
from gradwire_protocol.messages.logged.histograms import ratio_series
from gradwire_server.series.histograms import LayerHistograms
from support.curves import Bucket, buckets_of, curves_in
from support.histograms import shown_in
from support.local_master import LocalMaster
from support.sessions import HALF, finish, join, participant_of, zeros
from support.waiting import wait_until


def kept_by(master: LocalMaster) -> LayerHistograms:
    run = master.master.run
    assert run is not None
    return run.histograms


def newest(master: LocalMaster, layer: str = "array") -> dict[str, dict[str, Any]]:
    """Return the histograms of a tensor, by quantity."""
    found = shown_in(kept_by(master))
    return {quantity: shown for (name, quantity), shown in found.items() if name == layer}


def ends_of(master: LocalMaster, quantity: str, layer: str = "array") -> tuple[float, float]:
    found = newest(master, layer)[quantity]
    return found["lowest"], found["highest"]


def until_taken(master: LocalMaster, count: int) -> None:
    wait_until(lambda: kept_by(master).taken == count, "the histograms to come")


def test_what_a_step_changed_comes_to_the_master_with_its_ratio(master: LocalMaster) -> None:
    mine = np.array([1.0, -2.0, 0.0, 4.0], np.float32)
    with join(master, mine, log_histograms_every=3) as session:
        for step in range(1, 6):
            mine += np.array([HALF, 0, 0.125 * step, 0], np.float32)
            session.step()
        until_taken(master, 1)
        assert kept_by(master).step == 3
        found = newest(master)
        assert [(each["elements"], sum(each["bins"])) for each in found.values()] == [(4, 4)] * 2
        assert (ends_of(master, "parameters"), ends_of(master, "update")) == ((-2, 4), (0, HALF))

        name = ratio_series("array")

        def ratios() -> list[Bucket]:
            curve = curves_in(master.series).get((name, 0))
            return [] if curve is None else buckets_of(curve)

        # Not by its curve: the master makes room for one in a thread of its own.
        wait_until(lambda: master.series.taken > 0, "the ratio to come")
        [ratio] = ratios()
        of_update, of_parameters = np.hypot(HALF, 0.375), np.linalg.norm([2.5, -2, 0.75, 4])
        assert ratio.step == 3
        assert ratio.mean == pytest.approx(float(of_update / of_parameters))
        assert session.stats.histograms_dropped == 0


def test_without_the_setting_there_are_none(master: LocalMaster) -> None:
    with join(master, zeros()) as session:
        session.step()
        session.log(loss=1.0)
        wait_until(lambda: master.series.taken == 1, "the scalar to come")
        assert (kept_by(master).taken, kept_by(master).rank) == (0, None)
        assert not any(isinstance(f, Feature) for f in participant_of(session).features)


@pytest.mark.parametrize("scale", ["sum", 0.5])
@pytest.mark.parametrize("feedback", ["local", "shared"])
def test_a_change_that_is_pushed_is_the_update(
    master: LocalMaster, feedback: str, scale: Any
) -> None:
    mine = np.ones(4, np.float32)
    with join(master, mine, log_histograms_every=1, feedback=feedback, scale=scale) as session:
        session.push(np.array([0, 0, 0.25, -0.75], np.float32))
        session.pull()
        until_taken(master, 1)
        assert ends_of(master, "update") == (-0.75, 0.25)


def test_a_change_that_is_refused_is_no_update(master: LocalMaster) -> None:
    with join(master, zeros(), log_histograms_every=1) as session:
        with pytest.raises(gradwire.UsageError):
            session.push(np.zeros(3, np.float32))
        for size in (0.25, 0.125):  # after the first one, there is something to compare with
            session.push(np.full(4, size, np.float32))
            session.pull()
        until_taken(master, 1)
        assert ends_of(master, "update") == (0.125, 0.125)


def test_where_a_step_has_changed_nothing_the_next_one_counts(master: LocalMaster) -> None:
    mine = zeros()
    with join(master, mine, log_histograms_every=4) as session:
        for step in range(1, 8):
            mine += HALF if step == 6 else 0.0
            session.step()
        until_taken(master, 1)
        assert (kept_by(master).step, ends_of(master, "update")) == (6, (HALF, HALF))


def test_what_others_send_is_no_update(master: LocalMaster) -> None:
    mine, theirs = zeros(), zeros()
    one, other = join(master, mine, log_histograms_every=2), join(master, theirs)
    theirs += 8.0
    other.step()

    def is_seen() -> bool:
        mine[0] -= 0.125
        one.step()
        return bool(newest(master)) and ends_of(master, "parameters")[1] > 7

    wait_until(is_seen, "histograms after the other one's change")
    assert ends_of(master, "update") == (-0.125, 0.0)
    finish(one, other)


def test_tensors_of_a_module_are_named_and_of_half_precision_too(master: LocalMaster) -> None:
    first, empty = nn.Linear(3, 5), nn.Module()
    hostile = '<img src=x onerror="alert(1)">'
    empty.register_parameter(hostile, nn.Parameter(torch.empty(0, 4)))
    module = nn.Sequential(first, nn.Linear(5, 2).to(torch.bfloat16), empty)
    module.register_parameter(hostile, nn.Parameter(torch.ones(1)))
    optimizer = torch.optim.SGD(first.parameters(), 0.5)
    with join(master, module, optimizer=optimizer, log_histograms_every=1) as session:
        first(torch.ones(3)).sum().backward()
        before = first.weight.detach().clone()
        optimizer.step()
        changed = (first.weight.detach() - before).numpy()
        session.step()
        until_taken(master, 1)

        names = [name for name, quantity in shown_in(kept_by(master)) if quantity == "update"]
        assert names == [hostile, "0.weight", "0.bias", "1.weight", "1.bias"]
        assert newest(master, "0.weight")["update"]["mean"] == pytest.approx(float(changed.mean()))
        assert ends_of(master, "update", "1.bias") == (0.0, 0.0)
        assert newest(master, "1.weight")["parameters"]["elements"] == 10


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_step_that_is_not_finite_fails_as_ever_and_is_seen(
    master: LocalMaster, bad: float
) -> None:
    mine = np.ones(4, np.float32)
    with join(master, mine, log_histograms_every=1) as session:
        mine[1] = bad
        with pytest.raises(gradwire.DivergedError):
            session.step()
        until_taken(master, 1)
        found = newest(master)["parameters"]
        assert (found["nan"], found["infinite"]) == ((1, 0) if np.isnan(bad) else (0, 1))
        assert (found["lowest"], found["highest"], sum(found["bins"])) == (1.0, 1.0, 3)
        mine[1] = 1.0
        session.step()


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
        assert ends_of(master, "update", "bias") == pytest.approx((-0.5, 0.25))


def test_the_update_of_a_master_s_optimizer_is_its_step(master: LocalMaster) -> None:
    session, module = trained(master, mode=Central(lr=0.5, bits=0))
    with session:
        module(torch.ones(3)).sum().backward()
        session.step()
        until_taken(master, 1)
        assert (ends_of(master, "update", "bias"), kept_by(master).step) == ((-0.5, -0.5), 1)


def test_an_evaluation_on_paused_parameters_is_no_update(master: LocalMaster) -> None:
    mine = zeros()
    with join(master, mine, log_histograms_every=2) as session:
        mine += HALF
        session.step()
        with session.paused():
            for _ in range(2):
                mine += 16.0
                session.step()
        for _ in range(2):
            mine += 0.25
            session.step()
        until_taken(master, 1)
        assert ends_of(master, "update") == (0.25, 0.25)


def test_a_worker_that_ends_has_sent_the_last_ones(master: LocalMaster) -> None:
    mine = zeros()
    other, session = join(master, zeros()), join(master, mine, log_histograms_every=1)
    kept = kept_by(master)
    for _ in range(2):
        mine += HALF
        session.step()
    finish(session, other)
    assert (kept.step, kept.taken + kept.dropped) == (2, 2)


def test_there_is_no_copy_of_the_parameters_between_two_times(master: LocalMaster) -> None:
    mine = zeros()
    session = join(master, mine, log_histograms_every=5)
    feature = participant_of(session).features[-1]
    assert isinstance(feature, Feature)

    held = []
    for _ in range(10):
        held.append(feature._before is not None)
        mine += HALF
        session.step()

    assert held == 2 * [False, False, False, False, True]
    session.close()
