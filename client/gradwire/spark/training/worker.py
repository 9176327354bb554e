"""What a task does: join, train on items until there are none, leave.

It runs in Spark's Python workers. What would go wrong the same way again comes back in the report,
which the driver raises once; Spark would try it four times. What another attempt may mend, such as
a lost connection, is raised here.
"""

import logging
import os
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa
import torch
from pyspark import TaskContext, cloudpickle

import gradwire
from gradwire.errors import GradwireError, TransportError
from gradwire.spark.data.batches import Decode
from gradwire.spark.data.columns import Columns
from gradwire.spark.data.sources import Source, Spool
from gradwire.spark.recipe import Recipe, loaded
from gradwire.spark.training.beginning import (
    STATE_BYTES_MAX,
    Beginning,
    OptimizerState,
    beginning_of,
    kept_state,
)
from gradwire.spark.training.tasks import collector_paused
from gradwire_protocol.crypto.keys import IssuingKey, WorkerKey, parse_keys

logger = logging.getLogger("gradwire.spark")

WORK: Final = "train"
"""Name of the items that workers train on."""

BEGINNING: Final = "beginning"
"""Column of the tasks' input with a `Beginning`."""

REPORT: Final = pa.schema([("report", pa.binary())])
REPORT_DDL: Final = "report binary"

HOST_CHARACTERS_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class Assignment:
    """All that a task needs to know. Small, so that it is in no file: it has the key."""

    master: str
    key: str | None = field(repr=False)
    """Text of the issuing key; each attempt makes a key of its own of it."""
    run: str
    recipe: bytes
    source: Source | None
    """What workers share; None where each trains on its own partition."""
    columns: Columns | None
    decode: Decode | None
    batch: int
    epochs: int
    seed: int
    lease_seconds: float
    settings: dict[str, Any]
    """More settings of `gradwire.join`."""


@dataclass(slots=True)
class Span:
    """What a worker did for one item, in seconds from `began` on, a Unix time."""

    epoch: int
    item: int
    began: float
    rows: int = 0
    steps: int = 0
    loss: float = 0.0
    """Mean over rows."""
    data: float = 0.0
    compute: float = 0.0
    encode: float = 0.0
    apply: float = 0.0
    wait: float = 0.0
    seconds: float = 0.0
    """How long it took in all."""


@dataclass(slots=True)
class Report:
    """What came of a task."""

    host: str
    partition: int
    attempt: int
    """Spark's `taskAttemptId`, the only number that is no other attempt's."""
    began: float
    joined: float = 0.0
    left: float = 0.0
    rank: int | None = None
    spans: list[Span] = field(default_factory=list)
    bytes_sent: int = 0
    bytes_received: int = 0
    staleness: float = 0.0
    error: bytes | None = None
    """The exception, pickled."""
    trace: str = ""
    optimizer: OptimizerState | None = None
    """Of this worker, where all such states together are not too large."""
    extra: bytes | None = None
    """What else a task has to say."""


