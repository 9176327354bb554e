"""`train_on`: the driver's half of a training. It has the master, and runs the job of the workers.

The driver founds the run with the model's first parameters, and leaves it. Workers come and go.
When their job is over, the driver reads the parameters as an observer.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import torch
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

import gradwire
from gradwire.cli.operate import answer_to
from gradwire.errors import GradwireError, UsageError
from gradwire.settings.settings import resolve_settings
from gradwire.spark.data.batches import Batch, Decode
from gradwire.spark.data.columns import Columns
from gradwire.spark.data.sources import Source
from gradwire.spark.errors import DataError, WorkerFailedError
from gradwire.spark.recipe import Recipe
from gradwire.spark.training.addresses import driver_address
from gradwire.spark.training.beginning import (
    Beginning,
    OptimizerState,
    buffers_of_state,
    restored,
)
from gradwire.spark.training.job import SparkJob, advice
from gradwire.spark.training.validation import Validation, copied_state
from gradwire.spark.training.worker import (
    BEGINNING,
    REPORT_DDL,
    WORK,
    Assignment,
    Report,
    Span,
    probe,
    train,
)
from gradwire_protocol.crypto.keys import Role, RunKey
from gradwire_protocol.messages.modes.mode import parse_mode
from gradwire_protocol.messages.orders import Action, Order
from gradwire_udp.files.keys import read_run_keys

logger = logging.getLogger("gradwire.spark")

CLOSURE_BYTES_MAX: Final = 900 << 10
"""Larger closures go to the disks of driver and executors, with the key that is in them: Spark
broadcasts those above 1 MiB."""

IDLE_SECONDS: Final = 5.0
"""A worker whose executor was lost is given up after this time, and what it held goes to others."""

WORKERS_SPARE: Final = 16
"""Workers beyond those that were asked for: retried tasks and twins join before others are gone."""

TURN_SECONDS: Final = 0.1
"""How often the driver looks whether an epoch is over: workers wait for it then."""

VALIDATED_BUFFER_STEPS: Final = 8
"""Steps between two averages of buffers where the model of each epoch is judged: with the usual
100, that would have BatchNorm's statistics of some epochs ago."""

PROGRESS_SECONDS: Final = 10.0
"""How often it says so."""

CANCEL_SECONDS: Final = 5.0
"""How long the driver waits for a job that it has cancelled."""

RESUMED_RUN: Final = "spark"
"""Name of a run with checkpoints: the driver of another attempt goes on with it."""

INDETERMINATE: Final = "indeterminate"
"""Spark's word for input that differs from one evaluation to the next."""


@dataclass(frozen=True, slots=True)
class Initial:
    """A model that training goes on from."""

    state: dict[str, torch.Tensor]
    optimizer: OptimizerState | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to train on a cluster, and how."""

    recipe: Recipe
    workers: int
    batch: int
    epochs: int
    seed: int
    master: str | None = None
    """Address of a master; None starts one in the driver."""
    key_file: str | None = None
    """With the run key of that master."""
    port: int = 0
    network_mask: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    profile: Any = None
    """A `ResourceProfile` of the tasks."""
    lease_seconds: float = 600.0
    """An item that was held for so long goes to another worker as well."""
    checkpoint: str | None = None
    """Folder in which the driver's master keeps checkpoints."""
    limits: dict[str, Any] | None = None
    """Of early stopping."""
    initial: Initial | None = None
    """Where training begins; None for the parameters that the recipe draws."""


@dataclass(frozen=True, slots=True)
class Training:
    """The data that is trained on."""

    source: Source | None
    """None where each task trains on its own partition of `partitions`."""
    partitions: DataFrame | None
    columns: Columns | None
    decode: Decode | None
    held_out: Batch | None


@dataclass(slots=True)
class Outcome:
    """What came of a training."""

    state: dict[str, torch.Tensor]
    reports: list[Report] = field(default_factory=list)
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    """Name, Unix time and seconds of what the driver did."""
    ledger: dict[str, Any] = field(default_factory=dict)
    """What the master says of the items."""
    done_before: int = 0
    """Items that were done when this job began, because it goes on from a checkpoint."""
    scores: list[float] = field(default_factory=list)
    """Loss on what was held out, after each epoch; NaN for epochs of an earlier job."""
    best_epoch: int | None = None
    stopped: str | None = None
    """Why training ended before its last epoch."""
    optimizer: OptimizerState | None = None
    """What the optimizer of the worker has kept that has trained on most rows."""


class Phases:
    """Notes what the driver does, and how long that takes."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, float, float]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note the block."""
        began, clock = time.time(), time.perf_counter()
        try:
            yield
        finally:
            self.noted.append((name, began, time.perf_counter() - clock))


