"""Where a task reads what it trains on: exported shards, files of the user's, its own partition.

A source is divided into items, which the master deals out; each is read as batches.
"""

import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
import torch

from gradwire.spark.data.batches import Batch, Decode, batch_of, split
from gradwire.spark.data.columns import Columns
from gradwire.spark.errors import DataError

SPOOL_ROWS: Final = 65_536
"""Rows of a partition that one item has, at most, where a task trains on its own partition."""

SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "gs": "gs"}
"""Names that Hadoop has for what Arrow calls otherwise."""

Order = np.ndarray[tuple[int], np.dtype[np.int64]]


class Source(Protocol):
    """Items of data."""

    def __len__(self) -> int:
        """Return how many items there are."""
        ...

    def batches(self, index: int, rows: int, seed: int | None) -> Iterator[Batch]:
        """Yield the rows of one item, at most so many at once, shuffled by the seed if any."""
        ...


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one exported file."""

    address: str
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class Shards:
    """What `exported` wrote, in items of equally many rows."""

    items: bytes
    """`packed` segments of each item: they go to each task together with its key."""
    columns: Columns
    decode: Decode | None

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._segments())

    def batches(self, index: int, rows: int, seed: int | None) -> Iterator[Batch]:
        """Yield the rows of one item."""
        segments = self._segments()[index]
        parts = [read(each.address).slice(each.start, each.rows) for each in segments]
        where = f"the export, file {segments[0].address.rsplit('/', 1)[-1]}"
        batch = batch_of(pa.concat_tables(parts), self.columns, self.decode, where)
        yield from split(batch, rows, _order(len(batch), seed))

    def _segments(self) -> list[list[Segment]]:
        return [
            [Segment(address, start, rows) for address, start, rows in item]
            for item in json.loads(zlib.decompress(self.items))
        ]


@dataclass(frozen=True, slots=True)
class Paths:
    """Files of the user's, one item each, which a function of the user's reads."""

    items: bytes
    """`packed` paths."""
    loader: Callable[[str], Iterable[Any]]
    """From a path to batches: `Batch`, or ``(inputs, targets)`` of tensors or arrays."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(_paths(self.items))

    def batches(self, index: int, rows: int, seed: int | None) -> Iterator[Batch]:
        """Yield what the function reads; it says itself how many rows at once, in what order."""
        for loaded in self.loader(_paths(self.items)[index]):
            yield batch_from(loaded)


@dataclass(frozen=True, slots=True)
class Tables:
    """Parquet and Arrow files of the user's, one item each."""

    items: bytes
    """`packed` paths."""
    columns: Columns
    decode: Decode | None

    def __len__(self) -> int:
        """Return how many there are."""
        return len(_paths(self.items))

    def batches(self, index: int, rows: int, seed: int | None) -> Iterator[Batch]:
        """Yield the rows of one file."""
        path = _paths(self.items)[index]
        table = table_of(path, [column.name for column in self.columns.all])
        batch = batch_of(table, self.columns, self.decode, path)
        yield from split(batch, rows, _order(len(batch), seed))


class Spool:
    """The partition of one task, on its disk without a name: it is gone with the task."""

    def __init__(
        self,
        partition: Iterable[pa.RecordBatch],
        columns: Columns,
        decode: Decode | None,
        number: int,
    ) -> None:
        self._columns = columns
        self._decode = decode
        self._number = number
        self._counts: list[int] = []
        with tempfile.TemporaryFile() as file:
            writer: pa.ipc.RecordBatchFileWriter | None = None
            for received in partition:
                if writer is None:
                    writer = pa.ipc.new_file(file, received.schema)
                for start in range(0, received.num_rows, SPOOL_ROWS):
                    part = received.slice(start, SPOOL_ROWS)
                    writer.write_batch(part)
                    self._counts.append(part.num_rows)
            if writer is not None:
                writer.close()
                file.flush()
                # What is mapped stays when the file is closed, and is gone with the process.
                self._reader = pa.ipc.open_file(pa.memory_map(f"/proc/self/fd/{file.fileno()}"))

    def __len__(self) -> int:
        """Return how many record batches there are."""
        return len(self._counts)

    @property
    def rows(self) -> int:
        """Rows of the partition."""
        return sum(self._counts)

    def batches(self, index: int, rows: int, seed: int | None) -> Iterator[Batch]:
        """Yield the rows of one record batch."""
        first = sum(self._counts[:index])
        where = f"partition {self._number}" + (f", from row {first} on" if first else "")
        found = self._reader.get_batch(index)
        batch = batch_of(found, self._columns, self._decode, where)
        yield from split(batch, rows, _order(len(batch), seed))


