"""Executors whose memory is limited, and whose home cannot be written to.

The tests end the cluster of all others, and are last (`conftest.py`).
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from torch import nn

from gradwire.spark import TorchEstimator, WorkerFailedError
from support import spark_models
from support.spark import ONE_EXECUTOR, cluster, line
from support.wording import naming


def estimator() -> TorchEstimator:
    return TorchEstimator(model=spark_models.linear, loss=nn.MSELoss(), optimizer=spark_models.adam)


def test_2_gib_are_enough_and_a_home_that_is_read_only(spark: SparkSession, tmp_path: Path) -> None:
    spark.stop()  # a process has one virtual machine of Java, and that one cluster
    settings = {"spark__executor__pyspark__memory": "2g", "spark__executorEnv__HOME": "/proc"}
    with cluster(tmp_path, ONE_EXECUTOR, **settings) as limited:
        assert estimator().fit(line(limited)).summary.rows == 64


def test_too_little_memory_is_named(spark: SparkSession, tmp_path: Path) -> None:
    spark.stop()
    with (
        cluster(tmp_path, ONE_EXECUTOR, spark__executor__pyspark__memory="600m") as limited,
        pytest.raises(WorkerFailedError) as failed,
    ):
        estimator().fit(line(limited))

    assert str(failed.value) == naming("spark.executor.pyspark.memory", "2g")
