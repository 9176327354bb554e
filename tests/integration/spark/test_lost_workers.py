"""Tasks are lost, retried and ended in the middle of a training; the training is not."""

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import isfinite
from pathlib import Path
from threading import Thread, main_thread
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from gradwire import GradwireError
from gradwire.spark import TorchEstimator, TorchModel
from gradwire_udp.files.checkpoints import names_in, newest
from support import spark_driver, spark_models
from support.processes import Running, children_of, has_ended, with_tests
from support.spark import EXECUTORS
from support.waiting import JOB, PROCESS, wait_until

ACCURACY_MIN = 0.9
EPOCHS = 4


def estimator(train_batch: Any, **parameters: Any) -> TorchEstimator:
    values = {
        "model": spark_models.digits_model,
        "loss": nn.CrossEntropyLoss(),
        "trainBatch": train_batch,
        "optimizer": spark_models.adam,
        "batchSize": 16,
        "epochs": EPOCHS,
        **parameters,
    }
    return TorchEstimator(**values)


def is_complete(model: TorchModel) -> bool:
    """Return whether each item of each epoch was trained on."""
    assert model.summary is not None
    ledger = model.summary.ledger
    return bool(ledger["done"] + ledger["finished"] == ledger["items"] * ledger["epochs"])


@pytest.mark.parametrize("victims", ["worker executor", "daemon"])
def test_what_is_killed_is_replaced_and_every_item_is_trained_on(
    training: DataFrame, held_out: DataFrame, tmp_path: Path, victims: str
) -> None:
    killing = partial(spark_models.killing, str(tmp_path), victims)

    model = estimator(killing).fit(training)

    assert len(list(tmp_path.iterdir())) == len(victims.split()), "nothing was killed"
    assert is_complete(model)
    assert model.summary is not None
    assert model.summary.ledger["returned"] >= 1
    reported = {(item.epoch, item.item) for item in model.summary.items if item.rows}
    items = model.summary.ledger["items"] * EPOCHS
    assert len(reported) + model.summary.unreported == items
    found = model.evaluate(held_out, MulticlassAccuracy(10, average="micro"))
    assert found["MulticlassAccuracy"] > ACCURACY_MIN


def test_a_partition_whose_worker_was_killed_is_trained_on_again(
    training: DataFrame, tmp_path: Path
) -> None:
    killing = partial(spark_models.killing, str(tmp_path), "worker")

    model = estimator(killing, approach="direct", epochs=1).fit(training)

    assert model.summary is not None
    assert model.summary.rows == training.count()


def test_two_fits_at_once_in_one_session_do_not_meet(training: DataFrame) -> None:
    one = estimator(spark_models.class_loss, numWorkers=1, epochs=1)

    with ThreadPoolExecutor(2) as pool:
        models = list(pool.map(one.fit, [training, training]))

    assert all(is_complete(model) for model in models)


def is_idle(spark: SparkSession) -> bool:
    """Return whether no job runs."""
    return not spark.sparkContext.statusTracker().getActiveJobsIds()


def test_jobs_that_are_cancelled_end_the_fit(
    spark: SparkSession, training: DataFrame, tmp_path: Path
) -> None:
    waiting = partial(spark_models.waiting, str(tmp_path))
    with ThreadPoolExecutor(1) as pool:
        fit = pool.submit(estimator(waiting).fit, training)
        wait_until(lambda: spark_models.waiting_in(tmp_path), "training to begin", seconds=JOB)

        spark.sparkContext.cancelAllJobs()

        assert isinstance(fit.exception(JOB), GradwireError)
    wait_until(lambda: is_idle(spark), "all jobs to end", seconds=PROCESS)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Have SIGINT interrupt this process, which a shell may have told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_workers(
    spark: SparkSession, training: DataFrame, tmp_path: Path
) -> None:
    def interrupt() -> None:
        wait_until(
            lambda: len(spark_models.waiting_in(tmp_path)) == EXECUTORS, "training", seconds=JOB
        )
        signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)

    thread = Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        estimator(partial(spark_models.waiting, str(tmp_path))).fit(training)
    thread.join()

    workers = spark_models.waiting_in(tmp_path)
    wait_until(lambda: all(map(has_ended, workers)), "workers to end", seconds=PROCESS)
    assert is_idle(spark)


def test_a_driver_that_is_killed_leaves_no_process_behind_and_its_job_goes_on_from_its_checkpoint(
    data: DataFrame, tmp_path: Path
) -> None:
    checkpoints, epochs = tmp_path / "checkpoints", 10
    command = [sys.executable, "-m", "support.spark_driver", str(tmp_path)]
    command += [str(checkpoints), str(epochs)]
    with Running(command, env=with_tests(GRADWIRE_CHECKPOINT_SECONDS="1")) as driver:
        wait_until(lambda: done_in(checkpoints)[0] >= 1, "an epoch's checkpoint", seconds=JOB)
        started = descendants(driver.pid)
        assert started
        driver.kill()
        wait_until(lambda: all(map(has_ended, started)), "processes to end", seconds=PROCESS)
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
    assert model.score(data.where("held_out")) < 1.0


def done_in(checkpoints: Path) -> tuple[int, int]:
    """Return how many epochs and items are done in the newest checkpoint, if there is one."""
    if not (checkpoints.is_dir() and names_in(checkpoints)):
        return 0, 0
    works = newest(checkpoints, lambda _: None).file.checkpoint.works
    done = sum(work.ledger.done for work in works)
    return (done // works[0].plan.items if works else 0), done


def descendants(pid: int) -> list[int]:
    """Return all processes that a process has started, and those that they have."""
    return [each for child in children_of(pid) for each in (child, *descendants(child))]
