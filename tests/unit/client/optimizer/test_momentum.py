"""The rule for momentum: property tests, and filters that are followed step by step."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.optimizer.momentum import (
    APPROACH_TOLERANCE,
    SUM_RESIDUAL_WEIGHT,
    Lag,
    added_lag,
    approach,
    compensated,
    gain,
    mean_lag,
    momentum_for,
    network_factor,
    rate_factor,
)

momenta = st.floats(0.0, 0.999)
lags = st.floats(0.0, 1e4)
nesterov = st.booleans()


def impulse_response(momentum: float, *, nesterov: bool, steps: int = 20_000) -> np.ndarray:
    """Return what torch's SGD changes by in each step, after a gradient of 1 in the first one."""
    response = np.empty(steps)
    buffer = 0.0
    for t in range(steps):
        gradient = 1.0 if t == 0 else 0.0
        buffer = momentum * buffer + gradient
        response[t] = gradient + momentum * buffer if nesterov else buffer
    return response


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9, 0.99])
def test_the_mean_lag_is_that_of_the_filter(momentum: float, nesterov: bool) -> None:
    response = impulse_response(momentum, nesterov=nesterov)

    lag = (np.arange(len(response)) * response).sum() / response.sum()

    assert mean_lag(momentum, nesterov=nesterov) == pytest.approx(lag, rel=1e-9, abs=1e-12)
    assert gain(momentum) == pytest.approx(response.sum(), rel=1e-9)


@given(lag=lags, nesterov=nesterov)
def test_the_momentum_for_a_lag_has_that_lag(lag: float, nesterov: bool) -> None:
    momentum = momentum_for(lag, nesterov=nesterov)

    assert 0.0 <= momentum < 1.0
    assert mean_lag(momentum, nesterov=nesterov) == pytest.approx(lag, rel=1e-6, abs=1e-12)


@given(momentum=st.floats(-1.0, 2.0), nesterov=nesterov)
def test_without_a_delay_nothing_changes(momentum: float, nesterov: bool) -> None:
    assert compensated(momentum, 0.0, nesterov=nesterov) == momentum
    assert rate_factor(momentum, momentum) == 1.0


@given(momentum=momenta, lag=lags, nesterov=nesterov)
def test_the_lag_stays_what_it_was_or_momentum_is_gone(
    momentum: float, lag: float, nesterov: bool
) -> None:
    before = mean_lag(momentum, nesterov=nesterov)
    present = compensated(momentum, lag, nesterov=nesterov)

    after = mean_lag(present, nesterov=nesterov) + lag
    assert 0.0 <= present <= momentum
    if lag < before:
        assert after == pytest.approx(before, rel=1e-6, abs=1e-9)
    else:
        assert present == 0.0


@given(momentum=momenta, one=lags, more=lags, nesterov=nesterov)
def test_more_delay_leaves_less_momentum(
    momentum: float, one: float, more: float, nesterov: bool
) -> None:
    less = compensated(momentum, one + more, nesterov=nesterov)

    assert less <= compensated(momentum, one, nesterov=nesterov)


@given(one=momenta, other=momenta, lag=lags, nesterov=nesterov)
def test_more_momentum_stays_more(one: float, other: float, lag: float, nesterov: bool) -> None:
    low, high = sorted((one, other))

    left = compensated(low, lag, nesterov=nesterov)
    assert left <= compensated(high, lag, nesterov=nesterov) + 1e-15


@given(momentum=momenta, lag=lags)
def test_the_steps_of_a_sum_keep_their_size(momentum: float, lag: float) -> None:
    present = compensated(momentum, lag)

    after = rate_factor(momentum, present) * gain(present)
    assert after == pytest.approx(gain(momentum), rel=1e-12)


