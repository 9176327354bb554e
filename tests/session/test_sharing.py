"""What sessions share, against a real master on loopback: pushing, pulling, saving."""

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import gradwire.worker.membership
from gradwire import PeerUpdate, Session
from gradwire.settings.training import Feedback
from gradwire_codecs import Observation, TargetDensity
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.delivery.shaped_message import Payload
from support.local_master import LocalMaster
from support.sessions import (
    HALF,
    change,
    delivered,
    double_zeros,
    join,
    membership_of,
    participant_of,
    pull,
    replica_of,
    stepping_changes,
    zeros,
)
from support.waiting import wait_until
from support.wording import naming

FEEDBACKS = pytest.mark.parametrize("feedback", ["local", "shared"])


# Pushing and pulling.


@FEEDBACKS
def test_what_one_worker_pushes_the_others_pull(master: LocalMaster, feedback: str) -> None:
    mine, theirs = zeros(), zeros()
    one, other = (join(master, t, feedback=feedback) for t in (mine, theirs))

    sent = one.push(change(HALF, 0, -1.0, 0))
    pulled = pull(other, 1)

    assert sent == 2
    assert pulled == [PeerUpdate(rank=0, sequence=1, elements=2, staleness=0)]
    assert mine.tolist() == theirs.tolist() == [HALF, 0, -1.0, 0]
    assert one.digest() == other.digest()


def test_a_step_pushes_what_the_training_changed_and_applies_what_came(
    master: LocalMaster,
) -> None:
    mine, theirs = zeros(), zeros()
    one, other = join(master, mine), join(master, theirs)
    other.push(change(0, 0, 0, 1.0))
    delivered(other, 1)

    mine[0] += HALF
    wait_until(partial(stepping_changes, one, mine, 3), "the peer's update")
    pull(other, 1)

    assert mine.tolist() == theirs.tolist() == [HALF, 0, 0, 1.0]
    assert one.digest() == other.digest()


@pytest.mark.parametrize(
    ("feedback", "make", "computes_with"),
    [
        ("local", zeros, [0.75, 0.25, 0, 0]),
        ("shared", zeros, [HALF, 0, 0, 0]),
        ("shared", double_zeros, [HALF, 0, 0, 0]),
    ],
)
def test_the_feedback_decides_whether_a_worker_computes_with_what_it_has_not_sent(
    master: LocalMaster,
    feedback: Feedback,
    make: Callable[[], Float32Array | torch.Tensor],
    computes_with: list[float],
) -> None:
    """Also where the target has memory of its own that what is sent has to be copied to."""
    target = make()
    whole = target if isinstance(target, np.ndarray) else [target]
    session = join(master, whole, feedback=feedback)

    session.push(change(0.75, 0.25, 0, 0))

    assert target.tolist() == computes_with
    assert session.state_dict()["residual"].tolist() == [0.25, 0.25, 0, 0]


# What is refused.


def test_a_tensor_can_be_pushed_and_may_have_the_target_s_shape(master: LocalMaster) -> None:
    target = np.zeros((2, 2), np.float32)
    session = join(master, target)

    session.push(torch.full((2, 2), HALF))
    session.push(np.full((2, 2), HALF, np.float32))
    session.push(np.full(4, HALF, np.float32))

    assert target.tolist() == [[1.5, 1.5], [1.5, 1.5]]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (np.ones(3, np.float32), ("float32", "(3,)")),
        (np.ones(4), ("float64", "(4,)")),
        (np.ones(4, np.int32), ("int32", "(4,)")),
        ([1.0, 1.0, 1.0, 1.0], ("float64", "(4,)")),
        (np.float32(1), ("float32", "()")),
        (np.array([1, 1, np.nan, 1], np.float32), ("array[2]", "nan")),
        (np.array([1, np.inf, 1, 1], np.float32), ("array[1]", "inf")),
        (torch.zeros(4, dtype=torch.bfloat16), ("float32", 4)),
        ([[1.0], [1.0, 2.0]], ("float32", 4)),
    ],
)
def test_a_change_of_no_use_is_refused_and_changes_nothing(
    master: LocalMaster, wrong: Any, named: tuple[object, ...]
) -> None:
    target = zeros()
    session = join(master, target)
    session.push(change(0.75, 0, 0, 0))
    before = (target.tolist(), session.digest(), session.state_dict()["residual"].tolist())

    with pytest.raises(gradwire.UsageError, match=naming(*named)):
        session.push(wrong)

    residual = session.state_dict()["residual"].tolist()
    assert (target.tolist(), session.digest(), residual) == before


