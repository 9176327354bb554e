"""Statistics of a residual, and clipping it; both count in thresholds.

Statistics are computed from a sample. Clipping is Deeplearning4j's ResidualClippingPostProcessor.
Nothing else in this package loses a part of a change, so it returns how much is lost.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.errors import CodecError
from gradwire_codecs.feedback.feedback import Feedback
from gradwire_codecs.format.update import check_multiple

PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9, 99.99)
"""Those of Deeplearning4j's encodingDebugMode."""

FLOAT32_MAX: Final = float(np.finfo(np.float32).max)

TIMES_MIN: Final = 1.0
"""Clipping below the threshold would cut off changes before any update could send them."""


@dataclass(frozen=True, slots=True)
class ResidualStatistics:
    """Absolute values of the elements of a residual, in thresholds, from a sample.

    Far above 1: the threshold is too low for what an update may carry, and the residual grows. All
    far below 1: the threshold is so high that changes are sent late.
    """

    mean: float
    max: float
    p50: float
    """The median; the others are percentiles, too."""
    p95: float
    p99: float
    p99_9: float
    p99_99: float

    @classmethod
    def of(cls, sample: Float32Array, threshold: float) -> "ResidualStatistics":
        """Compute the statistics of a sample.

        Parameters
        ----------
        sample : ndarray of shape (n,), dtype float32
            Elements of a residual. Those that are not finite are left out (the next step refuses
            them); if none is left, all statistics are 0.
        threshold : float
            Positive, in units of the parameters.
        """
        size = np.abs(sample, dtype=np.float64) / threshold
        size = size[np.isfinite(size)]
        if not size.size:
            return cls(*[0.0] * 7)
        percentiles = np.percentile(size, PERCENTILES).tolist()
        return cls(float(size.mean()), float(size.max()), *percentiles)


@dataclass(frozen=True, slots=True)
class Clipped:
    """What clipping has lost."""

    elements: int
    """How many were clipped."""
    magnitude: float
    """Sum of the absolute values that were cut off, in units of the parameters."""


def clip_residual(feedback: Feedback, multiple: int, times: float) -> Clipped:
    """Clip the residual to plus or minus `times` thresholds.

    Parameters
    ----------
    feedback : Feedback
        Its residual is changed in place.
    multiple : int
        The threshold in quanta.
    times : float
        Thresholds that an element may keep; 1 or more.

    Returns
    -------
    Clipped
        What is lost: the residual afterwards plus this is the residual before.
    """
    if not TIMES_MIN <= times < float("inf"):
        raise CodecError(f"times={times}; it has to be {TIMES_MIN:g} or more, and finite")
    check_multiple(multiple)
    limit = np.float32(min(times * multiple * float(feedback.replica.quantum), FLOAT32_MAX))
    return Clipped(*feedback.clip(limit))
