"""Threshold policies, on residuals whose density follows from the threshold by a known law."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradwire_codecs
from gradwire_codecs import (
    CodecError,
    DensityBand,
    FixedThreshold,
    Observation,
    TargetDensity,
    ThresholdPolicy,
    WarmUp,
)
from gradwire_codecs.policies.density import density_for

NORMAL = NormalDist()
ELEMENTS = 1_000_000

Make = Callable[[float | None], ThresholdPolicy]
"""Makes a policy with this initial threshold, or with none."""

POLICIES: dict[str, Make] = {
    "target": lambda initial: TargetDensity(initial=initial),
    "band": lambda initial: DensityBand(initial=initial),
}
ADAPTING = pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)


def observation(
    density: float, threshold: float = 1.0, *, size_bytes: int = 0, seconds: float = 0.1
) -> Observation:
    return Observation(density=density, threshold=threshold, size_bytes=size_bytes, seconds=seconds)


def normal_update(threshold: float, *, scale: float = 1.0, seconds: float = 0.1) -> Observation:
    """Return what comes of an update of a normal residual, coded at its entropy."""
    density = 2 * NORMAL.cdf(-threshold / scale)
    size = 20.0
    if 0 < density < 1:
        rest = 1 - density
        bits = density - density * math.log2(density) - rest * math.log2(rest)
        size += ELEMENTS * bits / 8
    return observation(density, threshold, size_bytes=round(size), seconds=seconds)


def threshold_of(policy: ThresholdPolicy) -> float:
    assert policy.threshold is not None
    return policy.threshold


def train(policy: ThresholdPolicy, updates: int, **options: float) -> list[Observation]:
    seen = []
    for _ in range(updates):
        seen.append(normal_update(threshold_of(policy), **options))
        policy.observe(seen[-1])
    return seen


# What all of them do.


def test_every_policy_that_adapts_is_held_to_what_all_of_them_do() -> None:
    policies = {each for each in vars(gradwire_codecs).values() if hasattr(each, "first_density")}
    held = {type(make(None)) for make in POLICIES.values()}

    assert policies - {ThresholdPolicy, FixedThreshold, WarmUp} == held, "POLICIES names them"


@ADAPTING
def test_a_threshold_that_adapts_starts_where_it_is_told(make: Make) -> None:
    policy = make(None)
    assert policy.threshold is None
    policy.observe(observation(0.5))
    assert policy.threshold is None
    assert 0 < policy.first_density(ELEMENTS) < 0.5

    policy.start(0.25)

    assert policy.threshold == 0.25


@ADAPTING
def test_one_update_moves_a_threshold_twofold_at_most(make: Make) -> None:
    policy = make(1.0)

    policy.observe(observation(1.0, size_bytes=10**9))
    risen = threshold_of(policy)
    policy.observe(observation(0.0, risen))

    assert 1.0 < risen <= 2.0
    assert risen / 2 <= threshold_of(policy) < risen


@ADAPTING
@pytest.mark.parametrize(("size", "used", "ends_at"), [(0, 0.25, 0.125), (10**9, 64.0, 128.0)])
def test_a_threshold_does_not_run_away_from_what_can_be_used(
    make: Make, size: int, used: float, ends_at: float
) -> None:
    """Such as one quantum, and the most quanta there are."""
    policy = make(used)

    for _ in range(2_000):
        policy.observe(observation(min(size, 1), used, size_bytes=size))

    assert policy.threshold == pytest.approx(ends_at)
    make(None).restore(policy.state())


@ADAPTING
@given(
    updates=st.integers(0, 30),
    initial=st.one_of(st.none(), st.floats(1e-6, 1e3)),
    more=st.integers(1, 10),
)
def test_a_restored_policy_goes_on_like_the_one_that_was_saved(
    make: Make, updates: int, initial: float | None, more: int
) -> None:
    saved = make(initial)
    if updates:
        saved.start(0.5)
        train(saved, updates)
    restored = make(None)

    restored.restore(saved.state())
    for policy in (saved, restored):
        policy.start(0.75)
        train(policy, more)

    assert restored.state() == saved.state()


@pytest.mark.parametrize(
    ("policy", "state", "value"),
    [
        *(
            (name, {"threshold": value}, "threshold")
            for name in POLICIES
            for value in (0.0, -1.0, float("nan"), float("inf"), "a", 10**400)
        ),
        *(
            (name, {"threshold": 0.25, "updates": value}, "updates")
            for name in ("target",)
            for value in (-1, -0.5, 2.0**54, float("nan"), float("inf"), [1], 10**400)
        ),
    ],
)
def test_a_saved_state_that_cannot_be_is_refused_and_changes_nothing(
    policy: str, state: Any, value: str
) -> None:
    adapting = POLICIES[policy](0.5)

    with pytest.raises(CodecError, match=f"{value}="):
        adapting.restore(state)

    assert adapting.threshold == 0.5


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (TargetDensity, {"target": 0}),
        (TargetDensity, {"target": 1}),
        (TargetDensity, {"initial": 0}),
        (TargetDensity, {"initial": float("inf")}),
        (DensityBand, {"low": 0}),
        (DensityBand, {"high": 1}),
        (DensityBand, {"low": 0.1, "high": 0.01}),
        (DensityBand, {"decay": 0.49}),
        (DensityBand, {"decay": 1.0}),
        (DensityBand, {"initial": float("nan")}),
        (FixedThreshold, {"threshold": 0}),
        (FixedThreshold, {"threshold": -1}),
        (FixedThreshold, {"threshold": float("inf")}),
        (FixedThreshold, {"threshold": float("nan")}),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Any, options: dict[str, Any]) -> None:
    with pytest.raises(CodecError) as refused:
        make(**options)

    name, value = list(options.items())[-1]
    assert f"{name.replace('target', 'target_density')}={value}" in str(refused.value)


# A fixed threshold.


def test_a_fixed_threshold_stays_until_another_one_is_restored() -> None:
    policy = FixedThreshold(0.5)

    policy.start(1.0)
    policy.observe(observation(1.0, 0.5))
    assert policy.threshold == 0.5
    policy.restore(FixedThreshold(0.25).state())

    assert policy.threshold == 0.25


# A target density.


@given(
    initial=st.floats(1e-6, 30.0),
    target=st.sampled_from([1e-3, 1e-2, 0.1]),
    scale=st.floats(0.1, 10.0),
)
def test_a_target_density_is_reached(initial: float, target: float, scale: float) -> None:
    """Whatever it starts from, two hundred updates of normal residuals lead there."""
    policy = TargetDensity(target, initial=initial * scale)

    seen = train(policy, 200, scale=scale)

    assert seen[-1].density == pytest.approx(target, rel=0.1)


def test_the_first_updates_move_a_threshold_more_than_later_ones() -> None:
    policy = TargetDensity(0.01, initial=1.0)
    factors = []
    for _ in range(20):
        before = threshold_of(policy)
        policy.observe(observation(0.02, before))
        factors.append(threshold_of(policy) / before)

    assert factors == sorted(factors, reverse=True)
    assert factors[0] == pytest.approx(2**0.5)
    assert factors[-1] == pytest.approx(2**0.1)
    policy.observe(observation(0.005, before := threshold_of(policy)))
    assert threshold_of(policy) / before == pytest.approx(0.5**0.05)


@pytest.mark.parametrize("target", [0.01, 0.001])
@pytest.mark.parametrize("drift", [0.0, 0.1])
def test_changes_that_come_in_step_neither_begin_nor_stay_dense(
    target: float, drift: float
) -> None:
    """As Adam's first ones do, which are all of the size of its learning rate."""
    random = np.random.default_rng(1)
    residual = np.zeros(20_000)
    policy = TargetDensity(target)
    densities = []
    for _ in range(300):
        sign = np.where(random.random(residual.size) < 0.5 + drift / 2, 1.0, -1.0)
        residual += sign * (1 + 1e-4 * random.normal(size=residual.size))
        policy.start(float(np.quantile(np.abs(residual), 1 - target)))
        threshold = threshold_of(policy)
        count = np.trunc(residual / threshold)
        residual -= count * threshold
        densities.append(np.count_nonzero(count) / residual.size)
        policy.observe(observation(densities[-1], threshold))

    assert sum(densities[:60]) < 2.0
    assert np.mean(densities[150:]) < 2.5 * target


