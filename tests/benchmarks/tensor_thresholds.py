"""Bytes that lead to a loss: a threshold for each tensor beside one for all of them.

Workers in one process train a small word model, in turns: each trains a step and encodes what is
due, and then everyone applies what the others have sent. Thresholds, codec and replicas are those
of a session; there is no network. All train for the same number of steps, with several fixed
thresholds: a larger one sends less and ends at a higher loss. What is compared are the bytes with
which both ways end at the same loss, by interpolation between their runs.

Three optimizers: SGD, whose changes differ between tensors as the gradients do; Adam, which makes
them the same; and Adam with a ten times larger rate for the embedding, as in [1]_, where the
changes differ because somebody knew that they should.

References
----------
.. [1] G. Yang et al., "Tensor programs V: tuning large neural networks via zero-shot hyperparameter
   transfer", 2022.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch

from benchmarks.figures import Figure, below, beside, machine
from benchmarks.unconnected import UnconnectedSharing
from benchmarks.word_model import BATCH, WordModel, held_out_loss, load_words, loss_on
from gradwire.settings.settings import Settings

WORKERS: Final = 4
WEIGHTS: Final = np.array([1, 2, 3, 2, 1]) / 9
"""Of the last evaluations in the loss that a training ends with: one alone scatters."""

THRESHOLDS: Final = {
    "SGD": (0.006, 0.012, 0.024),
    "Adam": (0.006, 0.012, 0.024),
    "Adam, embedding x10": (0.02, 0.04, 0.08),
}
"""Around those that lead to one element in 500 per update."""

COMPARED: Final = {"SGD": 0.024, "Adam": 0.024, "Adam, embedding x10": 0.04}
"""The one threshold for all whose loss both ways are to end at."""

OURS: Final = "a threshold for each tensor"
RIVAL: Final = "one threshold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    optimizers: Sequence[str] = tuple(THRESHOLDS)
    thresholds: int | None = None
    """How many of each optimizer's, the largest ones; None: all."""
    steps: int = 200
    evaluate_every: int = 10
    seeds: int = 3

    def thresholds_of(self, optimizer: str) -> Sequence[float]:
        """Return the thresholds that are tried with an optimizer."""
        return THRESHOLDS[optimizer][-(self.thresholds or 0) :]


FULL: Final = Plan()
QUICK: Final = Plan(
    optimizers=("SGD",), thresholds=2, steps=len(WEIGHTS), evaluate_every=1, seeds=1
)


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
class Outcome:
    """What a training has sent, all workers together, and the held-out loss that it ended with."""

    megabytes: float
    loss: float


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
        self._sharing = UnconnectedSharing(self.model, settings)
        self._random = np.random.default_rng([seed, rank])

    def train(self) -> list[bytes]:
        """Train a step; return what is to be sent of it."""
        self._optimizer.zero_grad()
        loss = loss_on(self.model, load_words()[0], self._random, BATCH)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return self._sharing.encode()

    def apply(self, bodies: list[bytes]) -> None:
        """Apply what a peer has sent."""
        self._sharing.apply(bodies)


def train(
    plan: Plan, optimizer: str, seed: int, threshold: float, *, tensor_thresholds: bool
) -> Outcome:
    """Train, and return what came of it."""
    settings = Settings(master="none", threshold=threshold, tensor_thresholds=tensor_thresholds)
    workers = [Trainee(OPTIMIZERS[optimizer], settings, seed, rank) for rank in range(WORKERS)]
    sent, losses = 0, []
    for step in range(1, plan.steps + 1):
        bodies = [worker.train() for worker in workers]
        sent += sum(len(body) for of_worker in bodies for body in of_worker)
        for i, worker in enumerate(workers):
            for j, of_peer in enumerate(bodies):
                if i != j:
                    worker.apply(of_peer)
        if step % plan.evaluate_every == 0:
            losses.append(held_out_loss(workers[0].model))
    return Outcome(sent / 1e6, float(WEIGHTS @ losses[-len(WEIGHTS) :]))


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [figure for optimizer in plan.optimizers for figure in _figures(plan, optimizer)]
    finally:
        torch.set_num_threads(threads)


