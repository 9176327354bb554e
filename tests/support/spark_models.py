"""Models that executors make: they import them from here, as from a package of a user's."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn

from gradwire.spark import Batch

adam = partial(torch.optim.Adam, lr=3e-3)

FEATURES = 64
CLASSES = 10


def digits_model() -> nn.Module:
    """Return a small classifier of digits, with BatchNorm."""
    return nn.Sequential(
        nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, CLASSES)
    )


def linear() -> nn.Module:
    """Return a linear model of two features."""
    return nn.Linear(2, 1)


def model_that_fails() -> nn.Module:
    """Return a model on a driver, and fail on executors."""
    if "SPARK_ENV_LOADED" in os.environ or "pyspark.worker" in __import__("sys").modules:
        raise RuntimeError("no weights on this host")
    return digits_model()


class TwoInputs(nn.Module):
    """Takes two columns, and returns two numbers for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 2)
        self.second = nn.Linear(1, 2)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.first(first) + self.second(second.reshape(-1, 1))
        return found


def picture_model() -> nn.Module:
    """Return a model of pictures of 8 x 8 pixels, as bytes."""

    class Scaled(nn.Module):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return pixels.float() / 16.0

    return nn.Sequential(Scaled(), digits_model())


def killing(folder: str, victims: str, model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the loss of a batch, after the first batches have killed where they were.

    `victims` names one after the other: ``worker``, the Python process of a task; ``executor``; or
    ``daemon``, the Python process that starts those of tasks. The process of this task is killed
    each time: it would outlive its daemon.
    """
    for place, victim in enumerate(victims.split()):
        try:
            (Path(folder) / f"{place}").touch(exist_ok=False)
        except FileExistsError:
            continue
        if victim == "executor":
            os.kill(executor_of_this_task(), signal.SIGKILL)
        if victim == "daemon":
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return class_loss(model, batch)


def class_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross entropy."""
    return nn.functional.cross_entropy(model(*batch.inputs), batch.targets[0].long())


def slow(folder: str, seconds: float, model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the loss of a batch, some time after a file has said that training goes on."""
    (Path(folder) / "trains").touch()
    time.sleep(seconds)
    return class_loss(model, batch)


def executor_of_this_task() -> int:
    """Return the process id of the JVM that this Python worker belongs to."""
    pid = os.getpid()
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def stalling(folder: str, model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the loss of a batch, but in the first task that comes here: it stalls for good."""
    try:
        (Path(folder) / "stalls").touch(exist_ok=False)
    except FileExistsError:
        return class_loss(model, batch)
    while True:
        time.sleep(60)
