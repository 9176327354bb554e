"""Which tensors are looked at, which of their elements, and by what names."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradwire.features.layer_histograms import (
    SAMPLE,
    ResidualOfParts,
    layers_of,
    ratios_of,
    series_of,
)
from gradwire.target.distributions import histograms_of
from gradwire_codecs import LocalFeedback, Replica
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.operating.histograms import LAYERS_MAX
from gradwire_protocol.messages.operating.scalars import SERIES_NAME_CHARACTERS_MAX


def model(*sizes: int) -> Layout:
    return Layout(tuple(Tensor(f"{at}.weight", (size,)) for at, size in enumerate(sizes)))


def test_the_largest_tensors_are_looked_at_in_their_order() -> None:
    sizes = [7, 0, *range(1, 2 * LAYERS_MAX)]

    layers = layers_of(model(*sizes))

    assert len(layers) == LAYERS_MAX
    assert [layer.elements for layer in layers] == list(range(LAYERS_MAX, 2 * LAYERS_MAX))
    for layer in layers:
        number = int(layer.name.partition(".")[0])
        assert layer.elements == sizes[number]
        start = sum(sizes[:number])
        assert layer.where == slice(start, start + sizes[number], 1)
    assert [layer.name for layer in layers_of(model(3, 0, 5))] == ["0.weight", "2.weight"]


@given(st.integers(SAMPLE + 1, 2**31 - 1))
def test_of_a_large_tensor_a_sample_is_looked_at(elements: int) -> None:
    [layer] = layers_of(model(elements))

    looked_at = len(range(*layer.where.indices(elements)))
    assert SAMPLE // 3 <= looked_at <= SAMPLE
    assert layer.where.step % 2, "so that not all are of a few columns of a matrix"


@given(st.data())
def test_the_residual_of_parts_is_that_of_the_whole(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    total = sum(sizes)
    values: Float32Array = np.arange(total, dtype=np.float32) / np.float32(8)
    parts, at = [], 0
    for size in sizes:
        feedback = LocalFeedback(values[at : at + size].copy(), Replica.zeros(size, -24))
        parts.append((feedback, size))
        at += size
    start = data.draw(st.integers(0, total - 1))
    where = slice(start, data.draw(st.integers(start + 1, total)), data.draw(st.integers(1, 5)))

    assert ResidualOfParts(parts)(where).tolist() == values[where].tolist()


def test_a_ratio_is_that_of_the_norms_and_zeros_have_none() -> None:
    parameters = [np.array([3, -4], np.float32), np.zeros(2, np.float32), np.ones(1, np.float32)]
    updates = [np.array([0.5, 0], np.float32), np.ones(2, np.float32), np.zeros(1, np.float32)]

    found = ratios_of(["a", "b", "c"], histograms_of(parameters), histograms_of(updates))

    assert found == {"gradwire/update_ratio/a": 0.1, "gradwire/update_ratio/c": 0.0}


def test_of_a_long_name_the_end_is_kept() -> None:
    long = ".".join(map(str, range(100))) + ".weight"

    assert series_of("0.weight") == "gradwire/update_ratio/0.weight"
    assert len(series_of(long)) == SERIES_NAME_CHARACTERS_MAX
    assert series_of(long).startswith("gradwire/update_ratio/…")
    assert series_of(long).endswith("98.99.weight")
