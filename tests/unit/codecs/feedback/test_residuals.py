"""Looking at residuals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import ResidualStatistics
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.feedback.host_feedback import HostFeedback
from support.feedbacks import KINDS, start, train


def trained(kind: type[HostFeedback], seed: int, elements: int) -> HostFeedback:
    """Return feedback that has sent something, was trained on, and was not encoded since."""
    random = np.random.default_rng(seed)
    feedback = start(kind, random.normal(0, 0.1, elements).astype(np.float32))
    for _ in range(2):
        feedback.encode(8_000)
        train(feedback, random)
    return feedback


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
