"""`LayerHistograms`: every so many steps, how the parameters and their changes are distributed.

Of the largest tensors of the model a sample is counted, so that time and memory have a bound. The
sample before a step is taken at the end of the step before, and there is none at other times. Where
a step has changed nothing, as while gradients are accumulated, the next one is looked at, and so it
is where updates of others came between.
"""

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from gradwire.errors import GradwireError
from gradwire.participant.feature import Feature
from gradwire.participant.participant import Participant
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.logged.histograms import (
    BINS,
    HISTOGRAM,
    LAYERS_MAX,
    QUANTITIES,
    ratio_series,
)
from gradwire_protocol.messages.modes.mode import model_of

SAMPLE: Final = 2**14
"""Most elements of a tensor that are looked at. In a bin with a hundredth of them is a count that
is right to 8 %."""


class LayerHistograms(Feature):
    """The histograms of one worker. The last of its features: others change the parameters.

    Parameters
    ----------
    participant : Participant
    every : int
        Steps between two times, 1 or more.
    """

    def __init__(self, participant: Participant, every: int) -> None:
        self._participant = participant
        self._parameters = participant.shared.parameters
        self._every = self._due = every
        self._elements = model_of(participant.welcome.layout).elements
        chosen = layers_of(model_of(participant.welcome.layout))
        self._layers = [tensor for tensor, _ in chosen]
        self._parts = [part for _, part in chosen]
        self._ends = np.cumsum([0, *(len(range(*p.indices(self._elements))) for p in self._parts)])
        self._at_the_end = participant.welcome.mode.optimizer is not None
        """Whether parameters change at the end of a step, by the master's optimizer."""
        self._before: tuple[int, Float32Array] | None = None
        """The sample before the step that is due, and the position of the log that is in it."""
        self._keep_if_due()

    def before_push(self) -> None:
        """Look at what the step has changed."""
        if not self._at_the_end:
            self._look(self._participant.tally.steps + 1)

    def after_step(self) -> None:
        """Look at what the master's step has changed; take a sample where the next step is due."""
        if self._at_the_end:
            self._look(self._participant.tally.steps)
        self._keep_if_due()

    # Private.

    def _keep_if_due(self) -> None:
        if self._participant.tally.steps + 1 >= self._due:
            self._before = self._participant.shared.position, self._sample()

    def _sample(self) -> Float32Array:
        self._parameters.gather()
        return self._parameters.sample(self._parts)

    def _look(self, step: int) -> None:
        """Count what a step has changed, and send it."""
        before, self._before = self._before, None
        participant, shared = self._participant, self._participant.shared
        if before is None or participant.is_paused:
            return
        if before[0] != shared.position and not self._at_the_end:
            return
        now = self._sample()
        with np.errstate(invalid="ignore", over="ignore"):  # of parameters that are not finite
            update = now - before[1]
        if participant.handed_over is not None and not self._at_the_end:
            try:
                change = shared.checked_change(participant.handed_over, self._elements)
            except GradwireError:
                return  # the push itself refuses it
            handed_over = np.concatenate([change[part] for part in self._parts])
            now, update = now + handed_over, update + handed_over
        if update.any():
            self._due = (step // self._every + 1) * self._every
            self._send(step, (now, update))

    def _send(self, step: int, values: tuple[Float32Array, Float32Array]) -> None:
        found = np.zeros((len(self._layers), len(QUANTITIES)), HISTOGRAM)
        for at, (start, end) in enumerate(pairwise(self._ends)):
            found[at]["layer"], found[at]["elements"] = at, self._layers[at].elements
            for quantity, sample in enumerate(values):
                found[at, quantity]["quantity"] = quantity
                count_into(found[at, quantity], sample[start:end])
        names = tuple(tensor.name for tensor in self._layers)
        self._participant.log_histograms(step, names, found.tobytes())
        norms = np.hypot(found["mean"], found["deviation"])
        ratios = {
            ratio_series(name): float(update / norm)
            for name, (norm, update) in zip(names, norms, strict=True)
            if norm
        }
        self._participant.log(ratios, step)


def layers_of(model: Layout) -> list[tuple[Tensor, slice]]:
    """Return the largest tensors of a model, in their order, and which elements are looked at."""
    found, start = [], 0
    for tensor in model.tensors:
        # An odd number of elements apart, so that not all are of a few columns of a matrix.
        stride = -(-tensor.elements // SAMPLE) | 1
        found.append((tensor, slice(start, start + tensor.elements, stride)))
        start += tensor.elements
    found = [each for each in found if each[0].elements]
    largest = sorted(found, key=lambda each: each[0].elements, reverse=True)[:LAYERS_MAX]
    return sorted(largest, key=lambda each: each[1].start)


def count_into(histogram: npt.NDArray[np.void], values: Float32Array) -> None:
    """Count values, and write what was counted into a `HISTOGRAM`."""
    exact = values[np.isfinite(values)].astype(np.float64)
    histogram["nan"] = nan = np.isnan(values).sum()
    histogram["infinite"] = len(values) - len(exact) - nan
    if not len(exact):
        return
    low, high = exact.min(), exact.max()
    histogram["lowest"], histogram["highest"] = low, high
    histogram["mean"], histogram["deviation"] = exact.mean(), exact.std()
    scale = BINS / (high - low) if high > low else 0.0
    bins = np.minimum((exact - low) * scale, BINS - 1).astype(np.intp)
    histogram["bins"] = np.bincount(bins, minlength=BINS)
