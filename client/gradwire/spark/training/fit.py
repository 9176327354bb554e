"""`train_on`: the driver's half of a training. It has the master, and runs the job of the workers.

The driver founds the run with the model's first parameters, and leaves it. Workers come and go.
When their job is over, the driver reads the parameters as an observer.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gradwire.errors import GradwireError, UsageError
from gradwire.spark.errors import DataError, WorkerFailedError
from gradwire.spark.recipe import Recipe
from gradwire.spark.training.access import Access
from gradwire.spark.training.beginning import (
    Beginning,
    OptimizerState,
    buffers_of_state,
)
from gradwire.spark.training.job import SparkJob, advice
from gradwire.spark.training.plan import Initial, Outcome, Phases, Plan, Training
from gradwire.spark.training.tasks import task
from gradwire.spark.training.validation import Validation, copied_state
from gradwire.spark.training.worker import (
    BEGINNING,
    REPORT_DDL,
    Assignment,
    Report,
    Span,
    probe,
    train,
)

logger = logging.getLogger("gradwire.spark")

CLOSURE_BYTES_MAX: Final = 900 << 10
"""Larger closures go to the disks of driver and executors, with the key that is in them: Spark
broadcasts those above 1 MiB."""

TURN_SECONDS: Final = 0.1
"""How often the driver looks whether an epoch is over: workers wait for it then."""

VALIDATED_BUFFER_STEPS: Final = 8
"""Steps between two averages of buffers where the model of each epoch is judged: with the usual
100, that would have BatchNorm's statistics of some epochs ago."""

PROGRESS_SECONDS: Final = 10.0
"""How often it says so."""

CANCEL_SECONDS: Final = 5.0
"""How long the driver waits for a job that it has cancelled."""

INDETERMINATE: Final = "indeterminate"
"""Spark's word for input that differs from one evaluation to the next."""


def probing(spark: SparkSession, recipe: bytes, plan: Plan) -> SparkJob:
    """Have each executor make the model once, so that what cannot work is found before it trains.

    The Python workers that have imported torch for it are those that train.
    """
    frame = spark.range(0, plan.workers, 1, plan.workers)
    mapped = frame.mapInArrow(task(probe, recipe), REPORT_DDL, profile=plan.profile)
    return SparkJob(spark, mapped.collect)


def check(rows: list[Any]) -> list[Report]:
    """Return the reports of tasks.

    Raises
    ------
    Exception
        What a task has reported, with its type; `WorkerFailedError` where that is not known here.
    """
    reports = [_report(row["report"]) for row in rows]
    failed = [each for each in reports if each.trace]
    # Others may have failed because of the first.
    for each in sorted(failed, key=lambda report: report.left or report.began):
        raise _error_of(each)
    return reports


def train_on(
    spark: SparkSession,
    plan: Plan,
    starting: Future[Access],
    prepared: Callable[[], Training],
    phases: Phases,
) -> Outcome:
    """Train, and return the parameters.

    The master starts and the run is founded before `prepared` returns the data, so while executors
    are probed.

    Parameters
    ----------
    starting : Future
        The way to the master.

    Raises
    ------
    GradwireError
        If the training cannot work: with the type of what a worker has found.
    """
    content = plan.recipe.dumped()
    with phases.phase("master"):
        access = starting.result()
    model = plan.recipe.make_model()
    if plan.initial is not None:
        model.load_state_dict(plan.initial.state)
    with phases.phase("found"):
        access.found(model, plan.recipe, plan.initial)
    training = prepared()
    settings = plan.settings
    if training.held_out is not None:
        settings = {"buffer_steps": VALIDATED_BUFFER_STEPS} | settings
    assignment = Assignment(
        master=access.advertised,
        key=access.issuing_text(),
        run=access.run,
        recipe=content,
        source=training.source,
        columns=training.columns,
        decode=training.decode,
        batch=plan.batch,
        epochs=plan.epochs,
        seed=plan.seed,
        lease_seconds=plan.lease_seconds,
        settings=settings,
    )
    before = access.ledger()
    validation = None
    if training.held_out is not None:
        validation = Validation(
            plan.recipe,
            training.held_out,
            plan.limits,
            access.read,
            lambda epochs: access.order("pause-items", str(epochs)),
            lambda: access.order("stop-training"),
            epochs_before=_epochs_over(before),
        )
    job = _job(spark, plan, training, assignment)
    with phases.phase("train"):
        rows = _watched(job, access, plan, validation)
    reports = check(rows)
    ledger = access.ledger()
    _check_complete(ledger, reports, plan, validation)
    with phases.phase("read"):
        access.read(model)
    state = copied_state(model)
    access.order("end-run")  # nobody goes on with it
    outcome = Outcome(state, reports, phases.noted, ledger, before.get("done", 0))
    if validation is not None:
        outcome.scores, outcome.stopped = validation.scores, validation.reason
        outcome.best_epoch = validation.best_epoch
        outcome.state = validation.best or state
    outcome.optimizer = _kept(reports)
    return outcome


