"""Buffers: what is averaged, how it travels, and what is refused."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import NonFiniteError, UsageError
from gradwire.target.buffers import check_finite, check_size
from gradwire_protocol.limits import BUFFERS_BYTES_MAX
from gradwire_protocol.messages.buffers.agreement import mean_of
from gradwire_protocol.messages.buffers.layout import (
    BufferLayout,
    Buffers,
    BufferTensor,
    BufferValues,
)
from support.wording import naming

VAR = BufferTensor("norm.running_var", (2, 2), "float")
SCALE = BufferTensor("scale", (), "float")
BATCHES = BufferTensor("norm.num_batches_tracked", (), "torch.int64")
LAYOUT = BufferLayout((VAR, SCALE), (BATCHES,), float_bytes=4)

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(2**63), 2**63 - 1)


def values_of(floats: Sequence[float], *integers: int, width: int = 4) -> BufferValues:
    wide = np.array(floats, np.float64)
    return BufferValues(
        wide if width == 8 else wide.astype(np.float32), np.array(integers, np.int64)
    )


def rows(element: st.SearchStrategy[float]) -> st.SearchStrategy[list[list[float]]]:
    """Draw the values of several workers, equally many of each."""
    size = st.shared(st.integers(1, 4), key="size")
    row = size.flatmap(lambda n: st.lists(element, min_size=n, max_size=n))
    return st.lists(row, min_size=1, max_size=9)


# The mean.


@pytest.mark.parametrize(("values", "width"), [(FLOATS, 4), (DOUBLES, 8)], ids=["32", "64"])
@given(data=st.data())
def test_a_mean_is_never_outside_the_range_of_what_is_averaged(
    values: st.SearchStrategy[float], width: int, data: st.DataObject
) -> None:
    """Not even where the sum is none."""
    drawn = data.draw(rows(values))
    mean = mean_of([values_of(row, width=width) for row in drawn]).floats

    array = np.array(drawn, f"f{width}")
    assert mean.dtype == array.dtype
    assert (array.min(axis=0) <= mean).all()
    assert (mean <= array.max(axis=0)).all()


@given(row=st.lists(FLOATS, min_size=1, max_size=5), wide=st.booleans(), times=st.integers(1, 40))
def test_what_is_equal_everywhere_stays_bit_for_bit(
    row: list[float], wide: bool, times: int
) -> None:
    values = values_of([x / 3 for x in row], width=8) if wide else values_of(row)

    assert mean_of([values] * times).floats.tobytes() == values.floats.tobytes()


@given(drawn=rows(st.floats(-1e6, 1e6, width=32)))
def test_it_is_the_mean_to_the_rounding_of_a_float32(drawn: list[list[float]]) -> None:
    mean = mean_of([values_of(row) for row in drawn]).floats

    expected = [sum(column) / len(column) for column in zip(*drawn, strict=True)]
    np.testing.assert_allclose(mean, expected, rtol=1e-7, atol=1e-9)


@given(drawn=st.lists(st.tuples(INTEGERS, INTEGERS), min_size=1, max_size=9))
def test_of_integers_everyone_takes_the_largest(drawn: list[tuple[int, int]]) -> None:
    mean = mean_of([values_of([], *pair) for pair in drawn])

    assert mean.integers.tolist() == [max(column) for column in zip(*drawn, strict=True)]


@given(drawn=rows(FLOATS))
def test_nothing_is_written_to_what_is_averaged(drawn: list[list[float]]) -> None:
    values = [values_of(row) for row in drawn]
    before = [each.floats.copy() for each in values]

    mean_of(values)

    assert all(map(np.array_equal, before, [each.floats for each in values]))


# On their way.


@given(
    floats=st.lists(FLOATS, min_size=5, max_size=5), count=INTEGERS, final=st.booleans(),
    rank=st.integers(0, 4000),
)  # fmt: skip
def test_values_are_read_as_they_were_packed(
    floats: list[float], count: int, final: bool, rank: int
) -> None:
    values = values_of(floats, count)

    sent = Buffers.parse(LAYOUT.pack_values(rank, values, final=final).pack())

    assert (sent.rank, sent.final) == (rank, final)
    received = LAYOUT.unpack(sent)
    assert received is not None
    assert received.floats.tobytes() == values.floats.tobytes()
    assert received.equals(values)


@pytest.mark.parametrize(
    "other",
    [
        BufferLayout((VAR, SCALE), (), 4),
        BufferLayout((SCALE, VAR), (BATCHES,), 4),
        BufferLayout((VAR, SCALE), (BATCHES,), 8),
        BufferLayout((BufferTensor("norm.other", (2, 2), "float"), SCALE), (BATCHES,), 4),
        BufferLayout((BufferTensor("norm.running_var", (4,), "float"), SCALE), (BATCHES,), 4),
        BufferLayout(
            (VAR, SCALE), (BufferTensor("norm.num_batches_tracked", (), "torch.int32"),), 4
        ),
    ],
    ids=["fewer", "order", "width", "name", "shape", "type"],
)
def test_those_of_another_layout_are_of_no_use(other: BufferLayout) -> None:
    values = values_of([1.0] * 5, *[7] * len(other.integers), width=other.float_bytes)

    assert other.packed != LAYOUT.packed
    assert LAYOUT.unpack(other.pack_values(1, values, final=False)) is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_of_no_use(value: float) -> None:
    sent = LAYOUT.pack_values(1, values_of([1, 2, value, 4, 5], 7), final=False)

    assert LAYOUT.unpack(sent) is None


def test_fewer_values_than_the_layout_has_are_of_no_use() -> None:
    sent = LAYOUT.pack_values(1, values_of([1, 2, 3, 4], 7), final=False)

    assert LAYOUT.unpack(sent) is None


# What is refused.


@pytest.mark.parametrize(
    ("at", "where"),
    [(0, "norm.running_var[0, 0]"), (3, "norm.running_var[1, 1]"), (4, "scale")],
)
def test_a_buffer_that_is_not_finite_is_named(at: int, where: str) -> None:
    floats = [1.0] * 5
    floats[at] = np.nan

    with pytest.raises(NonFiniteError, match=naming("buffer", where, "nan")):
        check_finite(LAYOUT, values_of(floats, 7))
    check_finite(LAYOUT, values_of([1.0] * 5, 7))


def test_buffers_that_no_message_holds_are_refused_with_the_largest_of_them() -> None:
    described = len(BufferLayout((BufferTensor("table", (2**20,), "float"),), (), 4).packed)
    elements = (BUFFERS_BYTES_MAX - described) // 4
    fits = BufferLayout((BufferTensor("table", (elements,), "float"),), (), 4)
    one_more = BufferLayout((*fits.floats, SCALE), (BATCHES,), 4)

    check_size(fits)
    size = sum(one_more.sizes) + len(one_more.packed)
    sizes = ("3 buffers", size, BUFFERS_BYTES_MAX, f"'table' ({elements},)")
    with pytest.raises(UsageError, match=naming(*sizes, "share_buffers=False")):
        check_size(one_more)