@dataclass(frozen=True, slots=True)
class Access:
    """How the driver and its workers reach the master."""

    address: str
    """For the driver."""
    advertised: str
    """For executors."""
    run_key: RunKey | None
    run: str
    mode: str | None = None
    """Of the run that the driver founds."""

    def found(self, model: nn.Module, recipe: Recipe, initial: Initial | None = None) -> None:
        """Found the run with the model's parameters, and leave it.

        Where the run averages the state of optimizers, it begins with that of `initial`, or that
        of a new one.
        """
        mode = None if self.mode is None else parse_mode(self.mode)
        has_state = mode is not None and mode.optimizer_state is not None
        optimizer = recipe.make_optimizer(model) if has_state else None
        if optimizer is not None and initial is not None and initial.optimizer is not None:
            restored(optimizer, initial.optimizer)
        self.join(model, Role.WORKER, optimizer).leave()

    def join(
        self, model: nn.Module, role: Role, optimizer: torch.optim.Optimizer | None = None
    ) -> gradwire.Session:
        """Join from the driver."""
        return gradwire.join(
            model,
            optimizer=optimizer,
            master=self.address,
            key=self._key(role),
            run=self.run,
            log_level="warning",
            workers=1,
            start_timeout_seconds=0.0,
            mode=self.mode,
        )

    def read(self, model: nn.Module) -> None:
        """Give a module the parameters and buffers that the run has now."""
        self.join(model, Role.OBSERVER).close("it has read the parameters")

    def order(self, action: Action, name: str = "") -> str:
        """Give an operator's order; return the answer."""
        values = {"master": self.address, "key": self._key(Role.OPERATOR)}
        return answer_to(Order(action, name, self.run), resolve_settings(values, os.environ))

    def ledger(self) -> dict[str, Any]:
        """Return what the master says of the items; empty while no worker has asked for one."""
        status = json.loads(self.order(Action.STATUS))
        runs = status.get("runs", [status])
        works = [w for run in runs if run["name"] == self.run for w in run["works"]]
        return next((work for work in works if work["name"] == WORK), {})

    def issuing_text(self) -> str | None:
        """Return the key for workers as text."""
        return None if self.run_key is None else self.run_key.issuing_key(Role.WORKER).format()

    def _key(self, role: Role) -> Any:
        if self.run_key is None:
            return None
        return self.run_key.worker_key(f"driver-{os.urandom(3).hex()}", role)


def probing(spark: SparkSession, recipe: bytes, plan: Plan) -> SparkJob:
    """Have each executor make the model once, so that what cannot work is found before it trains.

    The Python workers that have imported torch for it are those that train.
    """
    frame = spark.range(0, plan.workers, 1, plan.workers)
    mapped = frame.mapInArrow(partial(probe, recipe), REPORT_DDL, profile=plan.profile)
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


def starting(spark: SparkSession, plan: Plan, stack: ExitStack) -> Future[Access]:
    """Have a master start on a thread, and end with the stack; return the way to it."""
    pool = stack.enter_context(ThreadPoolExecutor(1, "gradwire-spark-master"))
    # The stack waits for the pool, and only then ends what that has entered meanwhile.
    return pool.submit(stack.enter_context, _access(spark, plan))


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
            lambda epochs: access.order(Action.PAUSE_ITEMS, str(epochs)),
            lambda: access.order(Action.STOP_TRAINING),
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
    access.order(Action.END_RUN)  # nobody goes on with it
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
    mapped = frame.mapInArrow(partial(train, assignment), REPORT_DDL, profile=plan.profile)
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


@contextmanager
def _access(spark: SparkSession, plan: Plan) -> Iterator[Access]:
    """Yield the way to a master: one of this process, which ends with the block, or another."""
    run = f"spark-{uuid4().hex[:12]}" if plan.checkpoint is None else RESUMED_RUN
    if plan.master is not None:
        keys = read_run_keys(Path(plan.key_file)) if plan.key_file is not None else [None]
        yield Access(plan.master, plan.master, keys[0], run, plan.settings.get("mode"))
        return
    address = driver_address(spark, plan.network_mask)
    options = ["--workers-max", str(plan.workers + WORKERS_SPARE)]
    options += ["--idle-timeout-seconds", f"{IDLE_SECONDS:g}"]
    if plan.checkpoint is not None:
        options += ["--checkpoint", plan.checkpoint, "--resume", "auto"]
    listen = _joined(address.listen, plan.port)
    with gradwire.local_master(listen=listen, options=options) as master:
        port = master.address.rpartition(":")[2]
        advertised = _joined(address.advertised, port)
        yield Access(master.address, advertised, master.run_key, run, plan.settings.get("mode"))


def _joined(host: str, port: int | str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
    for end in (lambda: access.order(Action.STOP_TRAINING), job.cancel):
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
