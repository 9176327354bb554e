"""Bytes sent until a loss is reached: a threshold for each tensor beside one for all of them.

Workers in one process train a small word model, in turns: each trains a step and encodes what is
due, and then everyone applies what the others have sent. Thresholds, codec and replicas are those
of a session; there is no network. Each way is given several target densities, and counts with the
one that reaches the loss in the fewest bytes, since its thresholds differ and so do its densities.

Three optimizers: SGD, whose changes differ between tensors as the gradients do; Adam, which makes
them the same; and Adam with a ten times larger rate for the embedding, as in [1]_, where the
changes differ because somebody knew that they should.

References
----------
.. [1] G. Yang et al., "Tensor programs V: tuning large neural networks via zero-shot hyperparameter
   transfer", 2022.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch

from benchmarks.figures import Figure, below, beside
from benchmarks.pictures import Lines, draw_lines
from benchmarks.word_model import BATCH, WordModel, held_out_loss, load_words, loss_on
from gradwire.parameters import parameters_of
from gradwire.settings import Settings
from gradwire.thresholds import Thresholds
from gradwire_codecs import LocalFeedback, Replica, encoded_hits

WORKERS: Final = 4
STEPS: Final = 200
EVALUATE_EVERY: Final = 10
SMOOTHING: Final = 3
"""Evaluations that a loss is the mean of: one alone scatters by several hundredths."""

SEEDS: Final = 3
DENSITIES: Final = (0.001, 0.002, 0.004)
"""Around those at which the fewest bytes lead to a loss, with this model."""

REACHED_AT: Final = 0.6
"""Part of the steps after which one threshold for all has reached the loss that is asked for."""

MEGABYTES: Final = (0.2, 0.4, 0.8, 1.6)
"""Sent by all workers together, where losses are compared for the picture."""

OURS: Final = "gradwire, a threshold per tensor"
RIVAL: Final = "one threshold"


def _sgd(model: WordModel) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5)


def _adam(model: WordModel) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.0, 0.99))


def _adam_by_width(model: WordModel) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [
        {"params": list(model.words.parameters()), "lr": 1e-2},
        {"params": [*model.hidden.parameters(), *model.predict.parameters()]},
    ]
    return torch.optim.Adam(groups, lr=1e-3, betas=(0.0, 0.99))


OPTIMIZERS: Final[dict[str, Callable[[WordModel], torch.optim.Optimizer]]] = {
    "SGD": _sgd,
    "Adam": _adam,
    "Adam, embedding x10": _adam_by_width,
}


@dataclass(frozen=True, slots=True)
class Course:
    """How a training went: bytes sent by all workers so far, and the held-out loss then."""

    sent: list[int]
    losses: list[float]

    def bytes_to(self, loss: float) -> float:
        """Return the bytes after which a loss was reached, by interpolation; inf for never."""
        if min(self.losses) > loss:
            return float("inf")
        i = next(i for i, reached in enumerate(self.losses) if reached <= loss)
        if i == 0:
            return float(self.sent[0])
        return float(
            np.interp(-loss, [-self.losses[i - 1], -self.losses[i]], self.sent[i - 1 : i + 1])
        )

    def loss_at(self, sent: float) -> float:
        """Return the loss after so many bytes, by interpolation; inf beyond the last."""
        return float(np.interp(sent, self.sent, self.losses, right=float("inf")))


class Trainee:
    """One worker: a model, what it shares, and what it is to send."""

    def __init__(
        self,
        make_optimizer: Callable[[WordModel], torch.optim.Optimizer],
        settings: Settings,
        seed: int,
        rank: int,
    ) -> None:
        torch.manual_seed(seed)  # the same first parameters for all
        self.model = WordModel()
        self._optimizer = make_optimizer(self.model)
        self._parameters = parameters_of(self.model)
        vector = self._parameters.vector
        self._feedback = LocalFeedback(vector, Replica.from_parameters(vector))
        self._feedback.settle()
        self._thresholds = Thresholds(
            settings, self._feedback, self._parameters.layout, clock=lambda: 0.0
        )
        self._random = np.random.default_rng([seed, rank])

    def train(self) -> list[bytes]:
        """Train a step; return what is to be sent of it."""
        self._optimizer.zero_grad()
        loss_on(self.model, load_words()[0], self._random, BATCH).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._parameters.gather()
        threshold = self._thresholds.next()
        assert threshold is not None
        bodies = self._feedback.encode(threshold)
        self._thresholds.observe(
            sent=sum(map(encoded_hits, bodies)), size_bytes=sum(map(len, bodies))
        )
        self._thresholds.note_kept()
        return bodies

    def apply(self, bodies: list[bytes]) -> None:
        """Apply what a peer has sent."""
        for body in bodies:
            self._feedback.apply(body)


def train(optimizer: str, seed: int, density: float, *, tensor_thresholds: bool) -> Course:
    """Train, and return how it went."""
    settings = Settings(master="none", target_density=density, tensor_thresholds=tensor_thresholds)
    workers = [Trainee(OPTIMIZERS[optimizer], settings, seed, rank) for rank in range(WORKERS)]
    sent, counts, losses = 0, [], []
    for step in range(1, STEPS + 1):
        bodies = [worker.train() for worker in workers]
        sent += sum(len(body) for of_worker in bodies for body in of_worker)
        for i, worker in enumerate(workers):
            for j, of_peer in enumerate(bodies):
                if i != j:
                    worker.apply(of_peer)
        if step % EVALUATE_EVERY == 0:
            counts.append(sent)
            losses.append(held_out_loss(workers[0].model))
    smooth = np.convolve(losses, np.full(SMOOTHING, 1 / SMOOTHING), "valid")
    return Course(counts[SMOOTHING - 1 :], smooth.tolist())


def run() -> list[Figure]:
    """Measure."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [figure for optimizer in OPTIMIZERS for figure in _figures(optimizer)]
    finally:
        torch.set_num_threads(threads)


