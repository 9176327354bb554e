"""`Plan`, what the driver is to train and how, and `Outcome`, what came of it: data alone."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from pyspark.sql import DataFrame

from gradwire.spark.data.batches import Batch, Decode
from gradwire.spark.data.columns import Columns
from gradwire.spark.data.sources import Source
from gradwire.spark.recipe import Recipe
from gradwire.spark.training.beginning import OptimizerState
from gradwire.spark.training.worker import Report


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
    master_http: str | None = None
    """Where that master serves HTTP; None for the usual port of its host."""
    token_file: str | None = None
    """With the token of its operators."""
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
