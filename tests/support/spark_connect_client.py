"""A client of Spark Connect that does what users do; it prints what came of each of them as JSON.

::

    python -m support.spark_connect_client sc://127.0.0.1:15002 FOLDER
"""

import _thread
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import torch
from pyspark.ml import Pipeline
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions
from torch import nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from gradwire.errors import GradwireError
from gradwire.spark import Batch, TorchEstimator, TorchModel
from support import spark_models
from support.spark import digits, line
from support.waiting import comes_true

INTERRUPT_SECONDS_MAX: Final = 60.0
"""For a training to come as far as where it is interrupted."""


class Client:
    """Does one thing after another; each method returns what a test asserts on.

    Parameters
    ----------
    spark : SparkSession
    folder : Path
        That the server can write to.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._data = digits(spark)
        self._training = self._data.where("not held_out")
        self._held_out = self._data.where("held_out")
        self._model = TorchModel()

    def session(self) -> dict[str, Any]:
        """Say what kind of session it is."""
        return {"module": type(self._spark).__module__}

    def export(self) -> dict[str, Any]:
        """Train on exported files."""
        self._model = estimator().fit(self._training)
        left = [str(f) for f in self._folder.rglob(".gradwire")]
        return {"rows": rows_of(self._model), "score": self.score_of(self._model), "left": left}

    def direct(self) -> dict[str, Any]:
        """Train each task on its own partition."""
        model = estimator(approach="direct").fit(self._training)
        return {"rows": rows_of(model), "score": self.score_of(model)}

    def profile(self) -> dict[str, Any]:
        """Train with a resource profile."""
        model = estimator(epochs=1, workersPerNode=1).fit(self._training)
        return {"rows": rows_of(model)}

    def pipeline(self) -> dict[str, Any]:
        """Train on vectors that a stage of Spark's makes."""
        rows = line(self._spark).select(
            functions.col("features")[0].alias("x"),
            functions.col("features")[1].alias("y"),
            "label",
        )
        assembler = VectorAssembler(inputCols=["x", "y"], outputCol="features")
        stage = linear_estimator(epochs=10)
        fitted = Pipeline(stages=[assembler, stage]).fit(rows)
        [row] = fitted.transform(rows).limit(1).collect()
        return {"label": row["label"], "prediction": row["prediction"]}

    def transform(self) -> dict[str, Any]:
        """Predict."""
        found = self._model.transform(self._held_out)
        rows = found.select("label", "prediction", "rawPrediction", "probability").collect()
        right = sum(row["label"] == row["prediction"] for row in rows)
        total = float(sum(rows[0]["probability"].toArray()))
        return {"columns": found.columns, "accuracy": right / len(rows), "total": total}

    def evaluate(self) -> dict[str, Any]:
        """Compute metrics on the cluster, and once more here."""
        metrics = {"accuracy": MulticlassAccuracy(10), "f1": MulticlassF1Score(10, average=None)}
        found = self._model.evaluate(self._held_out, metrics)
        table = self._held_out.toArrow()
        inputs = torch.tensor(table["features"].to_pylist())
        labels = torch.tensor(table["label"].to_pylist())
        with torch.no_grad():
            outputs = self._model.module(inputs)
        expected = {"loss": float(nn.functional.cross_entropy(outputs, labels))}
        for name, metric in metrics.items():
            metric.update(outputs, labels)
            expected[name] = metric.compute().tolist()
        return {"found": found, "expected": expected}

    def scores(self) -> dict[str, Any]:
        """Score all rows, and each."""
        scored = self._model.scoreExamples(self._held_out)
        [[mean]] = scored.agg(functions.avg("score")).collect()
        return {"score": self._model.score(self._held_out), "mean": mean}

    def saved(self) -> dict[str, Any]:
        """Save a model twice and an estimator, and load them."""
        path = str(self._folder / "model")
        self._model.save(path)
        refused = said(lambda: self._model.save(path))
        self._model.write().overwrite().save(path)
        again = TorchModel.load(path)
        columns = ["prediction", "rawPrediction"]
        before, after = (
            each.transform(self._held_out).select(columns).collect()
            for each in (self._model, again)
        )
        path = str(self._folder / "estimator")
        estimator(batchSize=24).save(path)
        batch = TorchEstimator.load(path).getOrDefault("batchSize")
        return {"refused": refused, "is_same": before == after, "batch": batch}

    def early_stopping(self) -> dict[str, Any]:
        """Train until the loss on what is held out is low enough."""
        model = estimator(
            epochs=40, validationIndicatorCol="held_out", earlyStopping={"target": 0.35}
        ).fit(self._data)
        assert model.summary is not None
        return {
            "rows": rows_of(model),
            "stopped": model.summary.stopped,
            "best": min(model.summary.scores),
            "score": self.score_of(model),
        }

    def statistics(self) -> dict[str, Any]:
        """Ask for statistics as a DataFrame."""
        assert self._model.summary is not None
        frame = self._model.summary.statistics(self._spark)
        workers = frame.where("who != 'driver'").select("who").distinct().count()
        seconds = functions.unix_micros("began") / 1e6
        [[began]] = frame.agg(functions.min(seconds)).collect()
        events = list(self._model.summary.events())
        return {
            "columns": frame.columns,
            "rows": frame.count(),
            "events": len(events),
            "workers": workers,
            "began": began,
            "first": min(event.began for event in events),
        }

    def bad_rows(self) -> dict[str, Any]:
        """Train on rows of which one has a NaN."""
        frame = line(self._spark).coalesce(1)
        numbered = frame.withColumn("row", functions.monotonically_increasing_id())
        nan = "if(row = 40, array(1D, double('NaN')), features)"
        spoiled = numbered.withColumn("features", functions.expr(nan))
        text = frame.withColumn("label", functions.lit("cat"))
        return {
            "export": said(lambda: linear_estimator(repartition=False).fit(spoiled)),
            "direct": said(
                lambda: linear_estimator(repartition=False, approach="direct").fit(spoiled)
            ),
            "text": said(lambda: linear_estimator().fit(text)),
        }

    def interrupt(self) -> dict[str, Any]:
        """Press Ctrl-C while all workers are busy for ever; then use their slots."""
        started = self._folder / "started"
        started.mkdir()
        hanging = estimator(numWorkers=2, trainBatch=partial(wait_for_ever, str(started)))
        with interrupted_once(lambda: len(list(started.iterdir())) == 2) as interrupting:
            with suppress(KeyboardInterrupt):
                hanging.fit(self._training)
            ended = time.monotonic()
        partitions = self._spark.range(0, 2, 1, 2).count()
        return {"is_in_time": interrupting.is_set(), "free": partitions == 2, "ended": ended}

    def score_of(self, model: TorchModel) -> float:
        """Return the loss on what is held out."""
        return model.score(self._held_out)


