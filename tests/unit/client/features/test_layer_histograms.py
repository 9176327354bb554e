"""How values are counted, and of which tensors."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gradwire.features.layer_histograms import SAMPLE, count_into, layers_of
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.logged.histograms import BINS, HISTOGRAM, LAYERS_MAX

SPECIAL = [0.0, -0.0, 1e-45, 3.4e38, -3.4e38, np.nan, np.inf, -np.inf]
VALUES = st.one_of(st.floats(width=32), st.sampled_from(SPECIAL).map(float))


def counted(values: Float32Array) -> Any:
    found = np.zeros(1, HISTOGRAM)
    count_into(found[0], values)
    return found[0]


@given(arrays(np.float32, st.integers(0, 50), elements=VALUES))
def test_every_value_is_counted_once_and_what_is_not_finite_by_itself(values: Float32Array) -> None:
    found, finite = counted(values), values[np.isfinite(values)]

    assert found["nan"] == np.isnan(values).sum()
    assert found["infinite"] == np.isinf(values).sum()
    assert found["bins"].sum() == len(finite)
    if len(finite):
        assert (found["lowest"], found["highest"]) == (finite.min(), finite.max())
        assert found["mean"] == pytest.approx(finite.mean(dtype=float), abs=1e-45)
        assert found["deviation"] == pytest.approx(finite.std(dtype=float), abs=1e-45)
        assert found["bins"][0] > 0
        assert found["bins"][-1] > 0 or finite.min() == finite.max()


def test_bins_are_even() -> None:
    values = np.repeat(np.arange(BINS, dtype=np.float32) + 0.5, np.arange(BINS))
    values = np.concatenate([values, np.array([0, BINS], np.float32)])

    ends = np.eye(BINS, dtype=int)[[0, -1]].sum(axis=0)
    assert (counted(values)["bins"] == np.arange(BINS) + ends).all()


def test_the_largest_tensors_are_looked_at_in_their_order() -> None:
    sizes = [0, 3, *range(1, LAYERS_MAX + 5), 2 * SAMPLE + 1]
    model = Layout(tuple(Tensor(f"{n}", (size,)) for n, size in enumerate(sizes)))
    found = layers_of(model)

    largest = sorted(sizes)[-LAYERS_MAX:]
    assert [tensor.elements for tensor, _ in found] == [s for s in sizes if s in largest]
    assert all(tensor.elements for tensor, _ in found)
    starts = dict(zip(model.tensors, np.cumsum([0, *sizes]).tolist(), strict=False))
    for tensor, part in found:
        looked_at = range(*part.indices(model.elements))
        assert (part.start, part.stop) == (starts[tensor], starts[tensor] + tensor.elements)
        assert min(tensor.elements, SAMPLE // 3) <= len(looked_at) <= SAMPLE
