"""Clipping residuals, which loses just what it says, and looking at them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import (
    CodecError,
    ResidualStatistics,
    clip_residual,
)
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.feedback.host_feedback import HostFeedback
from support.feedbacks import KINDS, counts_for, start, train

QUANTUM = 2.0**-24


def trained(kind: type[HostFeedback], seed: int, elements: int) -> HostFeedback:
    """Return feedback that has sent something, was trained on, and was not encoded since."""
    random = np.random.default_rng(seed)
    feedback = start(kind, random.normal(0, 0.1, elements).astype(np.float32))
    for _ in range(2):
        feedback.encode(8_000)
        train(feedback, random)
    return feedback


@KINDS
@given(
    seed=st.integers(0, 2**32),
    elements=st.integers(1, 3_000),
    multiple=st.integers(1, 50_000),
    times=st.floats(1, 20),
)
def test_what_was_there_is_what_is_left_and_what_was_cut_off(
    kind: type[HostFeedback],
    seed: int,
    elements: int,
    multiple: int,
    times: float,
) -> None:
    feedback = trained(kind, seed, elements)
    before = feedback.residual().astype(np.float64)
    digest = feedback.replica.digest()

    clipped = clip_residual(feedback, multiple, times)

    after = feedback.residual().astype(np.float64)
    limit = times * multiple * QUANTUM
    # Where the residual waits in the parameters, their sum is rounded to float32.
    rounding = 2.0**-24 * np.maximum(np.abs(feedback.parameters), np.abs(before)).max() + 1e-45
    rounding *= counts_for(feedback)
    assert (np.abs(after) <= limit + rounding).all()
    assert np.array_equal(after[np.abs(before) <= limit], before[np.abs(before) <= limit])
    assert limit <= rounding or (np.sign(after) == np.sign(before)).all()
    assert clipped.magnitude == pytest.approx(np.abs(before - after).sum(), rel=1e-6, abs=1e-12)
    # A limit as a float32 is not quite the same as the limit.
    certain = np.abs(np.abs(before) - limit) > 1e-6 * limit
    assert clipped.elements >= (np.abs(before) > limit)[certain].sum()
    assert clipped.elements <= (np.abs(before) > limit)[certain].sum() + (~certain).sum()
    assert feedback.replica.digest() == digest


@KINDS
@pytest.mark.parametrize("times", [0.0, 0.99, -5.0, float("nan"), float("inf")])
def test_a_limit_below_the_threshold_is_refused(kind: type[HostFeedback], times: float) -> None:
    feedback = trained(kind, 1, 10)

    with pytest.raises(CodecError, match=f"times={times}; it has to be 1 or more"):
        clip_residual(feedback, 1, times)


@KINDS
def test_elements_of_a_residual_are_those_of_the_whole(kind: type[HostFeedback]) -> None:
    feedback = trained(kind, 2, 1_000)
    before = feedback.parameters.tobytes()

    for where in (slice(None, None, 7), slice(990, 1_020), slice(0, 1)):
        assert feedback.residual(where).tobytes() == feedback.residual()[where].tobytes()
    assert feedback.parameters.tobytes() == before


@given(seed=st.integers(0, 2**32), elements=st.integers(1, 2_000), threshold=st.floats(1e-6, 10))
def test_statistics_are_those_of_the_absolute_values_in_thresholds(
    seed: int, elements: int, threshold: float
) -> None:
    sample: Float32Array = np.random.default_rng(seed).normal(0, 1, elements).astype(np.float32)

    found = ResidualStatistics.of(sample, threshold)

    size = np.abs(sample.astype(np.float64)) / threshold
    assert found.mean == pytest.approx(size.mean(), rel=1e-4)
    assert found.max == pytest.approx(size.max(), rel=1e-4)
    for name, percent in (("p50", 50), ("p95", 95), ("p99", 99), ("p99_9", 99.9)):
        assert getattr(found, name) == pytest.approx(np.percentile(size, percent), rel=1e-4)
    assert found.p50 <= found.p95 <= found.p99 <= found.p99_9 <= found.p99_99 <= found.max


def test_what_is_not_finite_does_not_count() -> None:
    sample = np.array([np.nan, 3.0, np.inf, -1.0], np.float32)

    assert ResidualStatistics.of(sample, 1.0) == ResidualStatistics.of(sample[[1, 3]], 1.0)


@pytest.mark.parametrize("sample", [[], [np.nan]])
def test_of_nothing_there_are_zeros(sample: list[float]) -> None:
    found = ResidualStatistics.of(np.array(sample, np.float32), 1.0)

    assert (found.mean, found.max, found.p99_99) == (0.0, 0.0, 0.0)
