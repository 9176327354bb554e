"""How values are distributed: arrays, and tensors as on a device."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gradwire.target.distributions import histograms_of, joined
from gradwire_protocol.messages.operating.histograms import BINS

VALUES = arrays.arrays(
    np.float32, st.integers(1, 300), elements=st.floats(width=32, allow_subnormal=False)
)


def tensors(samples: list[Any]) -> list[torch.Tensor]:
    return [torch.from_numpy(sample) for sample in samples]


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_a_histogram_has_every_value_once(samples: list[Any]) -> None:
    for found, values in zip(histograms_of(samples), samples, strict=True):
        finite = values[np.isfinite(values)].astype(np.float64)
        assert found["nan"] == np.isnan(values).sum()
        assert found["infinite"] == np.isinf(values).sum()
        assert found["bins"].sum() == len(finite)
        if len(finite):
            assert (found["lowest"], found["highest"]) == (finite.min(), finite.max())
            assert found["mean"] == pytest.approx(finite.mean(), rel=1e-9, abs=1e-30)
            assert found["deviation"] == pytest.approx(finite.std(), rel=1e-9, abs=1e-30)
        else:
            assert not any(found[name] for name in ("lowest", "highest", "mean", "deviation"))


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_a_device_counts_what_the_host_counts(samples: list[Any]) -> None:
    here, there = histograms_of(samples), histograms_of(tensors(samples))

    for name in ("nan", "infinite", "lowest", "highest"):
        assert here[name].tolist() == there[name].tolist()
    for name in ("mean", "deviation"):
        np.testing.assert_allclose(there[name], here[name], rtol=1e-6, atol=1e-30)
    assert here["bins"].sum(axis=1).tolist() == there["bins"].sum(axis=1).tolist()


@pytest.mark.parametrize("kind", [list, tensors])
def test_bins_are_of_one_width(kind: Any) -> None:
    values = np.random.default_rng(1).normal(0, 1, 100_000).astype(np.float32)

    [found] = histograms_of(kind([values]))

    expected, _ = np.histogram(values.astype(np.float64), BINS)
    # A value at the border of two may be in either, as it is rounded.
    assert abs(found["bins"].astype(np.int64) - expected).sum() <= 20


@pytest.mark.parametrize("kind", [list, tensors])
def test_equal_values_are_in_the_first_bin_and_the_highest_in_the_last(kind: Any) -> None:
    equal, two = np.full(7, 3.0, np.float32), np.array([1, 2], np.float32)

    found = histograms_of(kind([equal, two]))

    assert found["bins"][0].tolist() == [7] + [0] * (BINS - 1)
    assert found["bins"][1].tolist() == [1] + [0] * (BINS - 2) + [1]


def test_a_script_that_wants_the_same_bits_every_time_gets_histograms_too() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        [found] = histograms_of([torch.arange(10.0)])
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert found["bins"].sum() == 10


@pytest.mark.parametrize("kind", [list, tensors])
def test_pieces_become_one(kind: Any) -> None:
    pieces = kind([np.arange(3, dtype=np.float32), np.arange(2, dtype=np.float32)])

    assert joined(pieces).tolist() == [0, 1, 2, 0, 1]
