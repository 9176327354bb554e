"""`HostedSession`: begins, pauses, ends and resumes a session at somebody else's events."""

import pytest
import torch
from torch import nn

from gradwire import DeadlineError, Session, UsageError
from gradwire.integrations.hosted_session import HostedSession
from support.local_master import LocalMaster
from support.sessions import HALF, delivered, finish, join
from support.waiting import wait_until
from support.wording import naming

RESIDUAL = torch.tensor([0.25, 0.0, -0.125, 0.0])
"""Below the threshold: it stays with the worker that has it."""


class Model(nn.Module):
    def __init__(self, *values: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(values))

    def add(self, *values: float) -> None:
        with torch.no_grad():
            self.weight.add_(torch.tensor(values))


def hosted(master: LocalMaster, **options: object) -> HostedSession:
    settings = {"master": master.address, "threshold": HALF, **options}
    return HostedSession({"finish_residual": "send", **settings})


def begun(host: HostedSession, model: Model) -> Session:
    return host.begin(model, None)


@pytest.mark.parametrize("name", ["optimizer", "target", "treshold"])
def test_a_keyword_that_join_does_not_take_is_refused_at_once(name: str) -> None:
    with pytest.raises(UsageError, match=naming("settings", name)):
        HostedSession({"threshold": 0.5, name: 1})


def test_before_it_has_begun_every_event_does_nothing() -> None:
    host = HostedSession({})

    host.step()
    host.pause()
    host.resume()
    host.finish()
    host.close("over")

    assert host.session is None
    assert host.state_dict() == host.figures() == {}


def test_a_pause_ends_with_the_next_step_and_lets_nothing_in(master: LocalMaster) -> None:
    peer = join(master, [torch.zeros(4)])
    host, model = HostedSession({"master": master.address, "threshold": HALF}), nn.Module()
    model.register_parameter("0", nn.Parameter(torch.zeros(4)))
    session = host.begin(model, None)
    host.pause()
    host.pause()
    peer.push(torch.full((4,), HALF))
    delivered(peer, 1)

    assert session.pull() == []
    while not session.stats.updates_applied:
        host.step()

    assert model.get_parameter("0").tolist() == [HALF] * 4
    host.close("over")


def test_it_waits_for_as_many_workers_as_the_settings_say(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    host = hosted(master, workers=2, start_timeout_seconds=0.05)

    begun(host, Model(0.0))

    [warning] = [each for each in caplog.messages if "training begins" in each]
    assert warning == naming("1 of 2 workers", "0.05 s")
    host.close("over")


def test_a_training_that_begins_anew_leaves_the_session_of_the_one_that_failed(
    master: LocalMaster,
) -> None:
    host, model = hosted(master), Model(0.0, 0.0, 0.0, 0.0)
    first = begun(host, model)
    model.add(1.0, 0.0, 0.0, 0.0)
    host.step()
    delivered(first, 1)

    second = begun(host, model)

    assert second is not first
    assert second.world_size == 1
    with pytest.raises(UsageError, match=naming("session", "training")):
        first.step()
    host.close("over")


def test_a_finish_that_fails_leaves(master: LocalMaster) -> None:
    join(master, [torch.zeros(4)])
    model = nn.Module()
    model.register_parameter("0", nn.Parameter(torch.zeros(4)))
    host = hosted(master, finish_timeout_seconds=0.05)
    host.begin(model, None)

    with pytest.raises(DeadlineError, match=naming("finish()", "rank 0")):
        host.finish()

    assert not host.is_open
    master.wait_for_workers(1)


@pytest.mark.parametrize("feedback", ["local", "shared"])
def test_who_starts_a_run_from_a_checkpoint_has_its_residual_once(feedback: str) -> None:
    with LocalMaster() as master:
        host, model = hosted(master, feedback=feedback), Model(1.0, 2.0, 3.0, 4.0)
        begun(host, model)
        model.add(*RESIDUAL.tolist())
        host.step()
        state, saved = host.state_dict(), model.weight.detach().clone()
        host.close("killed")
    torch.testing.assert_close(state["residual"], RESIDUAL)

    with LocalMaster() as master:
        again = hosted(master, feedback=feedback)
        restored = Model(*saved.tolist())
        again.load_state_dict(state)
        begun(again, restored)
        again.finish()

    torch.testing.assert_close(restored.weight.data, torch.tensor([1.25, 2.0, 2.875, 4.0]))


@pytest.mark.parametrize("feedback", ["local", "shared"])
def test_who_comes_back_to_a_run_from_a_checkpoint_brings_its_residual(feedback: str) -> None:
    with LocalMaster() as master:
        other = Model(1.0, 2.0, 3.0, 4.0)
        with join(master, other) as peer:
            host, model = hosted(master, feedback=feedback), Model(0.0, 0.0, 0.0, 0.0)
            begun(host, model)
            model.add(*RESIDUAL.tolist())
            host.step()
            state, saved = host.state_dict(), model.weight.detach().clone()
            host.close("killed")
            other.add(8.0, 0.0, 0.0, 0.0)
            peer.step()
            delivered(peer, 1)

            again = hosted(master, feedback=feedback)
            restored = Model(*saved.tolist())
            again.load_state_dict(state)
            finish(begun(again, restored), peer)

    torch.testing.assert_close(restored.weight.data, torch.tensor([9.25, 2.0, 2.875, 4.0]))
    assert torch.equal(other.weight, restored.weight)


def test_the_end_of_one_training_is_the_end_of_all(master: LocalMaster) -> None:
    one, other = hosted(master), hosted(master)
    first, second = Model(0.0, 0.0, 0.0, 0.0), Model(0.0, 0.0, 0.0, 0.0)
    sessions = [begun(one, first), begun(other, second)]
    assert not one.is_to_end

    one.end_everywhere("a Trainer was stopped")
    wait_until(lambda: other.is_to_end, "the other to hear of it")
    other.end_everywhere("and this one")

    assert [each.stopping for each in sessions] == ["a Trainer was stopped"] * 2
    finish(*sessions)


def test_a_state_is_taken_up_once(master: LocalMaster) -> None:
    host, model = hosted(master), Model(0.0, 0.0, 0.0, 0.0)
    begun(host, model)
    host.load_state_dict(host.state_dict() | {"version": 0})

    with pytest.raises(UsageError, match=naming("state", "version 0")):
        begun(host, model)

    assert not host.is_open


def test_its_figures_are_the_numbers_of_the_stats(master: LocalMaster) -> None:
    host, model = hosted(master), Model(0.0, 0.0, 0.0, 0.0)
    begun(host, model)
    model.add(1.0, 0.25, 0.0, 0.0)
    host.step()

    figures = host.figures()
    host.close("over")

    assert figures["gradwire/steps"] == 1
    assert figures["gradwire/density"] == 0.25
    assert figures["gradwire/residual_max"] == 0.5
    assert all(isinstance(value, float) for value in figures.values())
    assert "gradwire/transport" not in figures