def _figures(plan: Plan, optimizer: str) -> list[Figure]:
    ours, rivals = (
        {
            threshold: _median(
                [
                    train(plan, optimizer, seed, threshold, tensor_thresholds=tensor_thresholds)
                    for seed in range(plan.seeds)
                ]
            )
            for threshold in plan.thresholds_of(optimizer)
        }
        for tensor_thresholds in (True, False)
    )
    rival = rivals[COMPARED[optimizer]]
    figures = [
        below(f"bytes to a loss of {rival.loss:.2f}, {optimizer}",
              megabytes_for(rival.loss, list(ours.values())), "MB", RIVAL, rival.megabytes,
              limit=1.0, runs=plan.seeds)
    ]  # fmt: skip
    for threshold in plan.thresholds_of(optimizer):
        mine, rival = ours[threshold], rivals[threshold]
        figures += [
            beside(_sent_name(plan.steps, optimizer, threshold), mine.megabytes, "MB",
                   RIVAL, rival.megabytes, runs=plan.seeds),
            beside(_loss_name(plan.steps, optimizer, threshold), mine.loss, "nats",
                   RIVAL, rival.loss, runs=plan.seeds),
        ]  # fmt: skip
    return figures


def _median(outcomes: Sequence[Outcome]) -> Outcome:
    return Outcome(
        median(outcome.megabytes for outcome in outcomes),
        median(outcome.loss for outcome in outcomes),
    )


def megabytes_for(loss: float, outcomes: Sequence[Outcome]) -> float:
    """Return what leads to a loss, by interpolation of logarithms; inf where no outcome has it."""
    known = sorted(outcomes, key=lambda outcome: outcome.loss)
    losses = [outcome.loss for outcome in known]
    logarithms = np.log([outcome.megabytes for outcome in known])
    return float(np.exp(np.interp(loss, losses, logarithms, left=np.inf)))


def _sent_name(steps: int, optimizer: str, threshold: float) -> str:
    return f"sent in {steps} steps, {optimizer}, threshold {threshold:g}"


def _loss_name(steps: int, optimizer: str, threshold: float) -> str:
    return f"loss after {steps} steps, {optimizer}, threshold {threshold:g}"


def draw(figures: list[Figure], folder: Path, plan: Plan) -> None:
    """Draw the losses against the bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    by_name = {figure.figure: figure for figure in figures}
    picture = Picture(figsize=(9.6, 3.6), layout="constrained")
    FigureCanvasAgg(picture)
    [row] = picture.subplots(1, len(plan.optimizers), squeeze=False)
    for axes, optimizer in zip(row, plan.optimizers, strict=True):
        sent = [
            by_name[_sent_name(plan.steps, optimizer, t)] for t in plan.thresholds_of(optimizer)
        ]
        losses = [
            by_name[_loss_name(plan.steps, optimizer, t)] for t in plan.thresholds_of(optimizer)
        ]
        axes.plot([f.value for f in sent], [f.value for f in losses], marker="o", linewidth=2.5,
                  label=OURS)  # fmt: skip
        axes.plot([f.rival_value for f in sent], [f.rival_value for f in losses], marker="s",
                  linestyle="--", label=RIVAL)  # fmt: skip
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(which="both", color="0.92")
        axes.set_title(optimizer, fontsize=9)
        axes.set_xlabel("sent by all workers, MB")
    picture.axes[0].set_ylabel(f"held-out loss after {plan.steps} steps, nats")
    picture.legend(*picture.axes[0].get_legend_handles_labels(), fontsize=8, ncols=2,
                   loc="outside lower center")  # fmt: skip
    picture.suptitle(f"A word model, {WORKERS} workers\n{machine()}", fontsize=9)
    picture.savefig(folder / "loss-against-bytes.png", dpi=110)