def _job(spark: SparkSession, plan: Plan, training: Training, assignment: Assignment) -> SparkJob:
    size = len(cloudpickle.dumps(assignment))
    if size > CLOSURE_BYTES_MAX:
        raise UsageError(
            f"what each task is sent has {size} bytes; the limit is {CLOSURE_BYTES_MAX}, because "
            "Spark keeps more than that on disks, with the key in it. Pass a function that makes "
            "the model, as model=make_model, and larger files"
        )
    if training.partitions is not None:
        frame = training.partitions
    else:
        frame = spark.range(0, plan.workers, 1, plan.workers)
        if plan.initial is not None:
            frame = frame.crossJoin(F.broadcast(_beginning(spark, plan.recipe, plan.initial)))
    mapped = frame.mapInArrow(task(train, assignment), REPORT_DDL, profile=plan.profile)
    return SparkJob(spark, mapped.collect)


def _beginning(spark: SparkSession, recipe: Recipe, initial: Initial) -> DataFrame:
    """Return what workers begin with beside the parameters, as a row that all tasks get."""
    buffers = buffers_of_state(recipe.make_model(), initial.state)
    content = Beginning(buffers, initial.optimizer).packed()
    return spark.createDataFrame([(content,)], f"{BEGINNING} binary")


def _kept(reports: list[Report]) -> OptimizerState | None:
    """Return the state of the optimizer that has trained on most rows, of those that came."""
    kept = [each for each in reports if each.optimizer is not None]
    best = max(kept, key=lambda each: sum(span.rows for span in each.spans), default=None)
    return None if best is None else best.optimizer


def _watched(job: SparkJob, access: Access, plan: Plan, validation: Validation | None) -> list[Any]:
    """Wait for the job's rows, validate meanwhile, and end the job if the driver is interrupted."""
    said = time.monotonic()
    try:
        while not job.is_done(TURN_SECONDS):
            is_time = time.monotonic() - said >= PROGRESS_SECONDS
            if validation is None and not is_time:
                continue
            ledger = access.ledger()
            if validation is not None and ledger:
                _judge(validation, _epochs_over(ledger))
            if is_time and ledger:
                said = time.monotonic()
                total = ledger["items"] * ledger["epochs"]
                logger.info("%d of %d items are trained on", ledger["done"], total)
        rows = job.result()
        if validation is not None:
            ledger = access.ledger()
            done = ledger["done"] + ledger["finished"] if ledger else 0
            _judge(validation, done // ledger["items"] if ledger else plan.epochs)
        return list(rows)
    except BaseException as error:
        _end(job, access)
        if INDETERMINATE in str(error).lower():
            raise DataError(
                "the input is another one each time it is computed, as with rand() before a "
                "repartition, so a lost executor ends the training: pass approach='export', or "
                "write the data to a table first"
            ) from error
        raise


def _judge(validation: Validation, epoch: int) -> None:
    """Judge the model of an epoch that is over, unless that was done."""
    score = validation.judge(epoch)
    if score is not None:
        logger.info("epoch %d: %g on what is held out", epoch, score)


def _epochs_over(ledger: dict[str, Any]) -> int:
    """Return of how many epochs all items are done."""
    return int(ledger["done"] // ledger["items"]) if ledger else 0


def _end(job: SparkJob, access: Access) -> None:
    """End what runs on the cluster: first the workers' loops, which would train on for seconds."""
    for end in (lambda: access.order("stop-training"), job.cancel):
        try:
            end()
        except Exception as error:
            logger.warning("the job was not ended: %s", error)
    job.is_done(CANCEL_SECONDS)


def _check_complete(
    ledger: dict[str, Any], reports: list[Report], plan: Plan, validation: Validation | None
) -> None:
    """Refuse to return a model that was not trained on everything."""
    if not ledger or (validation is not None and validation.reason is not None):
        return
    total = ledger["items"] * ledger["epochs"]
    if ledger["done"] + ledger["finished"] < total:
        raise WorkerFailedError(
            f"{ledger['done']} of {total} items were trained on, and all tasks have ended: an "
            "operator may have stopped the training"
        )


def _report(content: bytes) -> Report:
    values = cloudpickle.loads(content)
    return Report(**{**values, "spans": [Span(**span) for span in values["spans"]]})


def _error_of(report: Report) -> Exception:
    where = f"on host {report.host}, task {report.attempt}"
    remote = WorkerFailedError(f"{where}:\n{report.trace}")
    try:
        error = cloudpickle.loads(report.error) if report.error is not None else None
    except Exception:
        error = None
    if not isinstance(error, GradwireError):
        last = report.trace.strip().rpartition("\n")[2]
        told = WorkerFailedError(f"{where}: {last}{advice(last)}")
        told.__cause__ = remote
        return told
    error.__cause__ = remote
    return error
