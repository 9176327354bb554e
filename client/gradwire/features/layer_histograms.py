"""`LayerHistograms`: every so many steps, how a worker's parameters are distributed.

For the largest tensors of the model, histograms of the parameters, of what the last step has
changed (the update) and of the residual go to the master, and with them, as scalars, how large
updates are in proportion to the parameters. Of a large tensor a sample is looked at, so that the
memory and the time have a bound, whatever the model.

The parameters are copied at the end of the step before, so at all other times there is no copy.
Where a step has changed nothing, as while gradients are accumulated, the next one is looked at.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gradwire.errors import UsageError
from gradwire.participant.feature import Feature
from gradwire.participant.participant import Participant
from gradwire.replica.shared_parameters import flat_change
from gradwire.target.distributions import histograms_of, joined
from gradwire.target.parameters import Parameters
from gradwire_codecs import Feedback
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.modes.mode import model_of
from gradwire_protocol.messages.operating.histograms import LAYERS_MAX, QUANTITIES
from gradwire_protocol.messages.operating.scalars import SERIES_NAME_CHARACTERS_MAX

SAMPLE: Final = 2**16
"""Most elements of a tensor that are looked at: of 64 tensors of any size four copies of 16 MiB;
0.05 s on one core for 28 tensors with 14.6 million parameters. In a bin with a hundredth of
them is then a count that is right to 4 %."""

RATIO_PREFIX: Final = "gradwire/update_ratio/"
"""What the names of series begin with that say how large the updates of a tensor are."""

Residual = Callable[[slice], Any]
"""Returns a copy of some elements of the residual, as an array or a tensor."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A tensor that is looked at."""

    name: str
    elements: int
    where: slice
    """Those of its elements in the vector that are looked at."""


