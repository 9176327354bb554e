"""Clusters of Spark that tests start, and the data they train on."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from sklearn.datasets import load_digits

from support.processes import with_tests

EXECUTORS: Final = 2

ONE_EXECUTOR: Final = "local-cluster[1,1,1024]"
"""A master of Spark for tests that need a cluster of their own, and no second worker."""

SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Java for processes that end soon: it compiles less well, in half the time."""

HELD_OUT: Final = 5
"""Every so manieth row is held out."""


@contextmanager
def cluster(folder: Path, master: str | None = None, **settings: str) -> Iterator[SparkSession]:
    """Start a cluster of real executors, processes of their own; end it after the block.

    Parameters
    ----------
    folder : Path
        For all that Spark writes.
    master : str, optional
        Of a cluster that runs; by default one of this process's own, with `EXECUTORS` executors.
    **settings
        More of Spark's, with ``__`` in place of dots.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master or f"local-cluster[{EXECUTORS},1,1024]")
    more = {name.replace("__", "."): value for name, value in settings.items()}
    for name, value in (settings_in(folder) | more).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def settings_in(folder: Path) -> dict[str, str]:
    """Return settings with which Spark writes into a folder, and executors find our modules."""
    for name in ("local", "events"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.executorEnv.PYTHONPATH": with_tests()["PYTHONPATH"],
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
    }


def digits(spark: SparkSession) -> DataFrame:
    """Return scikit-learn's digits: `features`, `label`, and whether a row is `held_out`."""
    found = load_digits()
    rows = [
        (pixels.tolist(), int(label), place % HELD_OUT == 0)
        for place, (pixels, label) in enumerate(zip(found.data / 16, found.target, strict=True))
    ]
    schema = "features array<float>, label int, held_out boolean"
    return spark.createDataFrame(rows, schema).repartition(2).persist()


def line(spark: SparkSession, rows: int = 64) -> DataFrame:
    """Return rows of two features, and a label that is a linear function of them."""
    numbers = np.random.default_rng(0).normal(size=(rows, 2))
    values = [([float(x), float(y)], float(2 * x - y)) for x, y in numbers]
    return spark.createDataFrame(values, "features array<double>, label double")


def files_with(folder: Path, text: str) -> list[Path]:
    """Return the files below a folder in which a text is."""
    wanted = text.encode()
    return [f for f in folder.rglob("*") if f.is_file() and wanted in f.read_bytes()]
