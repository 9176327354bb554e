"""Updates of the demo's model, recorded while it is trained.

Workers of the demo, with its data, optimizer, density, thresholds and feedback, take turns in
this process: each makes a step and sends an update, which all others apply before their next one.
There is no network, so nothing is late by more than one round. The first update is of the first
step: the policy has still to find its threshold, and that counts like the rest.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import numpy as np
import torch

from benchmarks.rivals.dl4j import encode
from gradwire.cli.demo.command import DENSITY, WORKERS
from gradwire.cli.demo.model import CONTEXT, loss_of, new_model
from gradwire.cli.demo.text import Batches, load_text
from gradwire.cli.demo.train import BATCH, LEARNING_RATE, MOMENTUM_SHARED
from gradwire.replica.thresholds import Thresholds
from gradwire.settings.settings import Settings
from gradwire.target.torch_parameters import TorchParameters
from gradwire_codecs import LocalFeedback, Replica, encoded_hits

STEPS: Final = 125
"""Of each worker: 500 updates in all."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """An update of a worker."""

    encoded: list[bytes]
    dl4j_bytes: int
    """What Deeplearning4j's format takes for one threshold of each."""

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(map(len, self.encoded))

    @property
    def hits(self) -> int:
        """How many elements it changes."""
        return sum(map(encoded_hits, self.encoded))


class _Trainee:
    """A worker of the demo without a network."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._model = new_model()
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=LEARNING_RATE, betas=(MOMENTUM_SHARED, 0.99)
        )
        self._parameters = TorchParameters(list(self._model.named_parameters()))
        vector = self._parameters.vector
        self._feedback = LocalFeedback(vector, Replica.from_parameters(vector))
        settings = Settings(master="nobody is asked", target_density=DENSITY)
        self._thresholds = Thresholds(settings, self._feedback, clock=perf_counter)

    def step(self) -> Recorded:
        """Train with one batch; return what that sends."""
        self._optimizer.zero_grad()
        loss_of(self._model, *self._batches.next()).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._parameters.gather()
        threshold = self._thresholds.next()
        assert threshold is not None
        words = encode(
            self._feedback.residual(), np.float32(threshold * self._feedback.replica.quantum)
        )
        recorded = Recorded(self._feedback.encode(threshold), words.nbytes)
        self._thresholds.observe(sent=recorded.hits, size_bytes=recorded.size)
        return recorded

    def apply(self, update: Recorded) -> None:
        """Add what a peer sent."""
        for body in update.encoded:
            self._feedback.apply(body)
        self._parameters.scatter()


def demo_shapes() -> list[tuple[int, ...]]:
    """Return the shapes of the tensors of the demo's model."""
    return [tuple(tensor.shape) for tensor in new_model().parameters()]


def record(workers: int = WORKERS, steps: int = STEPS) -> list[Recorded]:
    """Train, and return the updates that are not empty."""
    with _one_thread():
        return _record(workers, steps)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread: with more, so small a model takes longer."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _record(workers: int, steps: int) -> list[Recorded]:
    text, _ = load_text()
    trainees = [
        _Trainee(Batches(text, batch=BATCH, context=CONTEXT, seed=seed)) for seed in range(workers)
    ]
    updates = []
    for _ in range(steps):
        for trainee in trainees:
            update = trainee.step()
            for peer in trainees:
                if peer is not trainee:
                    peer.apply(update)
            if update.encoded:
                updates.append(update)
    return updates