def estimator(**parameters: Any) -> TorchEstimator:
    values = {
        "model": spark_models.digits_model,
        "loss": nn.CrossEntropyLoss(),
        "optimizer": spark_models.adam,
        "batchSize": 16,
        "epochs": 4,
        **parameters,
    }
    return TorchEstimator(**values)


def linear_estimator(**parameters: Any) -> TorchEstimator:
    values = {
        "model": spark_models.linear,
        "loss": nn.MSELoss(),
        "optimizer": partial(torch.optim.SGD, lr=0.1),
        "batchSize": 8,
        "numWorkers": 2,
        **parameters,
    }
    return TorchEstimator(**values)


def rows_of(model: TorchModel) -> int:
    """Return how many rows were trained on."""
    assert model.summary is not None
    return model.summary.rows


def said(action: Callable[[], object]) -> list[str]:
    """Return the type and the text of an error."""
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


def wait_for_ever(folder: str, model: nn.Module, batch: Batch) -> torch.Tensor:
    """Say that a worker is here, and never come back."""
    import os

    (Path(folder) / str(os.getpid())).touch()
    Event().wait()
    raise AssertionError


@contextmanager
def interrupted_once(condition: Callable[[], object]) -> Iterator[Event]:
    """Interrupt the main thread once a condition holds; yield whether it has held."""
    has_held = Event()

    def wait() -> None:
        if comes_true(condition, seconds=INTERRUPT_SECONDS_MAX):
            has_held.set()
        _thread.interrupt_main()

    thread = Thread(target=wait, daemon=True)
    thread.start()
    yield has_held
    thread.join()


def main(address: str, folder: str) -> None:
    spark = SparkSession.builder.remote(address).getOrCreate()
    client = Client(spark, Path(folder))
    steps = sys.argv[3:] or [n for n in vars(Client) if not n.startswith("_") and n != "score_of"]
    found = {}
    for name in steps:
        began = time.monotonic()
        found[name] = getattr(client, name)()
        sys.stderr.write(f"{name}: {time.monotonic() - began:.1f} s {found[name]}\n")
    spark.stop()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:3])
