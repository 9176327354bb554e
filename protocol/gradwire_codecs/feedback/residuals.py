"""Statistics of a residual in thresholds, from a sample."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwire_codecs.arrays import Float32Array

PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9, 99.99)
"""Those of Deeplearning4j's encodingDebugMode."""


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
