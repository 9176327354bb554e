"""What executors run for benchmark `spark`: a model, DDP's training, and a batch that kills."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import nn

from gradwire.spark import Batch
from support.spark_models import class_loss, executor_of_this_task

FEATURES = 64
CLASSES = 8
RATE = 1e-3


def make_model() -> nn.Module:
    """Return the model of both."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, CLASSES)
    )


def made_data(rows: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return rows, and their classes by a network that is drawn once, in part at random."""
    teacher = np.random.default_rng(7)
    first = teacher.normal(size=(FEATURES, 32)) / np.sqrt(FEATURES)
    second = teacher.normal(size=(32, CLASSES))
    drawn = np.random.default_rng(seed)
    inputs = drawn.normal(size=(rows, FEATURES)).astype(np.float32)
    outputs = np.maximum(inputs @ first, 0) @ second + drawn.normal(size=(rows, CLASSES))
    return inputs, outputs.argmax(axis=1).astype(np.int64)


def loaded(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of a file."""
    table = pq.read_table(path)
    inputs = table["features"].combine_chunks().flatten().to_numpy().reshape(-1, FEATURES)
    return torch.from_numpy(inputs.copy()), torch.from_numpy(table["label"].to_numpy().copy())


def shuffled(path: str, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the batches of a file in another order each time."""
    inputs, labels = loaded(path)
    for part in torch.split(torch.randperm(len(labels)), rows):
        yield inputs[part], labels[part]


def train_with_ddp(
    paths: list[str], rows: int, epochs: int, victim: str | None
) -> tuple[dict[str, torch.Tensor], float] | None:
    """Train on the files of this rank, as scripts for TorchDistributor do; rank 0 has a result.

    `victim` is a folder where the process that makes the first file kills its executor.
    """
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.set_num_threads(1)
    model = nn.parallel.DistributedDataParallel(make_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    began = time.perf_counter()
    for epoch in range(epochs):
        for path in paths[rank::world]:
            for inputs, labels in shuffled(path, rows):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), labels)
                torch.autograd.backward(loss)
                optimizer.step()
            if victim is not None and epoch == epochs // 2:
                kill_once(victim)
    seconds = time.perf_counter() - began
    state = model.module.state_dict()
    torch.distributed.destroy_process_group()
    return (state, seconds) if rank == 0 else None


def loss_that_kills(folder: str, batches: int, model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the loss of a batch; the first worker that has trained on so many is killed."""
    global _batches
    _batches += 1
    if _batches == batches:
        kill_once(folder)
    return class_loss(model, batch)


_batches = 0


def kill_once(folder: str) -> None:
    """Kill the executor of this process, unless one was killed before."""
    try:
        (Path(folder) / "killed").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(executor_of_this_task(), 9)
    os.kill(os.getpid(), 9)
