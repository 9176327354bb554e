"""A client of Spark Connect that does what users do; it prints what came of each thing as JSON.

::

    python -m support.spark_connect_client sc://127.0.0.1:15002 FOLDER
"""

import _thread
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import SparkSession, functions
from torch import nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from gradwire.spark import Batch, TorchEstimator, TorchModel
from support import spark_models
from support.processes import has_ended
from support.spark import digits, line
from support.waiting import comes_true

STEPS: Final = (
    "session",
    "export",
    "direct",
    "transform",
    "evaluate",
    "scores",
    "saved",
    "statistics",
    "early_stopping",
    "pipeline",
    "bad_rows",
    "interrupt",
)
"""Methods of `Client`, in their order."""

WORKERS: Final = 2

REACHED_SECONDS_MAX: Final = 60.0
"""For a training to come as far as where it is interrupted."""

ENDED_SECONDS_MAX: Final = 30.0
"""For Spark to kill the workers of a job that is interrupted."""


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

    def session(self) -> str:
        """Return where the session's class is from."""
        return type(self._spark).__module__

    def export(self) -> dict[str, Any]:
        """Train on exported files."""
        directory = self._folder / "export"
        self._model = estimator(exportDirectory=str(directory)).fit(self._training)
        left = [str(f) for f in directory.rglob("*")]
        return {"rows": rows_of(self._model), "left": left}

    def direct(self) -> dict[str, Any]:
        """Train each task on its own partition, with a resource profile."""
        model = estimator(approach="direct", workersPerNode=1).fit(self._training)
        return {"rows": rows_of(model), "score": model.score(self._held_out)}

    def transform(self) -> dict[str, Any]:
        """Predict."""
        found = self._model.transform(self._held_out)
        rows = found.select("label", "prediction", "probability").collect()
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
        expected: dict[str, Any] = {"loss": float(nn.functional.cross_entropy(outputs, labels))}
        for name, metric in metrics.items():
            metric.update(outputs, labels)
            expected[name] = metric.compute().tolist()
        return {"found": found, "expected": expected}

    def scores(self) -> dict[str, float]:
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

    def statistics(self) -> dict[str, Any]:
        """Ask for statistics as a DataFrame."""
        assert self._model.summary is not None
        frame = self._model.summary.statistics(self._spark)
        seconds = functions.unix_micros("began") / 1e6
        [[began]] = frame.agg(functions.min(seconds)).collect()
        events = list(self._model.summary.events())
        return {
            "rows": frame.count(),
            "events": len(events),
            "workers": frame.where("who != 'driver'").select("who").distinct().count(),
            "began": began,
            "first": min(event.began for event in events),
        }

    def early_stopping(self) -> dict[str, Any]:
        """Train until the loss on what is held out is low enough."""
        model = estimator(
            epochs=1_000, validationIndicatorCol="held_out", earlyStopping={"target": 0.35}
        ).fit(self._data)
        assert model.summary is not None
        return {
            "rows": rows_of(model),
            "stopped": model.summary.stopped,
            "best": min(model.summary.scores),
            "score": model.score(self._held_out),
        }

    def pipeline(self) -> dict[str, Any]:
        """Train on vectors that a stage of Spark's makes; save the pipeline, and load it."""
        x, y = (functions.col("features")[place].alias(name) for place, name in enumerate("xy"))
        rows = line(self._spark).select(x, y, "label")
        assembler = VectorAssembler(inputCols=["x", "y"], outputCol="features")
        fitted = Pipeline(stages=[assembler, linear_estimator(epochs=20)]).fit(rows)
        path = str(self._folder / "pipeline")
        fitted.save(path)
        found = PipelineModel.load(path).transform(rows)
        error = functions.abs(functions.col("label") - functions.col("prediction"))
        [[mean]] = found.agg(functions.avg(error)).collect()
        return {"error": mean}

    def bad_rows(self) -> dict[str, list[str]]:
        """Train on rows of which one has a NaN, and on a column of text."""
        frame = line(self._spark).coalesce(1)
        numbered = frame.withColumn("row", functions.monotonically_increasing_id())
        nan = "if(row = 40, array(1D, double('NaN')), features)"
        spoiled = numbered.withColumn("features", functions.expr(nan))
        text = frame.withColumn("label", functions.lit("cat"))
        direct = linear_estimator(repartition=False, approach="direct")
        return {
            "export": said(lambda: linear_estimator(repartition=False).fit(spoiled)),
            "direct": said(lambda: direct.fit(spoiled)),
            "text": said(lambda: linear_estimator().fit(text)),
        }

    def interrupt(self) -> dict[str, Any]:
        """Press Ctrl-C while all workers are busy for ever."""
        folder = self._folder / "busy"
        folder.mkdir()
        hanging = estimator(numWorkers=WORKERS, trainBatch=partial(wait_for_ever, str(folder)))
        with interrupting(lambda: len(list(folder.iterdir())) == WORKERS) as is_reached:
            failed = said(lambda: hanging.fit(self._training))
        workers = [int(f.name) for f in folder.iterdir()]
        have_ended = comes_true(lambda: all(map(has_ended, workers)), seconds=ENDED_SECONDS_MAX)
        return {"reached": is_reached.is_set(), "failed": failed, "ended": have_ended}


def estimator(**parameters: Any) -> TorchEstimator:
    """Return one of digits."""
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
    """Return one of `support.spark.line`."""
    values = {
        "model": spark_models.linear,
        "loss": nn.MSELoss(),
        "optimizer": partial(torch.optim.SGD, lr=0.1),
        "batchSize": 8,
        "numWorkers": WORKERS,
        **parameters,
    }
    return TorchEstimator(**values)


def rows_of(model: TorchModel) -> int:
    """Return how many rows were trained on."""
    assert model.summary is not None
    return int(model.summary.rows)


def said(action: Callable[[], object]) -> list[str]:
    """Return the type and the first line of an error; nothing without one."""
    try:
        action()
    except (Exception, KeyboardInterrupt) as error:
        return [type(error).__name__, str(error).partition("\n")[0]]
    return []


def wait_for_ever(folder: str, model: nn.Module, batch: Batch) -> torch.Tensor:
    """Leave a file with the name of this process, and never come back."""
    (Path(folder) / str(os.getpid())).touch()
    Event().wait()
    raise AssertionError


@contextmanager
def interrupting(condition: Callable[[], object]) -> Iterator[Event]:
    """Interrupt the main thread once a condition holds; yield whether it has held in time."""
    has_held = Event()

    def wait() -> None:
        if comes_true(condition, seconds=REACHED_SECONDS_MAX):
            has_held.set()
        _thread.interrupt_main()

    thread = Thread(target=wait, daemon=True)
    thread.start()
    yield has_held
    thread.join()


def main(address: str, folder: str) -> None:
    """Print what came of all steps."""
    spark = SparkSession.builder.remote(address).getOrCreate()
    client = Client(spark, Path(folder))
    found = {}
    for name in STEPS:
        began = time.monotonic()
        found[name] = getattr(client, name)()
        sys.stderr.write(f"{name}: {time.monotonic() - began:.1f} s\n")
    spark.stop()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
