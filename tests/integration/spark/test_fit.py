"""Training on a cluster of real executors, and what the model is used for then.

All rows of a prediction are collected: after `first()` Spark would kill the Python worker, and the
next one would import torch again.
"""

import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from gradwire import Session, UsageError
from gradwire.spark import TorchEstimator, TorchModel
from gradwire.spark.training.access import access_to_master
from gradwire.spark.training.addresses import driver_address
from gradwire_protocol.crypto.keys import (
    ISSUING_KEY_PREFIX,
    RUN_KEY_PREFIX,
    WORKER_KEY_PREFIX,
    Role,
)
from support import spark_models
from support.spark import files_with, line
from support.wording import naming

ACCURACY_MIN = 0.9

WORKERS_ASKED_FOR = 60
"""A master admits 56 by default."""

ROWS = 1437
"""Of the digits that are not held out."""


def estimator(**parameters: object) -> TorchEstimator:
    values = {
        "model": spark_models.digits_model,
        "loss": nn.CrossEntropyLoss(),
        "optimizer": spark_models.adam,
        "batchSize": 16,
        "epochs": 4,
        **parameters,
    }
    return TorchEstimator(**values)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def trained(training: DataFrame) -> TorchModel:
    found: TorchModel = estimator().fit(training)
    return found


def test_all_items_are_trained_on_once_and_the_model_is_good(
    trained: TorchModel, held_out: DataFrame
) -> None:
    summary = trained.summary
    assert summary is not None
    ledger = summary.ledger
    assert ledger["done"] == ledger["items"] * ledger["epochs"]
    assert summary.rows == 4 * ROWS
    accuracy = MulticlassAccuracy(10, average="micro")

    found = trained.evaluate(held_out, {"accuracy": accuracy})

    assert found["accuracy"] > ACCURACY_MIN


def test_running_statistics_of_batch_norm_come_back(
    trained: TorchModel, training: DataFrame
) -> None:
    """The mean of the layer's inputs is not what a new module has."""
    module = trained.module
    rows = torch.tensor(training.toArrow()["features"].to_pylist())
    with torch.no_grad():
        seen = module[0](rows)  # type: ignore[index]

    mean = module[1].running_mean  # type: ignore[index]

    spread = float(seen.std())
    assert float((mean - seen.mean(dim=0)).abs().max()) < 0.5 * spread


def test_transform_adds_columns_that_evaluators_of_spark_take(
    trained: TorchModel, held_out: DataFrame
) -> None:
    found = trained.transform(held_out)

    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    assert evaluator.evaluate(found) > ACCURACY_MIN
    row = found.collect()[0]
    assert sum(row["probability"].toArray()) == pytest.approx(1.0, abs=1e-5)
    assert row["prediction"] == np.argmax(row["rawPrediction"].toArray())
    assert found.columns[:3] == held_out.columns


def test_the_feature_space_is_what_a_layer_returns(
    trained: TorchModel, held_out: DataFrame
) -> None:
    row = trained.featureSpace(held_out, "2").collect()[0]

    with torch.no_grad():
        expected = trained.module[:3](torch.tensor([row["features"]]))[0]  # type: ignore[index]
    assert row["featureSpace"].toArray() == pytest.approx(expected.numpy(), abs=1e-5)
    with pytest.raises(UsageError, match="no layer 'nine'; there are 0, 1, 2, 3"):
        trained.featureSpace(held_out, "nine")


def test_a_saved_model_predicts_the_same(
    trained: TorchModel, held_out: DataFrame, tmp_path: Path
) -> None:
    path = str(tmp_path / "model")
    trained.save(path)

    again = TorchModel.load(path)

    columns = ["prediction", "rawPrediction"]
    before = trained.transform(held_out).select(columns).collect()
    assert again.transform(held_out).select(columns).collect() == before
    assert again.uid == trained.uid
    trained.write().overwrite().save(path)
    assert not files_with(tmp_path, "cloudpickle")


def test_a_saved_estimator_has_the_same_parameters(tmp_path: Path, spark: SparkSession) -> None:
    path = str(tmp_path / "estimator")
    saved = estimator(optimizer=partial(torch.optim.SGD, lr=0.1), numWorkers=2, join={"rank": 1})
    saved.save(path)

    again = TorchEstimator.load(path)

    assert again.getOrDefault("model") == "support.spark_models:digits_model"
    assert again.getOrDefault("optimizer").keywords == {"lr": 0.1}
    assert again.getOrDefault("join") == {"rank": 1}
    assert again.getOrDefault("batchSize") == 16
    with pytest.raises(UsageError, match=r"model: .* has no import path"):
        estimator(model=lambda: nn.Linear(1, 1)).save(str(tmp_path / "other"))


