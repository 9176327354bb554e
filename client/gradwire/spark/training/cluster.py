"""What Spark says of the cluster, and of the input: slots, cores of a task, determinism."""

from typing import Any

import pyspark.resource
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gradwire.errors import UsageError
from gradwire.spark.errors import DataError
from gradwire.spark.training.addresses import is_connect


def slots(spark: SparkSession) -> int:
    """Return how many tasks the cluster runs at once, as far as Spark knows."""
    if not is_connect(spark):
        return max(1, int(spark.sparkContext.defaultParallelism))
    rows = spark.range(1024).select(F.spark_partition_id()).collect()  # needs no shuffle
    return len({row[0] for row in rows})


def profile_of(spark: SparkSession, workers: int | None) -> Any:
    """Return a profile with which so many tasks run on an executor."""
    if workers is None:
        return None
    cores = spark.conf.get("spark.executor.cores", None)
    if cores is None:
        raise UsageError(
            f"workersPerNode={workers}: set spark.executor.cores, so that it is known how many "
            "cores each worker gets"
        )
    cpus = int(cores) // workers
    if not cpus:
        raise UsageError(f"workersPerNode={workers}: executors have {cores} cores")
    requests = pyspark.resource.TaskResourceRequests().cpus(cpus)
    return pyspark.resource.ResourceProfileBuilder().require(requests).build


def registered(spark: SparkSession, profile: Any) -> Any:
    """Return the profile, once Spark Connect has given it a number.

    It asks the session of the thread that wants to know first; threads of jobs have none.
    """
    if profile is not None and is_connect(spark):
        _ = profile.id
    return profile


def check_determinate(data: DataFrame, *, spread: bool) -> None:
    """Refuse input that differs from one evaluation to the next, where Spark says so."""
    frame = getattr(data, "_jdf", None)
    if frame is None:
        return  # on Spark Connect it is known when an executor is lost
    execution = frame.queryExecution()
    is_shuffled = spread or "Exchange" in execution.executedPlan().toString()
    if is_shuffled and not execution.analyzed().deterministic():
        raise DataError(
            "approach='direct': the input is another one each time it is computed, as with rand() "
            "before a repartition, so a lost executor would end the training: pass "
            "approach='export', or write the data to a table first"
        )
