"""`exported`: the data as Parquet files, written once, read in each epoch.

The stage that trains has no shuffle then, so a lost executor costs no other stage, and any worker
can train on any item.
"""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from gradwire.spark.data.sources import Segment, file_system_of
from gradwire.spark.errors import DataError

logger = logging.getLogger("gradwire.spark")

ITEM_BATCHES: Final = 32
"""Batches of an item: so many steps are lost with a worker, at most, and asking for the next item
takes a round trip."""

ITEMS_PER_WORKER: Final = 4
"""At least so many items for each worker, so that none waits long for the last one."""

READS_AT_ONCE: Final = 16
"""Files whose rows the driver looks up at a time: an object store takes a round trip for each."""

FOLDER: Final = ".gradwire"
"""Below the directory that was named: Spark reads no tables from folders with such names."""


def default_directory(spark: SparkSession) -> str:
    """Return where exports go by default: next to the tables of Spark's warehouse."""
    return spark.conf.get("spark.sql.warehouse.dir") or "spark-warehouse"


@contextmanager
def exported(
    data: DataFrame, directory: str, *, batch: int, partitions: int | None, reuse: bool
) -> Iterator[list[Segment]]:
    """Write the data below a directory, and remove it after the block.

    Parameters
    ----------
    data : DataFrame
        With the columns of `selected`.
    directory : str
        In a file system that all executors share.
    batch : int
        Rows of a batch.
    partitions : int, optional
        Spread the rows over so many partitions first, so that sorted or skewed data is mixed; None
        leaves them where they are.
    reuse : bool
        Whether to take an export of the same data that is there, and to leave this one.

    Raises
    ------
    DataError
        If the driver cannot read there.
    """
    spark, rows = data.sparkSession, ITEM_BATCHES * batch
    name = _content(data, rows, partitions) if reuse else uuid4().hex
    target = f"{directory.rstrip('/')}/{FOLDER}/{name}"
    try:
        if not (reuse and _is_complete(target)):
            spread = data if partitions is None else data.repartition(partitions)
            writer = spread.write.mode("overwrite").option("compression", "zstd")
            writer.option("maxRecordsPerFile", rows).parquet(target)
        yield _counted(spark, target, data.schema)
    finally:
        if not reuse:
            _remove(target)


def items_of(files: Sequence[Segment], *, batch: int, workers: int) -> list[list[Segment]]:
    """Divide files into items of equally many whole batches; the last one may be smaller."""
    total = sum(each.rows for each in files)
    batches = -(-total // batch)
    size = batch * max(1, min(ITEM_BATCHES, batches // (ITEMS_PER_WORKER * workers)))
    items: list[list[Segment]] = []
    room = 0
    for file in files:
        start = 0
        while start < file.rows:
            if not room:
                items.append([])
                room = size
            taken = min(room, file.rows - start)
            items[-1].append(Segment(file.address, start, taken))
            start, room = start + taken, room - taken
    return items


def _counted(spark: SparkSession, target: str, schema: T.StructType) -> list[Segment]:
    """Return the files of an export with their rows, which each file says at its end.

    Spark would need a job for that, which costs the first training of a session a second.
    """
    try:
        files = sorted(spark.read.schema(schema).parquet(target).inputFiles())
        with ThreadPoolExecutor(READS_AT_ONCE) as pool:
            return list(map(Segment, files, repeat(0), pool.map(_rows, files)))
    except (AnalysisException, OSError) as error:
        raise DataError(
            f"the export in {target} cannot be read: exportDirectory has to be in a file system "
            "that driver and executors share, or pass approach='direct'"
        ) from error


def _rows(address: str) -> int:
    """Return how many rows a file has."""
    system, path = file_system_of(address)
    with system.open_input_file(path) as file:
        return int(pyarrow.parquet.read_metadata(file).num_rows)


def _content(data: DataFrame, rows: int, partitions: int | None) -> str:
    """Return a name that is the same for the same data, as far as Spark can tell."""
    files = "\n".join(sorted(data.inputFiles()))
    what = f"{data.semanticHash()}\n{rows}\n{partitions}\n{files}"
    return hashlib.sha256(what.encode()).hexdigest()[:32]


def _is_complete(target: str) -> bool:
    system, path = file_system_of(_with_scheme(target))
    return bool(system.get_file_info(f"{path}/_SUCCESS").type == pa.fs.FileType.File)


def _remove(target: str) -> None:
    try:
        system, path = file_system_of(_with_scheme(target))
        if system.get_file_info(path).type != pa.fs.FileType.NotFound:
            system.delete_dir(path)
        parent = path.rsplit("/", 1)[0]
        if not system.get_file_info(pa.fs.FileSelector(parent, allow_not_found=True)):
            system.delete_dir(parent)
    except (OSError, pa.ArrowException, DataError) as error:
        logger.warning("the exported data in %s was not removed: %s", target, error)


def _with_scheme(path: str) -> str:
    return path if ":" in path.split("/", 1)[0] else f"file://{path}"