def test_a_change_that_the_quantum_cannot_express_changes_nothing(master: LocalMaster) -> None:
    target = zeros()
    session = join(master, target)

    with pytest.raises(gradwire.DivergedError, match=naming("array[0]", 200)):
        session.push(change(200.0, HALF, 0, 0))

    assert target.tolist() == [0, 0, 0, 0]


# The threshold.


@pytest.mark.parametrize("idle_steps", [0, 1])
def test_the_first_change_gets_the_threshold_that_leads_to_the_density_asked_for(
    master: LocalMaster, idle_steps: int
) -> None:
    """Also after a warm-up that begins at a learning rate of 0, or a step before the training."""
    target = np.zeros(10_000, np.float32)
    session = join(master, target, threshold=None, target_density=0.05)
    for _ in range(idle_steps):
        session.step()

    target += np.random.default_rng(1).normal(0, 1e-3, target.size).astype(np.float32)
    session.step()

    assert session.stats.density == pytest.approx(0.05, rel=0.1)
    assert session.stats.threshold == pytest.approx(1.96e-3, rel=0.1)


class Falling:
    """A policy whose threshold halves with every update."""

    def __init__(self) -> None:
        self.threshold: float | None = None
        self.densities: list[float] = []

    def first_density(self, elements: int) -> float:
        return 0.5

    def start(self, threshold: float) -> None:
        self.threshold = threshold

    def observe(self, observation: Observation) -> None:
        assert self.threshold is not None
        self.threshold /= 2
        self.densities.append(observation.density)

    def state(self) -> dict[str, float | None]:
        return {"threshold": self.threshold}

    def restore(self, state: dict[str, float | None]) -> None:
        self.threshold = state["threshold"]


def test_a_policy_of_the_caller_s_own_is_asked(master: LocalMaster) -> None:
    policy = Falling()
    session = join(master, threshold=policy)

    thresholds = []
    for _ in range(3):
        session.push(change(1.0, 1.0, 1.0, 1.0))
        thresholds.append(session.stats.threshold)

    assert thresholds == [1.0, 0.5, 0.25]
    assert policy.densities == [1.0, 1.0, 1.0]
    assert session.state_dict()["policy"] == {"threshold": 0.125}


# When the network or the training is behind.


def test_a_network_that_is_behind_gets_no_more_and_nothing_is_lost(master: LocalMaster) -> None:
    mine, theirs = zeros(), zeros()
    one, other = (join(master, t) for t in (mine, theirs))

    with master.held_up():
        sent = [one.push(change(HALF, 0, 0, 0)) for _ in range(100)]
        assert (sent[:65], sent[65:]) == ([1] * 65, [0] * 35)
        assert one.stats.steps_deferred == 35
    delivered(one, 65)
    assert one.push(change(0, 0, 0, HALF)) == 2
    pull(other, 66)

    assert mine.tolist() == theirs.tolist() == [50.0, 0, 0, HALF]
    assert one.digest() == other.digest()


# Saving.


def test_a_saved_session_is_plain_tensors_numbers_and_texts(master: LocalMaster) -> None:
    module = torch.nn.Linear(2, 2)
    session = join(master, module, threshold=None)
    with torch.no_grad():
        module.weight += 0.01
    session.step()
    state = session.state_dict()
    file = io.BytesIO()

    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)

    keys = {"version", "run", "feedback", "digest", "residual", "policy", "steps", "versions"}
    assert loaded.keys() == state.keys() == keys
    assert torch.equal(loaded["residual"], state["residual"])
    rest = {key: value for key, value in loaded.items() if key != "residual"}
    assert rest == {
        "version": 1,
        "run": "default",
        "feedback": "local",
        "digest": session.digest(),
        "policy": state["policy"],
        "steps": 1,
        "versions": {0: 1},
    }
    session.load_state_dict(loaded)


