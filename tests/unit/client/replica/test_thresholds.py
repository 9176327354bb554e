"""Which threshold an update gets: the policy's or a shake-up's."""

import math
from typing import Any

import numpy as np
import pytest

import gradwire
from gradwire.replica.thresholds import Thresholds
from gradwire.settings.settings import Settings
from gradwire_codecs import (
    CodecError,
    LocalFeedback,
    Observation,
    Replica,
    TargetDensity,
)
from support.wording import naming

ELEMENTS = 1_000
QUANTUM = 2.0**-24


class Watching(TargetDensity):
    """A policy that notes what it sees."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        super().__init__(0.01, initial=2.0**-10)
        self.seen: list[Observation] = []

    def observe(self, observation: Observation) -> None:
        self.seen.append(observation)


class Trained:
    """Thresholds of a vector that changes by normal steps, with a clock of its own."""

    def __init__(self, **settings: Any) -> None:
        self.feedback = LocalFeedback(np.zeros(ELEMENTS, np.float32), Replica.zeros(ELEMENTS))
        self.now = 100.0
        self.thresholds = Thresholds(
            Settings(master="somewhere", **settings),
            self.feedback,
            clock=lambda: self.now,
        )
        self.random = np.random.default_rng(1)
        self.sizes: list[float] = []
        """In bytes, of the updates that were sent."""
        self.densities: list[float] = []

    def train(self, scale: float) -> None:
        """Change every element."""
        self.feedback.parameters += self.random.normal(0, scale, ELEMENTS).astype(np.float32)

    def send(self) -> int | None:
        """Do what a session does in a step, a second later than in the one before."""
        self.now += 1.0
        threshold = self.thresholds.next()
        if threshold is not None:
            ordinary = self.thresholds.last
            before = self.feedback.replica.values.copy()
            bodies = self.feedback.encode(threshold)
            sent = int(np.count_nonzero(self.feedback.replica.values != before))
            self.sizes.append(sum(map(len, bodies)))
            self.densities.append(sent / ELEMENTS)
            density = self.thresholds.observe(sent=sent, size_bytes=int(self.sizes[-1]))
            assert density == self.densities[-1]
            assert self.thresholds.last == ordinary
        return threshold


def test_nothing_is_due_before_something_has_changed() -> None:
    trained = Trained()

    assert trained.send() is None
    trained.train(1e-3)

    assert isinstance(trained.send(), int)


def test_a_policy_sees_density_size_and_time_of_every_update() -> None:
    policy = Watching()
    trained = Trained(threshold=policy)
    for _ in range(3):
        trained.train(1e-3)
        trained.send()

    assert [seen.seconds for seen in policy.seen] == [0.0, 1.0, 1.0]
    assert [seen.threshold for seen in policy.seen] == [2.0**-10] * 3
    assert all(0 < seen.density < 1 for seen in policy.seen)
    assert all(seen.size_bytes > 20 for seen in policy.seen)


# Shake-ups.


def test_every_so_many_steps_the_threshold_is_a_fraction_and_the_policy_sees_nothing() -> None:
    policy = Watching()
    trained = Trained(threshold=policy, shake_up_steps=3)
    used = []
    for _ in range(9):
        trained.train(1e-3)
        used.append(trained.send())

    assert used == [2**14, 2**14, 2**11] * 3
    assert [seen.threshold for seen in policy.seen] == [2.0**-10] * 6
    # The time of a shake-up belongs to no other update.
    assert [seen.seconds for seen in policy.seen] == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert trained.thresholds.ordinary == 2**14


def test_a_shake_up_takes_one_quantum_at_least() -> None:
    trained = Trained(threshold=QUANTUM, shake_up_steps=2)
    for expected in (1, 1):
        trained.train(1e-3)
        assert trained.send() == expected


# Statistics.


def test_statistics_of_a_residual_are_in_thresholds_that_are_no_shake_up_s() -> None:
    trained = Trained(threshold=2.0**-10, shake_up_steps=2)
    for _ in range(2):
        trained.train(1e-3)
        trained.send()
    trained.train(1e-3)

    found = trained.thresholds.residual_statistics()

    size = np.abs(trained.feedback.residual()) / 2.0**-10
    assert found.max == pytest.approx(size.max())
    assert found.mean == pytest.approx(size.mean())


def test_restored_thresholds_go_on_like_those_that_were_saved() -> None:
    saved = Trained()
    for _ in range(20):
        saved.train(1e-3)
        saved.send()
    restored = Trained()

    restored.thresholds.restore(saved.thresholds.state())

    assert restored.thresholds.state() == saved.thresholds.state()
    assert restored.thresholds.next() == saved.thresholds.next()


# Saving.


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"policy": 5}, ("policy", "int")),
        ({"policy": {"threshold": -1}}, ("threshold", -1)),
        ({"steps": -1}, ("steps", -1)),
        ({"steps": 1.5}, ("steps", 1.5)),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(
    wrong: dict[str, Any], named: tuple[object, ...]
) -> None:
    trained = Trained()
    for _ in range(3):
        trained.train(1e-3)
        trained.send()
    before = trained.thresholds.state()

    with pytest.raises(CodecError, match=naming(*named)):
        trained.thresholds.restore(before | wrong)

    assert trained.thresholds.state() == before


def test_real_updates_are_as_dense_as_was_asked_for() -> None:
    trained = Trained(density_band=(0.05, 0.06))
    for _ in range(60):
        trained.train(1e-3)
        trained.send()

    assert 0.03 < np.mean(trained.densities[30:]) < 0.2


@pytest.mark.parametrize("useless", [math.nan, math.inf, -1.0, 0.0])
def test_a_policy_whose_threshold_is_of_no_use_is_named(useless: float) -> None:
    policy = Watching()
    trained = Trained(threshold=policy)
    policy.threshold = useless

    with pytest.raises(gradwire.UsageError, match=naming("threshold policy", useless)):
        trained.thresholds.next()
