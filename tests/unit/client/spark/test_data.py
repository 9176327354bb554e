"""Rows as batches, files as items, and functions as import paths: without a cluster."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="Spark is not installed: make frameworks")

import pyarrow as pa
import torch
from torch import nn

from gradwire import UsageError
from gradwire.spark import Batch, DataError
from gradwire.spark.data.batches import batch_of, split
from gradwire.spark.data.columns import Column, Columns
from gradwire.spark.data.export import ITEM_BATCHES, items_of
from gradwire.spark.data.sources import Segment, Spool, batch_from
from gradwire.spark.recipe import Recipe, described, loaded, made_of
from support.wording import naming

FEATURES = Column("features", "array", is_integer=False, width=2)
LABEL = Column("label", "scalar", is_integer=True)
COLUMNS = Columns((FEATURES,), (LABEL,), None)


def table(rows: list[list[float] | None], labels: list[int | None] | None = None) -> pa.RecordBatch:
    names = ["c0", "c1"]
    values = labels if labels is not None else list(range(len(rows)))
    arrays = [pa.array(rows, pa.list_(pa.float32())), pa.array(values, pa.int64())]
    return pa.record_batch(arrays, names=names)


@given(
    rows=st.lists(st.integers(1, 200), min_size=1, max_size=20),
    batch=st.integers(1, 64),
    workers=st.integers(1, 16),
)
def test_items_have_each_row_once_in_whole_batches(
    rows: list[int], batch: int, workers: int
) -> None:
    files = [Segment(f"file-{place}", 0, count) for place, count in enumerate(rows)]

    items = items_of(files, batch=batch, workers=workers)

    covered = [(s.address, s.start + k) for item in items for s in item for k in range(s.rows)]
    assert covered == [(file.address, k) for file in files for k in range(file.rows)]
    sizes = [sum(segment.rows for segment in item) for item in items]
    assert all(size == sizes[0] and size % batch == 0 for size in sizes[:-1])
    assert max(sizes) <= ITEM_BATCHES * batch


@given(count=st.integers(1, 300), rows=st.integers(1, 64), seed=st.none() | st.integers(0, 9))
def test_batches_have_each_row_once_and_about_the_same_size(
    count: int, rows: int, seed: int | None
) -> None:
    batch = Batch((torch.arange(count),), (), None)
    order = None if seed is None else np.random.default_rng(seed).permutation(count)

    parts = [part.inputs[0].tolist() for part in split(batch, rows, order)]

    assert sorted(row for part in parts for row in part) == list(range(count))
    sizes = {len(part) for part in parts}
    assert max(sizes) <= rows
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("rows", "labels", "said"),
    [
        ([[1.0, 2.0], None], None, naming("'features'", "row 1 of here", "null")),
        ([[1.0, 2.0], [1.0]], None, naming("'features'", "row 1 of here", "1 elements", "2")),
        ([[1.0, float("inf")]], None, naming("'features'", "row 0 of here", "element 1", "inf")),
        ([[1.0, 2.0]] * 2, [1, None], naming("'label'", "row 1 of here", "null")),
    ],
)
def test_a_bad_value_is_named_with_its_column_and_row(
    rows: Any, labels: list[int | None] | None, said: str
) -> None:
    with pytest.raises(DataError) as failed:
        batch_of(table(rows, labels), COLUMNS, None, "here")

    assert str(failed.value) == said


def test_a_slice_of_a_table_has_its_own_rows() -> None:
    """Arrow's arrays of a slice share the memory of the whole."""
    whole = table([[float(k), float(-k)] for k in range(6)])

    batch = batch_of(whole.slice(2, 3), COLUMNS, None, "here")

    assert batch.inputs[0].tolist() == [[2, -2], [3, -3], [4, -4]]
    assert batch.targets[0].tolist() == [2, 3, 4]


def test_a_spooled_partition_is_read_as_it_came() -> None:
    parts = [table([[1.0, 2.0], [3.0, 4.0]]), table([[5.0, 6.0]])]

    spool = Spool(parts, COLUMNS, None, 7)

    assert (len(spool), spool.rows) == (2, 3)
    read = [b.inputs[0].tolist() for k in range(2) for b in spool.batches(k, 10, None)]
    assert read == [[[1, 2], [3, 4]], [[5, 6]]]
    assert Spool([], COLUMNS, None, 7).rows == 0


def test_what_a_loader_yields_is_a_batch_or_an_error() -> None:
    assert batch_from((np.ones((2, 3)), np.zeros(2))).targets[0].tolist() == [0, 0]
    with pytest.raises(DataError) as failed:
        batch_from("rows")
    assert str(failed.value) == naming("str", "Batch")


@pytest.mark.parametrize(
    "value",
    [
        nn.functional.mse_loss,
        partial(torch.optim.Adam, lr=0.5),
        nn.CrossEntropyLoss(label_smoothing=0.25),
        "package.module:function",
        None,
    ],
)
def test_what_has_an_import_path_is_made_of_it_again(value: Any) -> None:
    made = made_of(described(value, "it"))

    if isinstance(value, partial):
        assert (made.func, made.keywords) == (value.func, value.keywords)
    elif isinstance(value, nn.Module):
        assert (type(made), repr(made)) == (type(value), repr(value))
    else:
        assert made in (value, "torch.nn.functional:mse_loss")


def test_a_saved_model_calls_nothing_but_modules_when_it_is_loaded() -> None:
    with pytest.raises(UsageError) as failed:
        made_of({"call": "os:getcwd", "arguments": {}})

    assert str(failed.value) == naming("'os:getcwd'")


def test_a_module_is_sent_without_its_parameters_and_has_their_shapes() -> None:
    model = nn.Sequential(nn.Linear(1000, 100), nn.BatchNorm1d(100))
    recipe = Recipe(model, nn.MSELoss(), None, None, 0)

    content = recipe.dumped()

    assert len(content) < 20_000
    made = loaded(content).make_model()
    assert [p.shape for p in made.parameters()] == [p.shape for p in model.parameters()]
    assert made(torch.ones(4, 1000)).shape == (4, 100)


@pytest.mark.parametrize(
    "loss", [nn.functional.mse_loss, lambda outputs, targets: ((outputs - targets) ** 2).mean()]
)
def test_losses_of_rows_have_the_loss_as_their_mean(loss: Any) -> None:
    """Of shapes (n, 1) and (n,), which a loss alone would take for a matrix of pairs."""
    outputs, targets = torch.randn(5, 1), torch.randn(5)
    recipe = Recipe(None, loss, None, None, 0)

    losses = recipe.losses_of(outputs, Batch((outputs,), (targets,), None))

    expected = float(((outputs[:, 0] - targets) ** 2).mean())
    assert losses.shape == (5,)
    assert float(losses.mean()) == pytest.approx(expected)