class LayerHistograms(Feature):
    """The histograms of one worker. The last of its features: others change the parameters.

    Parameters
    ----------
    every : int
        Steps between two times, 1 or more.
    first : Participant
        At the master that gets the histograms.
    parameters : Parameters
        All that this worker trains.
    gather : callable
        Copies changes of the target into their vector.
    residual : callable
        Returns some elements of the residual.
    """

    def __init__(
        self,
        every: int,
        first: Participant,
        parameters: Parameters,
        gather: Callable[[], None],
        residual: Residual,
    ) -> None:
        self._every = every
        self._participant = first
        self._parameters = parameters
        self._gather = gather
        self._residual = residual
        model = model_of(parameters.layout)
        self._model = model
        self._layers = layers_of(model)
        self._steps_of_master = first.welcome.mode.optimizer is not None
        """Whether the master's optimizer changes the parameters, at the end of a step."""
        self._due = every
        """The first step that is looked at."""
        self._before: list[Any] | None = None
        """The parameters before the step that is due."""
        self._change: Any = None
        self._found: list[npt.NDArray[np.void]] | None = None
        """Of the parameters and of the update, until the step ends."""
        self._copy_if_due()

    def note_change(self, change: Any) -> None:
        """Note a change that the next push adds to the parameters."""
        self._change = change

    def before_push(self) -> None:
        """Look at what the step has changed."""
        change, self._change = self._change, None
        self._found = None
        if self._before is not None and not self._steps_of_master:
            self._look(change)

    def after_step(self) -> None:
        """Look at the rest, and keep a copy where the next step is due."""
        if self._before is not None and self._steps_of_master:
            self._look(None)
        if self._found is not None:
            self._log(*self._found)
            self._found = None
        self._copy_if_due()

    # Private.

    @property
    def _steps(self) -> int:
        return self._participant.tally.steps

    def _copy_if_due(self) -> None:
        self._before = None
        if self._steps + 1 < self._due:
            return
        histograms = self._participant.worker.logged.histograms
        if histograms.has_room():
            self._before = self._samples()
        elif self._steps + 1 == self._due:
            histograms.leave_out()
            self._wait_for_next(self._due)

    def _samples(self) -> list[Any]:
        self._gather()
        return [self._parameters.sample(layer.where) for layer in self._layers]

    def _look(self, change: Any) -> None:
        """Count parameters and update, unless the step has changed nothing yet."""
        assert self._before is not None
        before, self._before = self._before, None
        step = self._steps if self._steps_of_master else self._steps + 1
        samples = self._samples()
        updates = [now - earlier for now, earlier in zip(samples, before, strict=True)]
        if change is not None:
            try:
                updates = self._with_change(updates, change)
            except UsageError:
                return  # the push itself refuses it
        of_updates = histograms_of(updates)
        if step < self._due + self._every - 1 and not _has_any(of_updates):
            return
        self._found = [histograms_of(samples), of_updates]

    def _with_change(self, updates: Sequence[Any], change: Any) -> list[Any]:
        flat = flat_change(self._parameters, change, self._model.elements)
        of_layers = [flat[layer.where] for layer in self._layers]
        if not all(isinstance(update, np.ndarray) for update in updates):
            return [
                update + update.new_tensor(each)
                for update, each in zip(updates, of_layers, strict=True)
            ]
        return [update + each for update, each in zip(updates, of_layers, strict=True)]

    def _log(self, parameters: npt.NDArray[np.void], updates: npt.NDArray[np.void]) -> None:
        """Send what was counted."""
        participant, step = self._participant, self._steps
        residuals = histograms_of([self._residual(layer.where) for layer in self._layers])
        found = np.stack([parameters, updates, residuals], axis=1)
        layers = np.arange(len(self._layers))
        found["layer"], found["quantity"] = layers[:, None], np.arange(len(QUANTITIES))
        found["elements"] = np.array([layer.elements for layer in self._layers])[:, None]
        names = tuple(layer.name for layer in self._layers)
        participant.worker.logged.histograms.put(
            step, len(self._model.tensors), names, found.tobytes(), participant.clock()
        )
        participant.membership.post(participant.worker.logged.histograms.wake)
        participant.log(step, ratios_of(names, parameters, updates))
        self._wait_for_next(step)

    def _wait_for_next(self, step: int) -> None:
        self._due = (step // self._every + 1) * self._every


class ResidualOfParts:
    """The residual of a vector in parts, each of which has a feedback.

    Parameters
    ----------
    parts : sequence of (Feedback, int)
        With how many elements each has of the vector.
    """

    def __init__(self, parts: Sequence[tuple[Feedback, int]]) -> None:
        self._parts = parts

    def __call__(self, where: slice) -> Any:
        """Return a copy of some elements."""
        pieces, at, step = [], 0, where.step
        for feedback, elements in self._parts:
            first = where.start + max(-((where.start - at) // step), 0) * step
            stop = min(where.stop, at + elements)
            if first < stop:
                pieces.append(feedback.residual_in_place(slice(first - at, stop - at, step)))
            at += elements
        return pieces[0] if len(pieces) == 1 else joined(pieces)


def layers_of(model: Layout) -> list[Layer]:
    """Return the largest tensors of a model, in their order, and which elements are looked at."""
    layers, at = [], 0
    for tensor in model.tensors:
        # An odd number of elements apart, so that not all are of a few columns of a matrix.
        stride = -(-tensor.elements // SAMPLE) | 1
        end = at + tensor.elements
        layers.append(Layer(tensor.name, tensor.elements, slice(at, end, stride)))
        at = end
    largest = sorted(layers, key=lambda layer: layer.elements, reverse=True)[:LAYERS_MAX]
    return sorted((e for e in largest if e.elements), key=lambda layer: layer.where.start)


def ratios_of(
    names: Sequence[str], parameters: npt.NDArray[np.void], updates: npt.NDArray[np.void]
) -> dict[str, float]:
    """Return, by name of a series, the norm of an update divided by that of the parameters.

    Of parameters that are all zero there is none.
    """
    norms = _norms(parameters)
    ratios = np.divide(_norms(updates), norms, out=np.zeros_like(norms), where=norms > 0)
    found: dict[str, float] = {}
    for name, ratio, norm in zip(names, ratios.tolist(), norms, strict=True):
        if norm:
            found.setdefault(series_of(name), ratio)
    return found


def series_of(layer: str) -> str:
    """Return the name of the series of a tensor's ratio: of a long name, only the end."""
    most = SERIES_NAME_CHARACTERS_MAX - len(RATIO_PREFIX)
    return RATIO_PREFIX + (layer if len(layer) <= most else "…" + layer[1 - most :])


def _norms(histograms: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
    """Return the root of the mean square of finite values."""
    found: npt.NDArray[np.float64] = np.hypot(histograms["mean"], histograms["deviation"])
    return found


def _has_any(histograms: npt.NDArray[np.void]) -> bool:
    """Return whether any value is not zero."""
    names = "lowest", "highest", "nan", "infinite"
    return any(bool(histograms[name].any()) for name in names)