def _figures(optimizer: str) -> list[Figure]:
    ours: dict[tuple[int, float], Course] = {}
    rivals: dict[tuple[int, float], Course] = {}
    for seed in range(SEEDS):
        for density in DENSITIES:
            rivals[seed, density] = train(optimizer, seed, density, tensor_thresholds=False)
            ours[seed, density] = train(optimizer, seed, density, tensor_thresholds=True)
    middle = DENSITIES[len(DENSITIES) // 2]
    at = round(REACHED_AT * len(rivals[0, middle].losses))
    loss = median(rivals[seed, middle].losses[at] for seed in range(SEEDS))
    figures = [
        below(f"bytes to a loss of {loss:.2f}, {optimizer}",
              _best(ours, lambda course: course.bytes_to(loss)) / 1e6, "MB", RIVAL,
              _best(rivals, lambda course: course.bytes_to(loss)) / 1e6,
              limit=1.0, runs=SEEDS)
    ]  # fmt: skip
    for megabytes in MEGABYTES:
        mine, rival = (
            _best(courses, lambda course: course.loss_at(1e6 * megabytes))  # noqa: B023
            for courses in (ours, rivals)
        )
        figures.append(beside(_name(megabytes, optimizer), mine, "nats", RIVAL, rival, runs=SEEDS))
    return figures


def _best(courses: dict[tuple[int, float], Course], number: Callable[[Course], float]) -> float:
    """Return the least of a number over the densities; for each, the median over the seeds."""
    return min(
        median(number(courses[seed, density]) for seed in range(SEEDS)) for density in DENSITIES
    )


def _name(megabytes: float, optimizer: str) -> str:
    return f"loss after {megabytes:g} MB, {optimizer}"


def draw(figures: list[Figure], folder: Path) -> None:
    """Draw the losses against the bytes."""
    by_name = {figure.figure: figure for figure in figures}
    series: dict[str, list[float]] = {}
    for optimizer in OPTIMIZERS:
        at = [by_name[_name(megabytes, optimizer)] for megabytes in MEGABYTES]
        series[f"{OURS}: {optimizer}"] = [figure.value for figure in at]
        series[f"{RIVAL}: {optimizer}"] = [figure.rival_value for figure in at]
    draw_lines(
        Lines(
            title=f"A word model, {WORKERS} workers, {STEPS} steps",
            categories=[f"{megabytes:g}" for megabytes in MEGABYTES],
            x_label="sent by all workers, MB",
            y_label="held-out loss, nats",
            series=series,
        ),
        folder / "loss-against-bytes.png",
    )