@given(age=lags, delay=lags, more=lags, world_size=st.integers(1, 1000), is_local=st.booleans())
def test_the_added_lag_grows_with_both_delays(
    age: float, delay: float, more: float, world_size: int, is_local: bool
) -> None:
    def lag(age: float, delay: float, world_size: int = world_size) -> float:
        return added_lag(
            residual_age=age, network_delay=delay, world_size=world_size, is_local=is_local
        ).total

    assert lag(0.0, 0.0) == 0.0
    assert 0.0 <= lag(age, delay) <= lag(age + more, delay) <= lag(age + more, delay + more)
    assert lag(age, delay) <= lag(age, delay, world_size + 1) <= age + delay + 1e-9


def test_own_changes_are_late_only_where_they_wait_with_the_rest() -> None:
    def lag(world_size: int, *, is_local: bool) -> Lag:
        return added_lag(
            residual_age=8.0, network_delay=4.0, world_size=world_size, is_local=is_local
        )

    assert lag(1, is_local=True) == Lag()
    assert lag(1, is_local=False) == Lag(residual=8.0)
    assert lag(4, is_local=True) == Lag(residual=6.0, network=3.0)
    assert lag(4, is_local=False) == Lag(residual=8.0, network=3.0)


@given(lags, lags)
def test_the_residual_counts_less_for_momentum_that_is_a_sum(residual: float, delay: float) -> None:
    lag = Lag(residual, delay)

    assert lag.of_momentum(sums=False) == lag.total
    assert delay <= lag.of_momentum(sums=True) <= lag.total
    assert Lag(residual).of_momentum(sums=True) == SUM_RESIDUAL_WEIGHT * residual
    assert Lag(residual, 1e3).of_momentum(sums=True) == residual + 1e3  # nothing to make up for


def test_a_geometric_delay_behind_a_momentum_lags_as_the_rule_says() -> None:
    """A filter behind a filter: the momentum that is left and the delay make the old lag."""
    delay, momentum = 5.0, 0.9
    implicit = delay / (1.0 + delay)
    late = (1.0 - implicit) * implicit ** np.arange(2_000)
    response = impulse_response(compensated(momentum, delay), nesterov=False, steps=2_000)

    both = np.convolve(late, response)
    assert both @ np.arange(len(both)) / both.sum() == pytest.approx(mean_lag(momentum), rel=1e-6)


@given(present=st.floats(0.0, 1e3), target=st.floats(0.0, 1e3))
def test_the_delay_that_is_reckoned_with_comes_near_the_measured_one(
    present: float, target: float
) -> None:
    start, distance = present, abs(target - present)
    for _ in range(400):
        present, other = approach(Lag(present, 7.0), Lag(target, 7.0))
        assert other == 7.0
        assert abs(target - present) <= distance  # never away from it, nor beyond
        distance = abs(target - present)
    assert distance <= APPROACH_TOLERANCE * (1.0 + present)
    if start == target:
        assert present == start


def test_no_step_is_a_jolt() -> None:
    assert approach(Lag(0.0, 20.0), Lag(20.0, 0.0)) == Lag(1.0, 19.0)
    assert approach(Lag(10.0), Lag(10.1)) == Lag(10.0)


@given(st.floats(0.0, 1e4), st.floats(0.0, 1e4), st.integers(2, 1_000))
def test_the_later_peers_are_the_smaller_are_the_steps(
    one: float, other: float, world_size: int
) -> None:
    sooner, later = sorted((one, other))

    assert network_factor(0.0, world_size) == 1.0
    assert 0.0 < network_factor(later, world_size) <= network_factor(sooner, world_size) <= 1.0


@given(st.floats(0.0, 1e4))
def test_who_is_alone_steps_in_full_whatever_it_measured(delay: float) -> None:
    assert network_factor(delay, 1) == 1.0


@given(st.floats(0.0, 1e3), st.floats(1e-3, 1e3))
def test_steps_divided_by_the_delay_in_full_are_stable_at_three_quarters_of_the_limit(
    delay: float, curvature: float
) -> None:
    """The factor is the root of that."""
    rate = 0.75 * 2 / curvature  # descent without a delay is stable below 2 / curvature
    limit = 2 * math.sin(math.pi / (4 * delay + 2)) / curvature

    assert rate * network_factor(delay, 10**9) ** 2 < limit * (1 + 1e-9)