def probe(recipe: bytes, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Find out whether this executor can train: it makes the model, and compiles the codec."""
    for _ in parts:
        pass
    report = new_report()
    with noting(report):
        with collector_paused():  # the first optimizer imports torch._dynamo
            model = loaded(recipe).make_model()
            loaded(recipe).make_optimizer(model)
        from gradwire_codecs import warm_up

        warm_up()  # where nothing is compiled yet, the compiler leaves much garbage
    yield row_of(report)


def train(assignment: Assignment, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Train until all items are done, or training is to end; yield the report as the only row."""
    report = new_report()
    with noting(report):
        spool: Spool | None = None
        if assignment.source is None:
            assert assignment.columns is not None
            spool = Spool(parts, assignment.columns, assignment.decode, report.partition)
        beginning: Beginning | None = None
        for part in parts:  # which partition it is does not matter
            if beginning is None and BEGINNING in part.schema.names:
                beginning = beginning_of(part.column(BEGINNING)[0].as_py())
        if spool is None or spool.rows:
            _train(assignment, spool, beginning, report)
    yield row_of(report)


def _train(
    assignment: Assignment, spool: Spool | None, beginning: Beginning | None, report: Report
) -> None:
    recipe = loaded(assignment.recipe)
    model = recipe.make_model()
    device = device_of_task()
    model.to(device)
    optimizer = recipe.make_optimizer(model)
    if beginning is not None and not beginning.give(model, optimizer):
        logger.info("the optimizer begins without a state")
    session = gradwire.join(
        model,
        optimizer=optimizer,
        master=assignment.master,
        key=_own_key(assignment.key, report),
        run=assignment.run,
        **assignment.settings,
    )
    report.joined, report.rank = time.time(), session.rank
    try:
        model.train()
        source: Source = spool if spool is not None else assignment.source  # type: ignore[assignment]
        for epoch, item in _items(session, assignment, spool):
            _train_item(session, recipe, model, optimizer, source, epoch, item, assignment, report)
            if session.stopping:
                break
        report.optimizer = kept_state(optimizer, STATE_BYTES_MAX // (report.partition + 1))
        session.leave(training_is_over=spool is None)  # other partitions may come later
    except BaseException as error:
        if not isinstance(error, TransportError):
            with suppress(GradwireError):
                session.stop_training(f"{report.host}: {type(error).__name__}: {error}")
        session.close(f"{type(error).__name__}: {error}")
        raise
    finally:
        stats = session.stats
        report.left = time.time()
        report.bytes_sent, report.bytes_received = stats.bytes_sent, stats.bytes_received
        report.staleness = stats.staleness


def _items(
    session: gradwire.Session, assignment: Assignment, spool: Spool | None
) -> Iterator[tuple[int, int]]:
    """Yield epochs and items: the next ones that the master grants, or all of the partition."""
    if spool is None:
        assert assignment.source is not None
        for item in session.items(
            WORK,
            len(assignment.source),
            epochs=assignment.epochs,
            shuffle_seed=assignment.seed,
            lease_seconds=assignment.lease_seconds,
        ):
            yield item.epoch, item.index
        return
    for epoch in range(assignment.epochs):
        for index in range(len(spool)):
            yield epoch, index


def _train_item(
    session: gradwire.Session,
    recipe: Recipe,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    source: Source,
    epoch: int,
    item: int,
    assignment: Assignment,
    report: Report,
) -> None:
    clock = time.perf_counter
    began = clock()
    span = Span(epoch, item, time.time())
    report.spans.append(span)
    before = session.stats
    device = next(model.parameters()).device
    seed = hash((assignment.seed, epoch, item)) & 0x7FFF_FFFF  # numbers hash alike everywhere
    at = clock()
    for batch in source.batches(item, assignment.batch, seed):
        if not len(batch):
            continue
        batch = batch.to(device)
        span.data += clock() - at
        at = clock()
        optimizer.zero_grad()
        loss = recipe.loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        value = float(loss.detach())
        span.compute += clock() - at
        span.loss += value * len(batch)
        span.rows += len(batch)
        span.steps += 1
        session.step()
        session.log(loss=value)
        at = clock()
        if session.stopping:
            break
    span.loss /= max(1, span.rows)
    after = session.stats
    span.encode = after.encode_seconds - before.encode_seconds
    span.apply = after.apply_seconds - before.apply_seconds
    span.wait = after.wait_seconds - before.wait_seconds
    span.seconds = clock() - began


class noting:  # noqa: N801  # reads like a function
    """Note in a report what would fail the same way again; let through what may not."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None:
            return False
        if isinstance(error, TransportError | OSError) or not isinstance(error, Exception):
            return False
        self._report.trace = "".join(traceback.format_exception(error))
        with suppress(Exception):
            self._report.error = cloudpickle.dumps(error)
        return True


def device_of_task() -> torch.device:
    """Return the GPU that Spark has given this task, if any, and take as many threads as cores."""
    context = TaskContext.get()
    if context is not None:
        torch.set_num_threads(max(1, int(context.cpus())))
    gpus = context.resources().get("gpu") if context is not None else None
    if gpus is not None and torch.cuda.is_available():
        return torch.device("cuda", int(gpus.addresses[0]) % torch.cuda.device_count())
    return torch.device("cpu")


def partition_of_task() -> int:
    """Return the number of the partition that this task works on; 0 outside tasks."""
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _own_key(text: str | None, report: Report) -> WorkerKey | None:
    """Return a key that no other attempt has: a master has one connection for each."""
    if text is None:
        return None
    issuing = parse_keys(text)
    assert isinstance(issuing, IssuingKey)
    name = f"{report.host[:HOST_CHARACTERS_MAX]}/task-{report.attempt}-{os.urandom(3).hex()}"
    return issuing.worker_key(name)


def new_report() -> Report:
    """Return the report of this task, which begins now."""
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context is not None else 0
    return Report(socket.gethostname(), partition_of_task(), attempt, time.time())


def row_of(report: Report) -> pa.RecordBatch:
    """Return a report as the row that a task yields."""
    values = asdict(report) | {"optimizer": report.optimizer}
    return pa.record_batch([[cloudpickle.dumps(values)]], schema=REPORT)
