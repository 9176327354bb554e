"""How values in arrays are distributed; `torch_distributions` counts those on a device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.operating.histograms import BINS, HISTOGRAM


def histograms_of(samples: Sequence[Any]) -> npt.NDArray[np.void]:
    """Return a `HISTOGRAM` of each sample, without the name of its tensor and the like.

    Parameters
    ----------
    samples : sequence of ndarray or Tensor
        Flat, float32; all arrays or all tensors.
    """
    if not all(isinstance(sample, np.ndarray) for sample in samples):
        from gradwire.target.torch_distributions import histograms_on_device

        return histograms_on_device(samples)
    found = np.zeros(len(samples), HISTOGRAM)
    for at, sample in enumerate(samples):
        _count(sample, found[at : at + 1])
    return found


def joined(pieces: Sequence[Any]) -> Any:
    """Return arrays, or tensors, as one."""
    if all(isinstance(piece, np.ndarray) for piece in pieces):
        return np.concatenate(pieces)
    from gradwire.target.torch_distributions import joined_on_device

    return joined_on_device(pieces)


def _count(values: Float32Array, into: npt.NDArray[np.void]) -> None:
    is_finite = np.isfinite(values)
    exact = values[is_finite].astype(np.float64)
    nan = int(np.isnan(values).sum()) if len(exact) < len(values) else 0
    into["nan"], into["infinite"] = nan, len(values) - len(exact) - nan
    if not len(exact):
        return
    low, high = exact.min(), exact.max()
    into["lowest"], into["highest"] = low, high
    into["mean"], into["deviation"] = exact.mean(), exact.std()
    exact -= low
    if high > low:
        exact *= BINS / (high - low)
    bins = np.minimum(exact.astype(np.intp), BINS - 1)
    into["bins"] = np.bincount(bins, minlength=BINS)
