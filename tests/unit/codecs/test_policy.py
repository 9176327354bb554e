"""Threshold policies."""

from statistics import NormalDist

import pytest

from gradwire_codecs import AdaptiveThreshold, CodecError, FixedThreshold
from gradwire_codecs.policy import PolicyState


def test_an_adaptive_threshold_starts_where_it_is_told() -> None:
    policy = AdaptiveThreshold()
    assert policy.threshold is None
    policy.observe(0.5, 1.0)
    assert policy.threshold is None

    policy.start(0.25)

    assert policy.threshold == 0.25


def test_an_initial_threshold_is_kept() -> None:
    policy = AdaptiveThreshold(initial=0.125)

    policy.start(0.25)

    assert policy.threshold == 0.125


def test_an_adaptive_threshold_settles_at_its_target() -> None:
    """Whatever it starts from, a hundred updates of normal residuals lead to the target."""
    normal = NormalDist()
    for initial in (1e-6, 1.0, 100.0):
        policy = AdaptiveThreshold(target_density=0.01, initial=initial)
        for _ in range(100):
            assert policy.threshold is not None
            policy.observe(2 * normal.cdf(-policy.threshold), policy.threshold)

        assert policy.threshold is not None
        assert 0.009 < 2 * normal.cdf(-policy.threshold) < 0.011


def test_one_update_moves_a_threshold_twofold_at_most() -> None:
    policy = AdaptiveThreshold(target_density=1e-6, initial=1.0)

    policy.observe(1.0, 1.0)
    assert policy.threshold == 2.0
    policy.observe(0.0, 2.0)

    assert policy.threshold == 1.0


def test_the_first_updates_move_a_threshold_more_than_later_ones() -> None:
    policy = AdaptiveThreshold(target_density=0.01, initial=1.0)
    factors = []
    for _ in range(20):
        assert policy.threshold is not None
        before = policy.threshold
        policy.observe(0.02, before)
        factors.append(policy.threshold / before)

    assert factors == sorted(factors, reverse=True)
    assert factors[0] == pytest.approx(2**0.5)
    assert factors[-1] == pytest.approx(2**0.05)


def test_at_its_target_an_adaptive_threshold_rests() -> None:
    policy = AdaptiveThreshold(target_density=0.01, initial=0.5)

    policy.observe(0.01, 0.5)

    assert policy.threshold == 0.5


@pytest.mark.parametrize(("density", "used", "ends_at"), [(0.0, 0.25, 0.125), (1.0, 64.0, 128.0)])
def test_a_threshold_does_not_run_away_from_what_can_be_used(
    density: float, used: float, ends_at: float
) -> None:
    """Such as one quantum, and the most quanta there are."""
    policy = AdaptiveThreshold(initial=used)

    for _ in range(2_000):
        policy.observe(density, used)

    assert policy.threshold == ends_at
    AdaptiveThreshold().restore(policy.state())


def test_a_fixed_threshold_stays() -> None:
    policy = FixedThreshold(0.5)

    policy.start(1.0)
    policy.observe(1.0, 0.5)

    assert policy.threshold == 0.5


@pytest.mark.parametrize(
    "state", [{"threshold": 0.75, "updates": 7.0}, {"threshold": None, "updates": 0.0}]
)
def test_the_state_of_an_adaptive_threshold_is_restored(state: PolicyState) -> None:
    policy = AdaptiveThreshold()

    policy.restore(state)

    assert policy.state() == state


def test_the_state_of_a_fixed_threshold_is_restored() -> None:
    policy = FixedThreshold(0.5)

    policy.restore(FixedThreshold(0.25).state())

    assert policy.threshold == 0.25


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "a", 10**400])
def test_a_saved_threshold_of_no_use_is_refused(value: float) -> None:
    with pytest.raises(CodecError, match="threshold="):
        AdaptiveThreshold().restore({"threshold": value})


@pytest.mark.parametrize("value", [-1, -0.5, 2.0**54, float("nan"), float("inf"), [1], 10**400])
def test_a_saved_number_of_updates_that_cannot_be_is_refused(value: float) -> None:
    policy = AdaptiveThreshold(initial=0.5)

    with pytest.raises(CodecError, match="updates="):
        policy.restore({"threshold": 0.25, "updates": value})

    assert policy.threshold == 0.5


@pytest.mark.parametrize(
    "options",
    [
        {"target_density": 0},
        {"target_density": 1},
        {"initial": 0},
        {"initial": float("inf")},
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(CodecError, match=f"{next(iter(options))}="):
        AdaptiveThreshold(**options)


@pytest.mark.parametrize("threshold", [0, -1, float("inf"), float("nan")])
def test_a_fixed_threshold_is_positive_and_finite(threshold: float) -> None:
    with pytest.raises(CodecError, match="threshold="):
        FixedThreshold(threshold)
