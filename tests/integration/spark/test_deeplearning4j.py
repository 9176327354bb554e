"""What docs/spark-from-deeplearning4j.md names in place of Deeplearning4j's settings works.

The rows that other tests train with are not here: fit_paths, direct, checkpoints, early stopping,
saving, statistics.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn
from torchmetrics import MeanSquaredError
from torchmetrics.classification import BinaryAUROC

import gradwire
from gradwire import Averaging, RefusedError
from gradwire.spark import TorchEstimator, TorchModel
from gradwire_udp.files.keys import write_key
from support import spark_models
from support.spark import EXECUTORS, line

ROWS = 64
EPOCHS = 8


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return line(spark, ROWS).persist()


def estimator(**parameters: Any) -> TorchEstimator:
    values = {
        "model": spark_models.linear,
        "loss": nn.MSELoss(),
        "optimizer": spark_models.quick_adam,
        "batchSize": 4,
        "epochs": EPOCHS,
        **parameters,
    }
    return TorchEstimator(**values)


def check_trained(model: TorchModel, frame: DataFrame) -> None:
    """Check that all rows were trained on, and that it has helped."""
    assert model.summary is not None
    assert model.summary.rows == EPOCHS * ROWS
    table = frame.toArrow()
    inputs = torch.tensor(table["features"].to_pylist())
    labels = torch.tensor(table["label"].to_pylist()).reshape(-1, 1)
    torch.manual_seed(0)  # as the estimator's seed
    untrained = spark_models.linear()
    with torch.no_grad():
        before, after = (
            float(nn.functional.mse_loss(each(inputs), labels))
            for each in (untrained, model.module)
        )
    assert after < before


SETTINGS: dict[str, dict[str, Any]] = {
    "SharedTrainingMaster": {
        "join": {
            "density_band": (1e-4, 1e-2),
            "transport": "tcp",
        },
        "workersPerNode": 1,
        "networkMask": "127.0.0.0/8",
        "repartition": False,
    },
    "averagingFrequency, saveUpdater": {"mode": Averaging(every=5, optimizer_state=True)},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_trains(frame: DataFrame, name: str) -> None:
    check_trained(estimator(**SETTINGS[name]).fit(frame), frame)


def test_a_master_that_runs_already_is_trained_with(frame: DataFrame, tmp_path: Path) -> None:
    file, token_file = tmp_path / "run.key", tmp_path / "operator.token"
    with gradwire.local_master(http="127.0.0.1:0") as master:
        write_key(file, master.run_key.format())
        write_key(token_file, master.http_token)
        there = {"master": master.address, "keyFile": str(file), "masterHttp": master.http}
        with pytest.raises(RefusedError, match="--http-operator-token-file"):
            estimator(**there, numWorkers=EXECUTORS).fit(frame)
        there["masterTokenFile"] = str(token_file)
        model = estimator(**there, numWorkers=EXECUTORS).fit(frame)

    check_trained(model, frame)


def test_several_outputs_and_none(frame: DataFrame) -> None:
    """`fitMultiDataSet`, and an autoencoder."""
    wide = frame.select("features", F.col("label").alias("x"), F.col("label").alias("y"))
    both = estimator(loss=spark_models.loss_of_two, labelCol=["x", "y"], epochs=1).fit(wide)
    assert both.summary.rows == ROWS

    coder = estimator(model=spark_models.square, labelCol=None, epochs=1).fit(frame)
    [[total]] = coder.scoreExamples(frame).agg(F.sum("score")).collect()
    assert total / ROWS == pytest.approx(coder.score(frame), rel=1e-4)


def test_regression_and_curves_are_evaluated(frame: DataFrame) -> None:
    model = estimator(epochs=1).fit(frame)
    found = model.evaluate(frame, MeanSquaredError())
    assert found["MeanSquaredError"] == pytest.approx(found["loss"], rel=1e-4)

    signs = frame.withColumn("label", (F.col("label") > 0).cast("int"))
    binary = estimator(loss=nn.BCEWithLogitsLoss(), epochs=1).fit(signs)
    curve = binary.evaluate(signs, BinaryAUROC(thresholds=32))
    assert 0.0 <= curve["BinaryAUROC"] <= 1.0
