"""What is done with a residual besides sending it: looking at its size, and clipping it.

Both count in thresholds. Statistics come of a sample. Clipping is Deeplearning4j's
ResidualClippingPostProcessor: it loses what it cuts off, which is the one thing in this package
that does, so it returns how much that was.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.errors import CodecError
from gradwire_codecs.feedback.feedback import Feedback
from gradwire_codecs.format.update import check_multiple

PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9, 99.99)
"""Deeplearning4j's in its encodingDebugMode."""

FLOAT32_MAX: Final = float(np.finfo(np.float32).max)

TIMES_MIN: Final = 1.0
"""Clipping below the threshold would cut off what no update would have sent."""


@dataclass(frozen=True, slots=True)
class ResidualStatistics:
    """Absolute values of the elements of a residual, in thresholds, from a sample.

    Far above 1: the threshold is too low for what an update may carry, and the residual grows. All
    far below 1: it is so high that changes wait for long.
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
        """Look at a sample.

        Parameters
        ----------
        sample : ndarray of shape (n,), dtype float32
            Elements of a residual; those that are not finite, which the next step refuses, do not
            count. Where none is left, all numbers are 0.
        threshold : float
            Positive, in units of the parameters.
        """
        size = np.abs(sample, dtype=np.float64) / threshold
        size = size[np.isfinite(size)]
        if not size.size:
            return cls(*[0.0] * 7)
        return cls(
            float(size.mean()), float(size.max()), *np.percentile(size, PERCENTILES).tolist()
        )


@dataclass(frozen=True, slots=True)
class Clipped:
    """What clipping has taken away."""

    elements: int
    """How many were cut."""
    magnitude: float
    """Sum of the absolute values of what was cut off, in units of the parameters."""


def clip_residual(feedback: Feedback, multiple: int, times: float) -> Clipped:
    """Cut the residual to plus or minus so many thresholds.

    Parameters
    ----------
    feedback : Feedback
        Whose residual it is; changed in place.
    multiple : int
        The threshold in quanta.
    times : float
        Thresholds that an element may keep; 1 or more.

    Returns
    -------
    Clipped
        What is lost by it: the residual before is the one after, and this.
    """
    if not TIMES_MIN <= times < float("inf"):
        raise CodecError(f"times={times}; it is {TIMES_MIN:g} or more, and finite")
    check_multiple(multiple)
    limit = np.float32(min(times * multiple * float(feedback.replica.quantum), FLOAT32_MAX))
    return Clipped(*feedback.clip(limit))
