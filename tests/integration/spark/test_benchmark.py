"""Benchmark `spark` runs to its end, with sizes whose figures mean nothing."""

from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import spark as benchmark


def test_a_training_is_measured_beside_spark_s_own_means(
    spark: SparkSession, tmp_path: Path
) -> None:
    figures = {each.figure: each for each in benchmark.measured(spark, tmp_path, benchmark.QUICK)}

    assert {"whole job", "training", "accuracy", "sent with DDP"} <= figures.keys()
    assert figures["accuracy"].value > 0