def test_the_drivers_master_admits_as_many_workers_as_were_asked_for(spark: SparkSession) -> None:
    """The workers are sessions of this process."""
    asked = estimator(numWorkers=WORKERS_ASKED_FOR)
    plan = asked._plan(spark, asked._recipe())
    sessions: list[Session] = []
    with ExitStack() as stack:
        access = stack.enter_context(access_to_master(plan, driver_address(spark, None)))
        pool = stack.enter_context(ThreadPoolExecutor(WORKERS_ASKED_FOR))
        stack.callback(lambda: list(pool.map(Session.close, sessions)))  # each waits for an answer
        while len(sessions) < WORKERS_ASKED_FOR:
            sessions.append(access.join(spark_models.linear(), Role.WORKER))

        [run] = access.http.overview()["runs"]

    assert len(run["workers"]) == WORKERS_ASKED_FOR


def test_each_task_may_train_on_its_own_partition_and_wait_for_a_slot(
    training: DataFrame, held_out: DataFrame
) -> None:
    """Each wave joins a run that goes on; BatchNorm's statistics are those of the last ones."""
    model = estimator(approach="direct", numWorkers=5, epochs=3).fit(training)

    assert model.summary is not None
    assert model.summary.rows == 3 * ROWS
    assert model.score(held_out) < 1.0


def test_early_stopping_returns_the_best_model(data: DataFrame, held_out: DataFrame) -> None:
    model = estimator(
        epochs=40, validationIndicatorCol="held_out", earlyStopping={"target": 0.35}
    ).fit(data)

    summary = model.summary
    assert summary is not None
    assert summary.stopped is not None
    assert "target" in summary.stopped
    assert min(summary.scores) <= 0.35
    assert summary.rows < 20 * ROWS, "it was judged with running statistics of long ago"
    assert model.score(held_out) == pytest.approx(min(summary.scores), rel=1e-4)


def test_each_epoch_is_judged_once_though_it_takes_no_time(spark: SparkSession) -> None:
    frame = line(spark, 80).withColumn("held_out", F.col("features")[0] > 1.0)
    kept = frame.where("not held_out").count()

    summary = (
        estimator(
            model=spark_models.linear,
            loss=nn.MSELoss(),
            optimizer=spark_models.quick_adam,
            batchSize=8,
            epochs=10,
            validationIndicatorCol="held_out",
        )
        .fit(frame)
        .summary
    )

    assert summary is not None
    assert summary.rows == 10 * kept
    assert len(summary.scores) == 10
    assert summary.scores[-1] < summary.scores[0]


def test_it_is_a_stage_of_a_pipeline_and_of_a_cross_validation(spark: SparkSession) -> None:
    frame = line(spark, 200).select(
        F.col("features")[0].alias("x"),
        F.col("features")[1].alias("y"),
        F.when(F.col("label") > 0, "up").otherwise("down").alias("name"),
    )
    stages = [
        VectorAssembler(inputCols=["x", "y"], outputCol="features"),
        StringIndexer(inputCol="name", outputCol="label"),
    ]
    torch_stage = estimator(
        model=partial(nn.Linear, 2, 2),
        optimizer=partial(torch.optim.SGD, lr=0.5),
        batchSize=8,
    )
    pipeline = Pipeline(stages=[*stages, torch_stage])
    grid = ParamGridBuilder().addGrid(torch_stage.epochs, [3]).build()
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")

    found = CrossValidator(
        estimator=pipeline, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2
    ).fit(frame)

    assert found.avgMetrics[0] > ACCURACY_MIN


def test_a_training_goes_on_from_a_model_which_can_be_saved_then(
    trained: TorchModel, training: DataFrame, held_out: DataFrame, tmp_path: Path
) -> None:
    before = trained.score(held_out)
    assert trained.optimizer is not None

    again = estimator(epochs=1).fit(training, initial=trained)

    assert again.summary is not None
    assert again.summary.losses[0] < 0.5 < 2.3, "a new model begins with the loss of a guess"
    assert again.score(held_out) < 1.1 * before
    [step] = {float(each["step"]) for each in _states(again)}
    assert step > max(float(each["step"]) for each in _states(trained))
    again.save(str(tmp_path / "again"))
    with pytest.raises(UsageError) as failed:
        estimator(model=spark_models.linear).fit(training, initial=trained)
    assert str(failed.value) == naming("initial")