def test_another_target_moves_the_threshold_by_as_much() -> None:
    policy = TargetDensity(0.01, initial=0.5)

    policy.aim_at(0.02)

    assert (policy.target, policy.threshold) == (0.02, 0.25)


def test_a_threshold_that_was_saved_with_another_target_is_moved_to_this_one() -> None:
    """As where 16 workers saved it, and the first of them to come back finds none yet."""
    saved, restored = TargetDensity(0.005, initial=0.5), TargetDensity(0.01)

    restored.restore(saved.state())
    assert (restored.threshold, restored.target) == (0.25, 0.01)
    restored.aim_at(0.005)

    assert restored.state() == saved.state()


@pytest.mark.parametrize(("workers", "density"), [(4, 0.0075), (16, 0.00375)])
def test_the_usual_density_falls_as_the_root_of_the_workers(workers: int, density: float) -> None:
    assert density_for(workers) == density
    assert density_for(1) == density_for(2) == pytest.approx(0.0106, rel=0.01)


# A band.


@given(
    initial=st.floats(1e-2, 30.0),
    low=st.floats(1e-5, 0.01),
    width=st.floats(4.0, 100.0),
    scale=st.floats(0.1, 10.0),
)
def test_a_band_is_reached_and_never_left(
    initial: float, low: float, width: float, scale: float
) -> None:
    band = DensityBand(low, min(low * width, 0.5), initial=initial * scale)

    seen = train(band, 400, scale=scale)

    densities = [update.density for update in seen]
    inside = [band.low <= density <= band.high for density in densities]
    assert inside[-1]
    first = inside.index(True)
    assert all(inside[first:])
    assert len(set(densities[first:])) == 1, "the threshold moved inside of the band"


def test_twenty_updates_outside_of_a_band_double_or_halve_the_threshold() -> None:
    policy = DensityBand(initial=1.0)

    for density, expected in ((0.5, 2.0), (0.0, 1.0)):
        for _ in range(20):
            policy.observe(observation(density, threshold_of(policy)))
        assert policy.threshold == pytest.approx(expected)
