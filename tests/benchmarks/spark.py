"""A training on Spark, beside TorchDistributor with DDP; and with an executor that is killed in it.

Both train the same model on the same Parquet files, with the same rows in a batch and the same
rate, on executors of a cluster of this machine. TorchDistributor needs a barrier stage, and a task
that is lost ends the job. *Whole job* is what a user waits for; *training* is from the first batch
to the last.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from torch import nn

from benchmarks.figures import Figure, at_least, at_most, beside, within

RIVAL: Final = "TorchDistributor, DDP on gloo"

WHOLE_AIM: Final = 0.6
TRAINING_AIM: Final = 1.0
LOST_SECONDS_AIM: Final = 5.0
BYTES_AIM: Final = 50.0

AS_USERS_HAVE_IT: Final = {
    "spark__driver__extraJavaOptions": "",
    "spark__executor__extraJavaOptions": "",
}
"""Java's options, in place of those for tests."""

HELD_OUT: Final = 10_000
"""Rows to tell accuracy with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    rows: int = 100_000
    files: int = 40
    epochs: int = 3
    batch: int = 256
    runs: int = 4
    """Of each, in turn."""
    warming: int = 1
    """Before them, which do not count."""


FULL: Final = Plan()
QUICK: Final = Plan(rows=2_000, files=4, epochs=1, runs=1, warming=0)


@dataclass(slots=True)
class Measured:
    """What was measured of one of the two."""

    whole: list[float] = field(default_factory=list)
    training: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)


def run(plan: Plan) -> list[Figure]:
    """Measure, where there is Spark."""
    if find_spec("pyspark") is None or which("java") is None:
        print("spark: no pyspark or no Java here, so there is nothing to measure")
        return []
    from support.spark import cluster

    with (
        TemporaryDirectory() as name,
        cluster(Path(name) / "spark", **AS_USERS_HAVE_IT) as spark,
    ):
        return measured(spark, Path(name), plan)


def measured(spark: Any, folder: Path, plan: Plan) -> list[Figure]:
    """Measure on a cluster, with files in a folder."""
    paths = _written(folder / "data", plan)
    ours, theirs = Measured(), Measured()
    for turn in range(plan.warming + plan.runs):
        _fit(spark, plan, paths, ours if turn >= plan.warming else Measured())
        _distribute(spark, plan, paths, theirs if turn >= plan.warming else Measured())
    lost = [_lost_seconds(spark, plan, paths, folder / f"kill{turn}", ours)
            for turn in range(plan.runs)]  # fmt: skip
    over = _distributor_fails(spark, plan, paths, folder / "kill")
    return _figures(plan, ours, theirs, lost, over=over)


def _figures(
    plan: Plan, ours: Measured, theirs: Measured, lost: Sequence[float], *, over: float
) -> list[Figure]:
    runs = plan.runs
    updates = plan.rows * plan.epochs / plan.batch
    dense = updates * _elements() * 4  # a ring of two sends each gradient once, by each
    return [
        at_most("whole job", median(ours.whole), "s", RIVAL, median(theirs.whole),
                aim=WHOLE_AIM, runs=runs),
        at_most("training", median(ours.training), "s", RIVAL, median(theirs.training),
                aim=TRAINING_AIM, runs=runs),
        at_least("accuracy", median(ours.accuracy), "", RIVAL, median(theirs.accuracy),
                 aim=1.0, runs=runs),
        at_least("sent with DDP", dense / 1e6, "MB", "gradwire", median(ours.sent) / 1e6,
                 aim=BYTES_AIM, runs=runs),
        within("seconds lost with an executor", median(lost), "s", "the same without",
               median(ours.whole), aim=LOST_SECONDS_AIM, runs=runs),
        beside("until the job has failed", over, "s", "gradwire's whole job",
               median(ours.whole) + median(lost), runs=1),
    ]  # fmt: skip


def _elements() -> int:
    from benchmarks.spark_programs import make_model

    return sum(each.numel() for each in make_model().parameters())


def _written(folder: Path, plan: Plan) -> list[str]:
    """Write the files; return their paths."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.spark_programs import FEATURES, made_data

    folder.mkdir()
    inputs, labels = made_data(plan.rows, seed=1)
    paths = []
    for number, part in enumerate(np.array_split(np.arange(plan.rows), plan.files)):
        flat = pa.array(inputs[part].reshape(-1))
        features = pa.FixedSizeListArray.from_arrays(flat, FEATURES)
        path = folder / f"{number:03}.parquet"
        pq.write_table(pa.table({"features": features, "label": labels[part]}), path)
        paths.append(str(path))
    return paths


def _fit(
    spark: Any, plan: Plan, paths: list[str], measured: Measured, train_batch: Any = None
) -> float:
    """Train with gradwire; return the seconds of the whole job."""
    from benchmarks.spark_programs import RATE, make_model
    from gradwire.spark import TorchEstimator

    began = time.perf_counter()
    model = TorchEstimator(
        model=make_model,
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=RATE),
        batchSize=plan.batch,
        epochs=plan.epochs,
        trainBatch=train_batch,
    ).fit_paths(spark, paths)
    seconds = time.perf_counter() - began
    assert model.summary is not None
    spans = [item for item in model.summary.items if item.rows]
    measured.whole.append(seconds)
    measured.training.append(
        max(item.began + item.seconds for item in spans) - min(item.began for item in spans)
    )
    measured.accuracy.append(_accuracy(model.module))
    measured.sent.append(model.summary.bytes_sent)
    return seconds


def _distribute(spark: Any, plan: Plan, paths: list[str], measured: Measured) -> None:
    """Train with DDP, by Spark's own means."""
    from pyspark.ml.torch.distributor import TorchDistributor

    from benchmarks.spark_programs import make_model, train_with_ddp

    began = time.perf_counter()
    distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    state, seconds = distributor.run(train_with_ddp, paths, plan.batch, plan.epochs, None)
    measured.whole.append(time.perf_counter() - began)
    measured.training.append(seconds)
    model = make_model()
    model.load_state_dict(state)
    measured.accuracy.append(_accuracy(model))


def _lost_seconds(spark: Any, plan: Plan, paths: list[str], folder: Path, ours: Measured) -> float:
    """Return by how much a job is longer of which an executor is killed in the middle."""
    from benchmarks.spark_programs import loss_that_kills

    folder.mkdir()
    middle = max(1, plan.rows * plan.epochs // plan.batch // 4)  # of one worker's batches
    killing = partial(loss_that_kills, str(folder), middle)
    seconds = _fit(spark, plan, paths, Measured(), killing)
    return seconds - median(ours.whole)


def _distributor_fails(spark: Any, plan: Plan, paths: list[str], folder: Path) -> float:
    """Return the seconds until a job of TorchDistributor has failed whose executor is killed."""
    from pyspark.ml.torch.distributor import TorchDistributor

    from benchmarks.spark_programs import train_with_ddp

    folder.mkdir()
    began = time.perf_counter()
    distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    try:
        distributor.run(train_with_ddp, paths, plan.batch, plan.epochs, str(folder))
    except Exception as error:
        print(f"{RIVAL}: {str(error).splitlines()[0][:120]}")
    else:
        print(f"{RIVAL}: its job has survived")
    return time.perf_counter() - began


def _accuracy(model: nn.Module) -> float:
    from benchmarks.spark_programs import made_data

    inputs, labels = made_data(HELD_OUT, seed=2)
    with torch.no_grad():
        found = model.eval()(torch.from_numpy(inputs)).argmax(dim=1)
    return float((found == torch.from_numpy(labels)).float().mean())
