"""Executors whose memory is limited, and whose home cannot be written to."""

from pathlib import Path

import pytest
from torch import nn

from gradwire.spark import TorchEstimator, WorkerFailedError
from support import spark_models
from support.spark import cluster, digits
from support.wording import naming

pytestmark = [
    pytest.mark.usefixtures("spark"),  # one virtual machine of Java for all modules of a process
]


def estimator() -> TorchEstimator:
    return TorchEstimator(
        model=spark_models.digits_model,
        loss=nn.CrossEntropyLoss(),
        optimizer=spark_models.adam,
    )


def test_2_gib_are_enough_and_a_home_that_is_read_only(spark: object, tmp_path: Path) -> None:
    spark.stop()  # type: ignore[attr-defined]
    settings = {"spark__executor__pyspark__memory": "2g", "spark__executorEnv__HOME": "/proc"}
    with cluster(tmp_path, **settings) as limited:
        assert estimator().fit(digits(limited)).summary.rows == 1797


def test_too_little_memory_is_named(spark: object, tmp_path: Path) -> None:
    spark.stop()  # type: ignore[attr-defined]  # else its limits would hold
    with (
        cluster(tmp_path, spark__executor__pyspark__memory="600m") as limited,
        pytest.raises(WorkerFailedError) as failed,
    ):
        estimator().fit(digits(limited))

    assert str(failed.value) == naming("spark.executor.pyspark.memory", "2g")
