"""A worker of benchmark `slowlink`: it trains an MLP on handwritten digits, by one of the methods.

``python -m benchmarks.slowlink_worker METHOD RANK FOLDER --rate R --seconds S --widths W...``, with
the master and a key in ``GRADWIRE_*``. It says when it has started, and when it has made its first
steps; told to go on, it trains for so many seconds, and says what came of it. It ends with its
parent.
"""

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from itertools import pairwise
from threading import Event
from time import perf_counter
from typing import Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from benchmarks.programs import announce, end_with_parent
from benchmarks.rivals.ddp import data_parallel
from benchmarks.rivals.ddp_hooks import FIRST_COMPRESSED_STEP
from benchmarks.slowlink_methods import ALONE, GRADWIRE, METHODS, WORKERS
from support.digits import load_digits

BATCH: Final = 8

FIRST_STEPS: Final = FIRST_COMPRESSED_STEP
"""Steps before the clock runs. PowerSGD sends everything in these."""

SIDE: Final = 28
HELD_OUT: Final = 297
"""Of the 1797 digits."""

PARAMETERS_SEED: Final = 1
SPLIT_SEED: Final = 2
BATCHES_SEED: Final = 3


class Digits(NamedTuple):
    """Images, one a row, and which digits they are."""

    images: Tensor
    labels: Tensor

    def take(self, index: Tensor) -> "Digits":
        """Return some of them."""
        return Digits(self.images[index], self.labels[index])


@cache
def digits() -> tuple[Digits, Digits]:
    """Return what is trained on and what is held out: 28 x 28 pixels made of 8 x 8."""
    images, labels = (torch.from_numpy(array) for array in load_digits())
    small = images.float().view(-1, 1, 8, 8) / 8 - 1
    large = interpolate(small, size=(SIDE, SIDE), mode="bilinear").flatten(1)
    everything = Digits(large, labels.long())
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    return everything.take(order[HELD_OUT:]), everything.take(order[:HELD_OUT])


def make_model(widths: Sequence[int]) -> nn.Sequential:
    """Return the same model in every process."""
    torch.manual_seed(PARAMETERS_SEED)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def parallel(model: nn.Module, method: str, rank: int, folder: str) -> nn.Module:
    """Return the model as DistributedDataParallel trains it with another process."""
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=WORKERS)
    return data_parallel(model, method)


def trainer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int,
    share: Callable[[], None] | None,
) -> Callable[[], float]:
    """Return what makes a step, shares what it changed, and returns the loss of its batch."""
    learned, _ = digits()
    random = torch.Generator().manual_seed(BATCHES_SEED + rank)

    def step() -> float:
        batch = learned.take(torch.randint(len(learned.labels), (BATCH,), generator=random))
        optimizer.zero_grad()
        loss = cross_entropy(model(batch.images), batch.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if share is not None:
            share()
        return loss.item()

    return step


@torch.no_grad()
def outcome(model: nn.Module) -> dict[str, float]:
    """Return how good the model is."""
    learned, held_out = digits()
    said = model(held_out.images)
    return {
        "train_loss": cross_entropy(model(learned.images), learned.labels).item(),
        "held_out_loss": cross_entropy(said, held_out.labels).item(),
        "accuracy": (said.argmax(1) == held_out.labels).float().mean().item(),
    }


def main() -> None:
    """Train, and say what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("rank", type=int)
    parser.add_argument("folder", help="where the processes of a group meet")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--widths", type=int, nargs="+", required=True)
    options = parser.parse_args()
    go = Event()
    end_with_parent(go.set)
    announce(started=True)
    torch.set_num_threads(1)
    model = make_model(options.widths)
    with ExitStack() as stack:
        trained: nn.Module = model
        optimizer = torch.optim.SGD(model.parameters(), options.rate, momentum=options.momentum)
        share = None
        if options.method == GRADWIRE:
            # It takes time, and memory, that no rival should be charged with.
            from gradwire import join

            session = join(model, optimizer=optimizer, workers=WORKERS)
            stack.callback(session.close)
            share = session.step
        elif options.method != ALONE:
            trained = parallel(model, options.method, options.rank, options.folder)
        step = trainer(trained, optimizer, options.rank, share)
        for _ in range(FIRST_STEPS):
            step()
        announce(ready=True)
        go.wait()
        # In step, who stops leaves the other one waiting: the first one does; the other is ended.
        stops = options.rank == 0 or options.method in (ALONE, GRADWIRE)
        train(step, model, options.seconds if stops else float("inf"))


def train(step: Callable[[], float], model: nn.Module, seconds: float) -> None:
    """Train for as long as the clock runs, and say what came of it."""
    times: list[float] = []
    losses: list[float] = []
    began, elapsed = perf_counter(), 0.0
    while elapsed < seconds:
        losses.append(step())
        elapsed = perf_counter() - began
        times.append(elapsed)
    announce(times=times, losses=losses, **outcome(model))


if __name__ == "__main__":
    main()