@FEEDBACKS
def test_a_loaded_session_goes_on_with_residual_and_threshold(
    master: LocalMaster, feedback: str
) -> None:
    before, after = zeros(), zeros()
    adaptive = TargetDensity(0.3, initial=HALF)
    saved = join(master, before, threshold=adaptive, feedback=feedback)
    saved.push(change(0.75, 0.125, 0, 0))
    delivered(saved, 1)
    state, parameters = saved.state_dict(), before.tolist()
    saved.close()

    loaded = join(master, after, threshold=None, target_density=0.3, feedback=feedback)
    loaded.load_state_dict(state)

    assert loaded.state_dict()["residual"].tolist() == [0.25, 0.125, 0, 0]
    assert loaded.state_dict()["policy"] == state["policy"]
    assert after.tolist() == parameters
    assert loaded.digest() == saved.digest()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"version": 2}, ("version 2", 1)),
        ({"version": None}, ("version None", 1)),
        ({"version": np.ones(2)}, ("version array([1., 1.])", 1)),
        ({"residual": np.zeros(3, np.float32)}, ("residual", 4)),
        ({"residual": np.zeros(4)}, ("residual", "float32")),
        ({"residual": change(0, np.nan, 0, 0)}, ("element 1", "nan")),
        ({"policy": {"threshold": -1.0}}, ("threshold", -1.0)),
        ({"policy": {}}, ("threshold", None)),
        ({"feedback": np.nan}, ("feedback", "nan", "local")),
        ({"feedback": "half"}, ("feedback", "half", "local")),
        ({"policy": {"threshold": 10**400}}, ("threshold", 10**400)),
        ({"policy": None}, ("fit",)),
        ({"policy": "fixed"}, ("fit",)),
        ({"residual": torch.zeros(4, dtype=torch.bfloat16)}, ("fit",)),
        ({"residual": "none"}, ("fit",)),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(
    master: LocalMaster, wrong: dict[str, Any], named: tuple[object, ...]
) -> None:
    target = zeros()
    session = join(master, target)
    session.push(change(0.75, 0, 0, 0))
    state = session.state_dict()
    target_before = target.tolist()

    with pytest.raises(gradwire.UsageError, match=naming("state", *named)):
        session.load_state_dict(state | wrong)

    after = session.state_dict()
    assert (after["residual"].tolist(), after["policy"]) == ([0.25, 0, 0, 0], state["policy"])
    assert target.tolist() == target_before


def test_the_state_can_be_saved_after_the_end(master: LocalMaster) -> None:
    session = join(master)
    session.push(change(0.75, 0, 0, 0))
    session.close()

    assert session.state_dict()["residual"].tolist() == [0.25, 0, 0, 0]


# A master that was started anew.


def given_by(session: Session) -> list[tuple[bytes, int]]:
    """Return a list of the replicas that a session gives, and the last own update in each."""
    given: list[tuple[bytes, int]] = []

    def found_again(values: Payload, accepted: int, now: float) -> None:
        given.append((bytes(values), accepted))

    participant_of(session).worker.found_again = found_again  # type: ignore[method-assign]
    return given


def test_while_paused_it_is_not_given_without_what_has_come_in(master: LocalMaster) -> None:
    one, other = join(master), join(master)
    given = given_by(one)

    with one.paused():
        other.push(change(HALF, 0, 0, 0))
        wait_until(lambda: not membership_of(one).inbox.is_empty, "the update")
        membership_of(one).on_replica_wanted(0)
        assert membership_of(one).replica_wanted == 0
    one.pull()
    wait_until(lambda: bool(given), "the replica")

    assert given == [(replica_of(other).astype("<i4").tobytes(), 0)]


def test_a_session_that_leaves_gives_it_with_what_has_come_in(master: LocalMaster) -> None:
    one, other = join(master), join(master)
    given = given_by(one)
    other.push(change(HALF, 0, 0, 0))
    wait_until(lambda: not membership_of(one).inbox.is_empty, "the update")
    membership_of(one).on_replica_wanted(0)

    with participant_of(one).applying.lent(applies=True):
        wait_until(lambda: bool(given), "the replica")

    assert given == [(replica_of(other).astype("<i4").tobytes(), 0)]


def test_own_updates_that_the_log_has_not_are_not_given(master: LocalMaster) -> None:
    one = join(master)
    given = given_by(one)
    one.push(change(HALF, 0, 0, 0))
    first = replica_of(one).astype("<i4").tobytes()
    one.push(change(0, HALF, 0, 0))

    membership_of(one).on_replica_wanted(1)
    one.pull()
    wait_until(lambda: bool(given), "the replica")

    assert given == [(first, 1)]