def _states(model: TorchModel) -> list[dict[str, torch.Tensor]]:
    """Return what the optimizer has kept for each parameter."""
    assert model.optimizer is not None
    return list(torch.load(io.BytesIO(model.optimizer.content), weights_only=True).values())


def test_several_columns_weights_and_outputs(spark: SparkSession) -> None:
    """Rows of weight 0 have labels that would spoil the model."""
    numbers = np.random.default_rng(0).normal(size=(256, 4))
    rows = [
        ([a, b, c], d, [a + d, b - c] if place % 4 else [99.0, 99.0], float(place % 4 > 0))
        for place, (a, b, c, d) in enumerate(numbers.tolist())
    ]
    schema = "first array<double>, second double, label array<double>, weight double"
    frame = spark.createDataFrame(rows, schema)
    model = estimator(
        model=spark_models.TwoInputs,
        loss=nn.MSELoss(),
        optimizer=partial(torch.optim.Adam, lr=0.03),
        featuresCol=["first", "second"],
        weightCol="weight",
        batchSize=8,
        epochs=15,
    ).fit(frame)

    assert model.score(frame) < 1.0
    assert model.transform(frame).collect()[0]["rawPrediction"].size == 2


def test_pictures_are_trained_on_as_bytes(held_out: DataFrame) -> None:
    as_bytes = F.udf(lambda pixels: bytes(round(p * 16) for p in pixels), "binary")
    frame = held_out.limit(32).select(as_bytes("features").alias("features"), "label").persist()
    frame.count()  # what reads the first row alone would kill the worker that makes bytes

    model = estimator(model=spark_models.picture_model).fit(frame)

    row = model.transform(frame).collect()[0]
    with torch.no_grad():
        expected = model.module(torch.tensor([list(row["features"])], dtype=torch.uint8))[0]
    assert row["rawPrediction"].toArray() == pytest.approx(expected.numpy(), abs=1e-5)


def test_files_that_are_there_are_trained_on(spark: SparkSession, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=(8, 32, 2)).astype(np.float32)
    for place, part in enumerate(numbers):
        np.save(tmp_path / f"{place}.npy", part)

    def loader(path: str) -> list[tuple[np.ndarray, np.ndarray]]:
        part = np.load(path)
        return [(half, 2 * half[:, :1] - half[:, 1:]) for half in (part[:16], part[16:])]

    model = estimator(
        model=spark_models.linear,
        loss=nn.MSELoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        epochs=10,
    ).fit_paths(spark, [str(f) for f in sorted(tmp_path.iterdir())], loader)

    [weight] = model.module.state_dict()["weight"].tolist()
    assert weight == pytest.approx([2.0, -1.0], abs=0.05)
    assert model.score(line(spark)) < 0.01


def test_no_file_has_a_key(trained: TorchModel, cluster_folder: Path) -> None:
    """The event log has the plans of all jobs, and the local folders what was broadcast."""
    assert files_with(cluster_folder, "SparkListenerTaskEnd")
    for prefix in (RUN_KEY_PREFIX, ISSUING_KEY_PREFIX, WORKER_KEY_PREFIX):
        assert files_with(cluster_folder, prefix) == []


def test_a_second_fit_reuses_the_export_and_does_not_go_on_with_a_finished_training(
    held_out: DataFrame, tmp_path: Path
) -> None:
    exports, checkpoints = tmp_path / "exports", tmp_path / "checkpoints"
    again = estimator(
        epochs=1, exportDirectory=str(exports), reuseExport=True, checkpoint=str(checkpoints)
    )

    def written() -> list[int]:
        return [f.stat().st_mtime_ns for f in exports.glob(".gradwire/*/_SUCCESS")]

    first, before = again.fit(held_out).summary, written()
    second, after = again.fit(held_out).summary, written()

    assert [each.rows for each in (first, second) if each is not None] == [360, 360]
    assert len(before) == 1
    assert after == before
    assert list(checkpoints.rglob("*.safetensors"))


def test_an_export_is_removed(trained: TorchModel, cluster_folder: Path) -> None:
    assert list((cluster_folder / "warehouse").rglob("*.parquet")) == []
