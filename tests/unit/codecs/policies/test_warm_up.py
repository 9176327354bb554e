"""`WarmUp`: denser updates at the beginning, on residuals whose density follows a known law."""

from collections.abc import Callable
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import (
    CodecError,
    FixedThreshold,
    Observation,
    TargetDensity,
    WarmUp,
)
from gradwire_codecs.policies.policy import PolicyState
from gradwire_codecs.policies.warm_up import Steered

NORMAL = NormalDist()


def of_normal(threshold: float) -> float:
    """Return which part of a normal residual reaches a threshold."""
    return 2 * NORMAL.cdf(-threshold)


def train(
    policy: WarmUp | Steered,
    updates: int,
    *,
    density_at: Callable[[float], float] = of_normal,
) -> list[float]:
    """Let a policy see updates; return their densities."""
    seen = []
    for _ in range(updates):
        assert policy.threshold is not None
        density = density_at(policy.threshold)
        seen.append(density)
        policy.observe(
            Observation(density=density, threshold=policy.threshold, size_bytes=9, seconds=0.1)
        )
    return seen


def started(policy: WarmUp | Steered) -> None:
    """Begin with the quantile of the first residual, as a session does."""
    policy.start(-NORMAL.inv_cdf(policy.first_density(1_000) / 2))


def test_the_density_falls_with_the_steps_from_the_first_one_to_the_target() -> None:
    """Of changes that wait until they reach the threshold, so that twice of it sends half."""
    policy = WarmUp(TargetDensity(0.01), 0.16, 400)
    policy.start(0.001)

    seen = train(policy, 600, density_at=lambda threshold: 0.00016 / threshold)

    # 400 x 0.01 in step 25 is 0.16.
    for step, expected in [(0, 0.16), (25, 0.16), (50, 0.08), (100, 0.04), (200, 0.02)]:
        assert seen[step] == pytest.approx(expected, rel=0.1)
    assert seen[400] == pytest.approx(0.01, rel=0.05)
    assert seen[-1] == pytest.approx(0.01, rel=0.02)
    assert policy.factor == 1


@given(done=st.integers(0, 1_000), steps=st.integers(1, 100))
def test_the_factor_only_falls_and_ends_at_one(done: int, steps: int) -> None:
    policy = WarmUp(TargetDensity(0.01), 0.5, steps)
    policy.skip_to(done)
    before = policy.factor
    policy.skip_to(done - 1)

    assert policy.factor == before
    policy.observe(Observation(density=0.1, threshold=1.0, size_bytes=9, seconds=0.1))
    assert 1 <= policy.factor <= before <= 50
    assert policy.done == min(done + 1, steps)


def test_another_usual_density_is_come_to_at_the_same_time() -> None:
    policy = WarmUp(TargetDensity(0.01), 0.16, 400)
    policy.start(0.001)
    policy.skip_to(200)

    policy.aim_at(0.005)

    assert policy.threshold == 0.002
    assert policy.first_density(1_000) == pytest.approx(0.005 * 400 / 200)
    policy.aim_at(0.3)
    assert policy.factor == 1, "not sparser than usual, if that is above the first density"


def test_it_goes_on_from_a_saved_state() -> None:
    one, other = (WarmUp(TargetDensity(0.01), 0.1, 100) for _ in range(2))
    started(one)
    train(one, 40)

    other.restore(one.state())

    assert other.done == 40
    assert train(other, 100) == train(one, 100)


def test_a_state_without_a_warm_up_is_past_it() -> None:
    saved = TargetDensity(0.01)
    started(saved)
    policy = WarmUp(TargetDensity(0.01), 0.1, 100)

    policy.restore(saved.state())

    assert policy.factor == 1
    assert policy.threshold == saved.threshold


@pytest.mark.parametrize("done", [-1.0, "many", float("nan"), 2.0**60])
def test_a_state_that_cannot_be_is_refused_and_changes_nothing(done: object) -> None:
    policy = WarmUp(TargetDensity(0.01, initial=1.0), 0.1, 100)
    train(policy, 10)
    before = policy.state()
    state: PolicyState = {**before, "threshold": 5.0, "warm_up_done": done}  # type: ignore[dict-item]

    with pytest.raises(CodecError, match="warm_up_done="):
        policy.restore(state)

    assert policy.state() == before


@pytest.mark.parametrize(
    ("density", "steps", "says"),
    [
        (0.01, 10, "density=0.01; it has to be above the usual one, 0.01"),
        (1.0, 10, r"density=1.0; it has to be in \(0, 1\)"),
        (0.1, 0, "steps=0; it has to be 1 or more"),
    ],
)
def test_a_schedule_that_cannot_work_is_refused(density: float, steps: int, says: str) -> None:
    with pytest.raises(CodecError, match=says):
        WarmUp(TargetDensity(0.01), density, steps)


def test_a_policy_that_steers_no_density_is_refused() -> None:
    with pytest.raises(CodecError, match="FixedThreshold steers no density"):
        WarmUp(FixedThreshold(0.1), 0.1, 10)  # type: ignore[arg-type]