def packed(items: Sequence[object]) -> bytes:
    """Return items as `Shards` and `Paths` take them."""
    return zlib.compress(json.dumps(items).encode())


def read(address: str) -> pa.Table:
    """Return a shard.

    Raises
    ------
    DataError
        If it is not there: the executors do not share the folder.
    """
    system, path = file_system_of(address)
    try:
        return pyarrow.parquet.read_table(path, filesystem=system, partitioning=None)
    except FileNotFoundError:
        raise DataError(
            f"shard {address} is not on host {os.uname().nodename}: exportDirectory has to be in a "
            "file system that all executors share, or pass approach='direct'"
        ) from None


def file_system_of(address: str) -> tuple[pa.fs.FileSystem, str]:
    """Return the file system of an address as Spark writes it, and the path there."""
    scheme, colon, rest = address.partition(":")
    if colon:
        address = f"{SCHEMES.get(scheme, scheme)}:{rest}"
    try:
        system, path = pyarrow.fs.FileSystem.from_uri(address)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"{address}: pyarrow cannot read from there ({error}); pass another exportDirectory, "
            "or approach='direct'"
        ) from error
    return system, path


def batch_from(loaded: Any) -> Batch:
    """Return what a loader yielded as a batch.

    Raises
    ------
    DataError
        If it is none.
    """
    if isinstance(loaded, Batch):
        return loaded
    if isinstance(loaded, tuple | list) and 1 <= len(loaded) <= 3:
        parts = [_tensors(each) for each in loaded]
        targets = parts[1] if len(parts) > 1 else ()
        return Batch(parts[0], targets, parts[2][0] if len(parts) > 2 else None)
    raise DataError(
        f"the loader yields objects of type {type(loaded).__name__}: they have to be Batch, or "
        "(inputs, targets) or (inputs, targets, weights) of tensors or arrays"
    )


def _tensors(value: Any) -> tuple[torch.Tensor, ...]:
    values = value if isinstance(value, tuple | list) else (value,)
    return tuple(torch.as_tensor(each) for each in values)


def table_of(path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return columns of a Parquet or Arrow file, by its name's end; all without `columns`.

    Raises
    ------
    DataError
        If it cannot be read, or has no such column.
    """
    system, place = file_system_of(
        path if ":" in path.split("/", 1)[0] else str(Path(path).absolute())
    )
    try:
        if place.endswith((".arrow", ".feather", ".ipc")):
            with system.open_input_file(place) as file:
                table = pa.ipc.open_file(file).read_all()
            return table if columns is None else table.select(list(columns))
        names = None if columns is None else list(columns)
        table = pyarrow.parquet.read_table(place, columns=names, filesystem=system)
        return table if names is None else table.select(names)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise DataError(
            f"{path} on host {os.uname().nodename}: {error}. Without loader=, fit_paths reads "
            "Parquet files, and Arrow files named .arrow"
        ) from error


def _paths(items: bytes) -> list[str]:
    return json.loads(zlib.decompress(items))  # type: ignore[no-any-return]


def _order(rows: int, seed: int | None) -> Order | None:
    return None if seed is None else np.random.default_rng(seed).permutation(rows)
