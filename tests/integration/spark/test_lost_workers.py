"""Tasks are lost, retried and ended in the middle of a training; the training is not."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from gradwire import GradwireError
from gradwire.spark import TorchEstimator, TorchModel
from gradwire_udp.files.checkpoints import names_in, newest
from support import spark_driver, spark_models
from support.processes import Running, has_ended, with_tests
from support.waiting import wait_until

ACCURACY_MIN = 0.9
EPOCHS = 5

GONE_SECONDS = 10.0
"""A driver that ends leaves nothing behind after that time."""


def estimator(train_batch: Any, **parameters: Any) -> TorchEstimator:
    return TorchEstimator(
        model=spark_models.digits_model,
        loss=nn.CrossEntropyLoss(),
        trainBatch=train_batch,
        optimizer=spark_models.adam,
        batchSize=16,
        epochs=EPOCHS,
        **parameters,
    )


def is_complete(model: TorchModel) -> bool:
    """Return whether each item of each epoch was trained on."""
    assert model.summary is not None
    ledger = model.summary.ledger
    return bool(ledger["done"] + ledger["finished"] == ledger["items"] * ledger["epochs"])


@pytest.mark.parametrize("victims", ["executor", "daemon", "worker", "worker worker"])
def test_what_is_killed_is_replaced_and_every_item_is_trained_on(
    data: DataFrame, tmp_path: Path, victims: str
) -> None:
    killing = partial(spark_models.killing, str(tmp_path), victims)

    model = estimator(killing).fit(data.where("not held_out"))

    assert len(list(tmp_path.iterdir())) == len(victims.split()), "nothing was killed"
    assert is_complete(model)
    assert model.summary is not None
    assert model.summary.ledger["returned"] >= 1
    found = model.evaluate(data.where("held_out"), MulticlassAccuracy(10, average="micro"))
    assert found["MulticlassAccuracy"] > ACCURACY_MIN


def test_a_partition_whose_worker_was_killed_is_trained_on_again(
    data: DataFrame, tmp_path: Path
) -> None:
    killing = partial(spark_models.killing, str(tmp_path), "worker")

    model = estimator(killing, approach="direct").fit(data.where("not held_out"))

    assert model.summary is not None
    assert model.summary.rows == EPOCHS * 1437
    found = model.evaluate(data.where("held_out"), MulticlassAccuracy(10, average="micro"))
    assert found["MulticlassAccuracy"] > ACCURACY_MIN


def test_two_fits_at_once_in_one_session_do_not_meet(data: DataFrame) -> None:
    models: dict[str, TorchModel] = {}

    def fit(name: str) -> None:
        models[name] = estimator(spark_models.class_loss, numWorkers=1).fit(
            data.where("not held_out")
        )

    threads = [threading.Thread(target=fit, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(models) == ["one", "two"]
    assert all(is_complete(model) for model in models.values())


def test_jobs_that_are_cancelled_end_the_fit(
    spark: SparkSession, data: DataFrame, tmp_path: Path
) -> None:
    failed: list[BaseException] = []

    def fit() -> None:
        try:
            slow = partial(spark_models.slow, str(tmp_path), 0.05)
            estimator(slow).setParams(epochs=1000).fit(data)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=fit)
    thread.start()
    wait_until(lambda: (tmp_path / "trains").exists(), "training to begin", seconds=120)

    spark.sparkContext.cancelAllJobs()

    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(failed[0], GradwireError)
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: not tracker.getActiveJobsIds(), "all jobs to end", seconds=30)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Running]:
    """Return a driver whose training goes on, with nothing before its output."""
    command = [sys.executable, "-m", "support.spark_driver", str(tmp_path)]
    with Running(command, env=with_tests()) as running:
        wait_until(lambda: (tmp_path / "trains").exists(), "training to begin", seconds=150)
        yield running


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_driver_that_ends_leaves_no_process_behind(driver: Running, number: int) -> None:
    started = descendants(driver.pid)
    assert started

    began = time.monotonic()
    driver.send_signal(number)

    wait_until(lambda: all(map(has_ended, started)), "all processes to end", seconds=GONE_SECONDS)
    assert time.monotonic() - began < GONE_SECONDS


def test_a_job_that_is_submitted_again_goes_on_where_its_checkpoint_was(
    data: DataFrame, tmp_path: Path
) -> None:
    checkpoints, epochs = tmp_path / "checkpoints", 20
    command = [sys.executable, "-m", "support.spark_driver", str(tmp_path)]
    command += [str(checkpoints), str(epochs)]
    with Running(command, env=with_tests(GRADWIRE_CHECKPOINT_SECONDS="1")) as running:
        wait_until(lambda: done_in(checkpoints)[0] > 1, "a checkpoint of two epochs", seconds=150)
        started = descendants(running.pid)
        running.send_signal(signal.SIGKILL)
        wait_until(lambda: all(map(has_ended, started)), "all processes to end", seconds=30)
    epochs_done, done = done_in(checkpoints)
    again = spark_driver.estimator(
        tmp_path,
        epochs=epochs,
        checkpoint=str(checkpoints),
        trainBatch=spark_models.class_loss,
        validationIndicatorCol="held_out",
    )

    model = again.fit(data)

    assert is_complete(model)
    summary = model.summary
    assert summary is not None
    items = summary.ledger["items"]
    assert done < items * epochs
    trained = sum(worker.items for worker in summary.workers)
    assert trained <= items * epochs - done + summary.ledger["returned"]
    assert summary.rows < epochs * 1437
    judged = [isfinite(score) for score in summary.scores]
    assert judged == [place >= epochs_done for place in range(len(judged))]
    found = model.evaluate(data.where("held_out"), MulticlassAccuracy(10, average="micro"))
    assert found["MulticlassAccuracy"] > ACCURACY_MIN


def done_in(checkpoints: Path) -> tuple[int, int]:
    """Return how many epochs and items are done in the newest checkpoint, if there is one."""
    if not (checkpoints.is_dir() and names_in(checkpoints)):
        return 0, 0
    works = newest(checkpoints, lambda _: None).file.checkpoint.works
    done = sum(work.ledger.done for work in works)
    return (done // works[0].plan.items if works else 0), done


def descendants(pid: int) -> list[int]:
    """Return all processes that a process has started, and those that they have."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (thread / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found
