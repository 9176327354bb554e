"""Histograms of tensors, counted on the device that they are on: only the counts are copied."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

from gradwire_protocol.messages.operating.histograms import BINS, HISTOGRAM


@torch.no_grad()
def histograms_on_device(samples: Sequence[torch.Tensor]) -> npt.NDArray[np.void]:
    """Return a `HISTOGRAM` of each sample; the device is waited for twice, whatever their number.

    Parameters
    ----------
    samples : sequence of Tensor
        Flat, float32, on one device.
    """
    found = np.zeros(len(samples), HISTOGRAM)
    if not samples:
        return found
    numbers = torch.stack([_numbers(sample) for sample in samples]).cpu().numpy()
    finite, nan, low, high, mean, deviation = numbers.T
    sizes = np.array([sample.numel() for sample in samples])
    found["nan"], found["infinite"] = nan, sizes - finite - nan
    has_any = finite > 0
    columns = ("lowest", low), ("highest", high), ("mean", mean), ("deviation", deviation)
    for name, column in columns:
        found[name] = np.where(has_any, column, 0.0)
    found["bins"][:, 0] = np.where(has_any & (low == high), finite, 0)
    ranges = np.flatnonzero(has_any & (low < high)).tolist()
    if ranges:
        with _in_any_order():
            bins = [_bins(samples[at], float(low[at]), float(high[at])) for at in ranges]
        found["bins"][ranges] = torch.stack(bins).cpu().numpy()
    return found


def joined_on_device(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return flat tensors as one."""
    return torch.cat(list(pieces))


def _numbers(values: torch.Tensor) -> torch.Tensor:
    """Return how many values are finite, how many NaN, and four numbers of the finite ones."""
    exact = values.double()
    is_finite = exact.isfinite()
    count = is_finite.sum().double()
    mean = torch.where(is_finite, exact, 0.0).sum() / count
    variance = torch.where(is_finite, (exact - mean).square(), 0.0).sum() / count
    low = torch.where(is_finite, exact, torch.inf).min()
    high = torch.where(is_finite, exact, -torch.inf).max()
    return torch.stack([count, exact.isnan().sum().double(), low, high, mean, variance.sqrt()])


def _bins(values: torch.Tensor, low: float, high: float) -> torch.Tensor:
    inside = torch.where(values.isfinite(), values, torch.inf)  # no bin has an infinity
    return torch.histc(inside, BINS, min=low, max=high)


@contextmanager
def _in_any_order() -> Iterator[None]:
    """Allow `torch.histc` on a GPU: it adds up in any order, which changes no count."""
    forbids = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if not forbids:
        yield
        return
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=warns)
