"""A target in parts: they cover it, and each does to its range what the target does to all."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import UsageError
from gradwire.target.parameters import NumpyParameters
from gradwire.target.part import UNITS, UNITS_MIN, Part, cut, layout_of_part, parts_of
from gradwire_codecs import Replica
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.admission import WEIGHT_MAX
from gradwire_protocol.messages.fields import BLOCK_ELEMENTS
from gradwire_protocol.messages.layout import NAME_CHARACTERS_MAX, Layout, Tensor

counts = st.integers(1, 9)


@given(st.integers(1, 10**9), st.lists(st.integers(1, WEIGHT_MAX), min_size=1, max_size=9))
def test_ranges_cover_a_vector_in_proportion_to_weights(elements: int, weights: list[int]) -> None:
    share = elements * min(weights) // sum(weights)
    if not share:
        with pytest.raises(UsageError, match=f"{elements} parameters .* {len(weights)} masters"):
            cut(elements, weights)
        return

    spans = cut(elements, weights)

    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert spans[-1].stop == elements
    unit = next((each for each in UNITS if share >= UNITS_MIN * each), 1)
    assert not any(span.start % unit for span in spans)
    for span, weight in zip(spans, weights, strict=True):
        size = span.stop - span.start
        assert size >= 1
        assert abs(size - elements * weight / sum(weights)) <= 1 + unit


def test_a_large_vector_is_cut_at_blocks_of_a_replica() -> None:
    assert not any(span.start % BLOCK_ELEMENTS for span in cut(124_000_000, [1, 1, 1]))


layouts = st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=5).map(
    lambda shapes: Layout(tuple(Tensor(f"t{i}", tuple(shape)) for i, shape in enumerate(shapes)))
)


@given(layouts, counts)
def test_the_tensors_of_parts_are_those_of_the_whole_in_order(layout: Layout, count: int) -> None:
    if layout.elements < count:
        return
    found: dict[str, list[str]] = {}
    for span in cut(layout.elements, [1] * count):
        part = layout_of_part(layout, span)
        assert part.elements == span.stop - span.start
        for i in range(part.elements):
            found.setdefault(layout.locate(span.start + i).partition("[")[0], []).append(
                part.locate(i)
            )

    for tensor in layout.tensors:
        named = found.get(tensor.name, [])
        assert len(named) == tensor.elements
        assert all(each.startswith(tensor.name) for each in named)
        assert len(set(named)) == prod(tensor.shape)


def test_a_name_that_would_be_too_long_is_refused() -> None:
    layout = Layout((Tensor("w" * NAME_CHARACTERS_MAX, (10,)),))

    with pytest.raises(UsageError, match=f"the limit is {NAME_CHARACTERS_MAX}"):
        layout_of_part(layout, slice(0, 5))


def halves(values: Float32Array) -> tuple[Part, Part]:
    one, other = parts_of(NumpyParameters(values), [1, 1])
    return one, other


def test_a_part_is_its_range_of_the_target() -> None:
    values = np.arange(7, dtype=np.float32)
    one, other = halves(values)

    other.set(np.array([9, 8], np.float32), slice(1, 3))
    feedback = other.feedback(Replica.zeros(4), portion=1.0, threads=1)
    feedback.drop_residual()

    assert one.vector.tolist() == [0, 1, 2]
    assert values.tolist() == [0, 1, 2, 0, 0, 0, 0]
    one.set(np.full(3, 5, np.float32))
    assert values.tolist() == [5, 5, 5, 0, 0, 0, 0]


class Changing(NumpyParameters):
    """An array that says that it has changed once, and has a gradient once."""

    def __init__(self, values: Float32Array) -> None:
        super().__init__(values)
        self.news = True
        self.gradient: Float32Array | None = None

    def changed(self) -> bool:
        news, self.news = self.news, False
        return news

    def take_gradient(self) -> Float32Array | None:
        gradient, self.gradient = self.gradient, None
        return gradient


def test_each_part_hears_once_of_a_change() -> None:
    one, other = parts_of(target := Changing(np.zeros(4, np.float32)), [1, 1])

    assert [one.changed(), one.changed(), other.changed(), other.changed()] == [True, False] * 2
    target.news = True
    assert [other.changed(), other.changed(), one.changed()] == [True, False, True]


def test_each_part_gets_its_range_of_every_gradient() -> None:
    one, other = parts_of(target := Changing(np.zeros(4, np.float32)), [1, 1])

    def taken(part: Part) -> list[float] | None:
        gradient = part.take_gradient()
        return None if gradient is None else gradient.tolist()

    assert (taken(one), taken(other)) == (None, None)
    target.gradient = np.array([1, 2, 3, 4], np.float32)
    assert (taken(one), taken(one), taken(other)) == ([1, 2], None, [3, 4])
    target.gradient = np.array([1, 2, 3, 4], np.float32)
    assert taken(one) == [1, 2]
    target.gradient = np.array([5, 5, 5, 5], np.float32)
    assert taken(one) == [5, 5]
    assert taken(other) == [8, 9], "what it has not taken is added up"
