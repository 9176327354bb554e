"""The factor of a worker's changes, so that many workers together do not step too far.

- "sum": the changes of all W workers count in full, as with Strom and Deeplearning4j. Together they
  make W steps where a single worker makes one.
- "mean": their sum becomes the mean. For SGD this is exactly the step of one process with the batch
  of all workers.
- "sqrt": between the two. Sums of independent noise grow by √W, and optimizers that make all steps
  of one size, as Adam does, need this.
- "agreement": between "sqrt" and "mean", by how far the steps of the workers agree; see below.
- "auto": "mean" or "agreement", by the kind of the optimizer; see `torch_scale`.
- "staleness": divides by the staleness of the worker's own updates, in updates of others (W. Zhang,
  S. Gupta, X. Lian and J. Liu, "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI
  2016).

**Agreement.** Optimizers that divide by the size of their gradients, as Adam does, make steps of
one size. Let g be the gradient of all samples, and v the variance of one worker's gradient around
it. A worker's step is in proportion to g/√(g² + v). That of DDP, with the mean gradient of W
workers, is in proportion to g/√(g² + v/W). Let a = g²/(g² + v), which is the cosine between the
steps of two workers. The sum of W steps, each times s, is then DDP's step if ::

    s = 1/√(W (1 + (W - 1) a))

That is 1/√W where all is noise, and 1/W where all workers step alike. With b samples in a batch and
the gradient noise scale B of S. McCandlish, J. Kaplan, D. Amodei et al., "An Empirical Model of
Large-Batch Training", arXiv 1812.06162, a is 1/(1 + B/b).

**Measured without a further message.** What the others send over time is what they step, and what
they have in common with this worker's steps is signal: the noise of two workers is independent. So
`a` is the product of this worker's step with what one update of another moves on average, over the
square of this step. Elements that updates send are few, and late: only agreement that lasts for as
long as a change waits is seen. All of it comes from a sample of the elements.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from gradwire.optimizer.delays import RecentMean
from gradwire.settings.training import Scale
from gradwire_codecs import Feedback
from gradwire_codecs.arrays import Float32Array, Int32Array

ELEMENTS: Final = 2**14
"""In a sample. With two workers and updates of 0.5 %, a single value is then off by about 0.01."""

EVERY_STEPS: Final = 4
ALL_STEPS_UNTIL: Final = 32
"""The first steps are sampled, and every fourth one after them."""

MOVED_SAMPLES: Final = 16
"""Samples over which it is averaged what updates move."""

AGREEMENT_SAMPLES: Final = 8
"""Samples over which products and squares are averaged: short steps count little."""


class _Before(NamedTuple):
    """A sample from before a step."""

    residual: Float32Array
    replica: Int32Array
    updates: int


class Agreement:
    """The agreement of one worker's steps with those of the others.

    Parameters
    ----------
    feedback : Feedback
        What its steps change.
    """

    def __init__(self, feedback: Feedback) -> None:
        self._feedback = feedback
        self._steps = 0
        self._before: _Before | None = None
        self._moved = np.zeros(1, np.float32)
        self._moved_weight = 0.0
        self._updates = RecentMean(MOVED_SAMPLES)
        self._product = RecentMean(AGREEMENT_SAMPLES)
        self._square = RecentMean(AGREEMENT_SAMPLES)

    @property
    def value(self) -> float:
        """From 0, of noise, to 1, where all workers step alike; 0 before it is known."""
        product, square = self._product.value, self._square.value
        return min(max(product / square, 0.0), 1.0) if square else 0.0

    def note_change(self, updates: int, others: int) -> None:
        """Note that training has made a step, of which nothing is sent yet.

        Parameters
        ----------
        updates : int
            Updates of other workers that were ever applied.
        others : int
            How many other workers there are.
        """
        before, self._before = self._before, None
        if before is None or others < 1:
            return
        change = self._feedback.residual_sample(ELEMENTS) - before.residual
        moved = self._feedback.replica_sample(ELEMENTS) - before.replica
        square = _product(change, change)
        if not math.isfinite(square):
            return  # the error is raised where it is encoded
        self._note_moved(moved * np.float32(self._feedback.replica.quantum))
        self._updates.add(updates - before.updates)
        # Of workers that are quicker, more updates come in a step than there are workers; of those
        # that send their steps together, fewer.
        each = max(self._updates.value, others)
        self._product.add(_product(change, self._moved) / (self._moved_weight * each))
        self._square.add(square)

    def note_rest(self, updates: int) -> None:
        """Note that of a step all is sent that is due; the rest is in the residual.

        Parameters
        ----------
        updates : int
            Updates of other workers that were ever applied.
        """
        self._steps += 1
        if self._steps <= ALL_STEPS_UNTIL or self._steps % EVERY_STEPS == 0:
            residual = self._feedback.residual_sample(ELEMENTS)
            self._before = _Before(residual, self._feedback.replica_sample(ELEMENTS), updates)

    def _note_moved(self, moved: Float32Array) -> None:
        portion = 1.0 / MOVED_SAMPLES
        self._moved = self._moved + np.float32(portion) * (moved - self._moved)
        self._moved_weight += portion * (1.0 - self._moved_weight)


def _product(one: Float32Array, other: Float32Array) -> float:
    """Return the scalar product. That of BLAS would start threads, which is slower here."""
    return float((one * other).sum(dtype=np.float64))


def scale_factor(
    scale: Scale, world_size: float, staleness: float, agreement: float = 0.0
) -> float:
    """Return the factor of this worker's next change.

    Parameters
    ----------
    scale : str or float
        The setting of that name, already checked.
    world_size : float
        Number of workers.
    staleness : float
        Mean staleness of this worker's updates, in updates of others.
    agreement : float
        How far the workers' steps agree, 0 to 1.
    """
    match scale:
        case "sum" | "auto":  # "auto" without an optimizer: its kind is unknown
            return 1.0
        case "mean":
            return 1.0 / max(world_size, 1)
        case "sqrt":
            return 1.0 / math.sqrt(max(world_size, 1))
        case "agreement":
            workers = max(world_size, 1)
            return 1.0 / math.sqrt(workers * (1.0 + (workers - 1.0) * agreement))
        case "staleness":
            return 1.0 / max(staleness, 1.0)
    return float(scale)


def varies(scale: Scale) -> bool:
    """Return whether changes may be multiplied by anything but 1."""
    return scale not in ("auto", "sum", 1)
