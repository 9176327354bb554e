"""`Batch`: rows as tensors, made of Arrow's columns without a loop over rows.

Nulls, NaNs and arrays of another width are errors that name column and row.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from gradwire.spark.data.columns import Column, Columns
from gradwire.spark.errors import DataError

Decode = Callable[[bytes], object]
"""From the bytes of one row, such as a picture's, to an array or tensor."""


class Batch(NamedTuple):
    """Some rows; the first axis of each tensor is the row."""

    inputs: tuple[torch.Tensor, ...]
    """One tensor for each column of features: float32, or int64 where the column has integers."""
    targets: tuple[torch.Tensor, ...]
    """One for each column of labels; empty without labels."""
    weights: torch.Tensor | None
    """Float32 of shape (rows,); None without a column of weights."""

    def __len__(self) -> int:
        """Return how many rows these are."""
        return len(self.inputs[0])

    def rows(self, which: torch.Tensor | slice) -> "Batch":
        """Return some of the rows."""
        return Batch(
            tuple(each[which] for each in self.inputs),
            tuple(each[which] for each in self.targets),
            None if self.weights is None else self.weights[which],
        )

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        return Batch(
            tuple(each.to(device) for each in self.inputs),
            tuple(each.to(device) for each in self.targets),
            None if self.weights is None else self.weights.to(device),
        )


def batch_of(
    table: pa.Table | pa.RecordBatch, columns: Columns, decode: Decode | None, where: str
) -> Batch:
    """Return all rows of a table, whose columns are those that `selected` returns.

    Parameters
    ----------
    where : str
        What the rows are of, for errors, such as the name of a file.

    Raises
    ------
    DataError
        If a value is null or NaN, or an array has another width than the others.
    """
    tensors = [
        _tensor(_contiguous(table.column(place)), column, decode, where)
        for place, column in enumerate(columns.all)
    ]
    first, last = len(columns.features), len(columns.features) + len(columns.labels)
    weights = tensors[last] if columns.weight is not None else None
    if weights is not None and bool((weights < 0).any()):
        row = int((weights < 0).nonzero()[0, 0])
        raise _error(columns.all[last], row, where, f"the weight is {weights[row]:g}, below 0")
    return Batch(tuple(tensors[:first]), tuple(tensors[first:last]), weights)


def split(
    batch: Batch, rows: int, order: np.ndarray[tuple[int], np.dtype[np.int64]] | None
) -> Iterator[Batch]:
    """Yield batches of at most so many rows, in that order, all of about the same size.

    So none has a single row, where there are more: BatchNorm cannot train on one.
    """
    parts = max(1, -(-len(batch) // rows))
    places = np.arange(len(batch)) if order is None else order
    for part in np.array_split(places, parts):
        yield batch.rows(torch.from_numpy(part))


def joined(batches: Sequence[Batch]) -> Batch:
    """Return the rows of all batches as one."""
    weights = [each.weights for each in batches if each.weights is not None]
    return Batch(
        tuple(map(torch.cat, zip(*(each.inputs for each in batches), strict=True))),
        tuple(map(torch.cat, zip(*(each.targets for each in batches), strict=True))),
        torch.cat(weights) if weights else None,
    )


def _contiguous(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _tensor(values: pa.Array, column: Column, decode: Decode | None, where: str) -> torch.Tensor:
    if values.null_count:
        row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise _error(column, row, where, "the value is null: drop such rows, or fill them")
    match column.kind:
        case "scalar":
            return _numbers(values, column, where, width=1)
        case "array":
            return _rows_of_arrays(values, column, where)
        case "binary":
            return _decoded(values, column, decode, where)


def _rows_of_arrays(values: pa.Array, column: Column, where: str) -> torch.Tensor:
    widths = pc.list_value_length(values).to_numpy(zero_copy_only=False)
    expected = column.width if column.width is not None else int(widths[0]) if len(widths) else 0
    wrong = np.flatnonzero(widths != expected)
    if len(wrong):
        row = int(wrong[0])
        said = f"the array has {widths[row]} elements, where others have {expected}"
        raise _error(column, row, where, said)
    return _numbers(values.flatten(), column, where, expected).reshape(len(values), expected)


def _numbers(values: pa.Array, column: Column, where: str, width: int) -> torch.Tensor:
    if values.null_count:
        place = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise _error(column, place // width, where, f"element {place % width} is null")
    found = values.to_numpy(zero_copy_only=False)
    if not column.is_integer:
        bad = np.flatnonzero(~np.isfinite(found))
        if len(bad):
            row, element = divmod(int(bad[0]), width)
            what = f"element {element}" if column.kind == "array" else "the value"
            said = f"{what} is {found[bad[0]]}: drop such rows, or fill them"
            raise _error(column, row, where, said)
    # A copy: Arrow's memory must not be written to, and a tensor of it could be.
    return torch.from_numpy(np.array(found, np.int64 if column.is_integer else np.float32))


def _decoded(values: pa.Array, column: Column, decode: Decode | None, where: str) -> torch.Tensor:
    tensors: list[torch.Tensor] = []
    for row, value in enumerate(values):
        content = value.as_py()
        decoded = (
            torch.frombuffer(bytearray(content), dtype=torch.uint8)
            if decode is None
            else torch.as_tensor(decode(content))
        )
        if tensors and decoded.shape != tensors[0].shape:
            raise _error(
                column,
                row,
                where,
                f"the shape is {tuple(decoded.shape)}, where others have "
                f"{tuple(tensors[0].shape)}: pass decode=, which makes arrays of one shape",
            )
        tensors.append(decoded)
    return torch.stack(tensors) if tensors else torch.empty(0)


def _error(column: Column, row: int, where: str, said: str) -> DataError:
    return DataError(f"column {column.name!r}, row {row} of {where}: {said}")
