"""The round-trip time, estimated as RFC 9002 says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.limits import GRANULARITY_SECONDS, INITIAL_RTT_SECONDS
from gradwire_protocol.recovery.rtt import RttEstimator


def test_before_the_first_sample_a_cautious_guess_is_used() -> None:
    rtt = RttEstimator()

    assert (rtt.latest, rtt.minimum) == (0.0, 0.0)
    assert (rtt.smoothed, rtt.variation) == (INITIAL_RTT_SECONDS, INITIAL_RTT_SECONDS / 2)
    assert rtt.probe_timeout(0.005) == pytest.approx(3 * INITIAL_RTT_SECONDS + 0.005)


def test_the_first_sample_replaces_the_guess() -> None:
    rtt = RttEstimator()

    rtt.update(0.04, ack_delay=0.005)

    assert (rtt.latest, rtt.minimum, rtt.smoothed, rtt.variation) == (0.04, 0.04, 0.04, 0.02)


def test_later_samples_weigh_an_eighth_and_their_deviation_a_quarter() -> None:
    rtt = RttEstimator()
    rtt.update(0.08, ack_delay=0.0)

    rtt.update(0.16, ack_delay=0.0)

    assert (rtt.latest, rtt.minimum) == (0.16, 0.08)
    assert rtt.smoothed == pytest.approx(7 / 8 * 0.08 + 1 / 8 * 0.16)
    assert rtt.variation == pytest.approx(3 / 4 * 0.04 + 1 / 4 * abs(0.08 - 0.16))


def test_what_the_peer_held_the_acknowledgement_back_is_taken_off() -> None:
    held, prompt = RttEstimator(), RttEstimator()
    for rtt in (held, prompt):
        rtt.update(0.08, ack_delay=0.0)

    held.update(0.165, ack_delay=0.005)
    prompt.update(0.16, ack_delay=0.0)

    assert held.smoothed == pytest.approx(prompt.smoothed)
    assert held.variation == pytest.approx(prompt.variation)


def test_a_delay_that_would_undercut_the_minimum_is_not_believed() -> None:
    rtt = RttEstimator()
    rtt.update(0.08, ack_delay=0.0)

    rtt.update(0.082, ack_delay=0.005)

    assert rtt.smoothed == pytest.approx(0.08 + 0.002 / 8)


@given(samples=st.lists(st.floats(1e-6, 10), min_size=1), delay=st.floats(0, 0.005))
def test_the_probe_timeout_always_leaves_a_margin(samples: list[float], delay: float) -> None:
    rtt = RttEstimator()
    for sample in samples:
        rtt.update(sample, ack_delay=delay)

    assert rtt.minimum == min(samples)
    assert min(samples) * 0.99 <= rtt.smoothed <= max(samples) * 1.01
    assert rtt.probe_timeout(0.005) >= rtt.smoothed + GRANULARITY_SECONDS + 0.005
