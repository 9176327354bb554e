"""`AveragedState`: an optimizer's state as elements of the replica, which rounds average.

The elements are behind those of the parameters. They are read from the optimizer before a
contribution, and written into it after a round, and whatever a worker joins with.

They are integers, rounded to 8 bits, in units that means and roundings suit. Squares of gradients
differ by many orders of magnitude within a tensor, so it is their logarithms that are averaged. A
mean of gradients is compared with the root of its squares in each step, so it is averaged in parts
of that root: an error is then one of the step, and not of a gradient that may be smaller than the
error. Everything else is averaged as it is.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradwire.optimizer.torch_state import TensorState, TorchOptimizer
from gradwire.target.with_state import Averaged
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.modes.kept_state import STEP

SQUARES: Final = frozenset(
    {"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "acc_delta", "exp_inf", "step_size"}
)
"""What is never negative: torch's names."""

COMPARED: Final = {
    "exp_avg": (("exp_avg_sq", 0.5), ("exp_inf", 1.0)),
    "grad_avg": (("square_avg", 0.5),),
}
"""Means, and of which other slot which power they are compared with: of the first that there is."""

SQUARE_UNIT: Final = 2.0**-16
"""Of a binary logarithm: relative to the value, 1.1e-5."""

LOGARITHM_MIN: Final = -126.0
"""Of the smallest float32 with all its digits. What is below counts as 0."""

LOGARITHM_MAX: Final = 127.0
"""Above that, what a worker has contributed would be infinite for all."""

RATIO_UNIT: Final = 2.0**-16
"""Of what is compared: parts of a root."""

PLAIN_UNIT: Final = 2.0**-20
"""Of everything else, as of momentum: magnitudes below 128 are expressed, to 9.5e-7."""

NUMBER_UNIT: Final = 2.0**-24
"""Of a number of a tensor that is no number of steps, as NAdam's product of momenta."""

UNITS_MAX: Final = 2**27 - 1
"""Largest magnitude of an element: a run can begin with it."""


class AveragedState(Averaged):
    """The state of one optimizer, and its elements.

    Parameters
    ----------
    optimizer : TorchOptimizer
    model : Layout
    elements : ndarray of shape (n,), dtype float32
        A view of the vector that is shared, behind the parameters.
    quantum : float
        Of the replica: an element is a whole number of units, times this.
    """

    def __init__(
        self,
        optimizer: TorchOptimizer,
        model: Layout,
        elements: Float32Array,
        quantum: float,
    ) -> None:
        self._optimizer = optimizer
        self.kept = kept = optimizer.kept
        self._model = model
        self._quantum = np.float32(quantum)
        sizes = [tensor.elements for tensor in kept.tensors(model)]
        parts = np.split(elements, np.cumsum(sizes)[:-1])
        self._slots = dict(zip(kept.slots, parts, strict=False))
        self._numbers = dict(zip(kept.numbers, parts[len(kept.slots) :], strict=True))
        stops = np.cumsum([tensor.elements for tensor in model.tensors]).tolist()
        self._places = [slice(a, b) for a, b in zip([0, *stops], stops, strict=False)]

    def read(self) -> None:
        """Set the elements to the state of the optimizer; 0 where it has none."""
        slots = {name: np.zeros(self._model.elements, np.float32) for name in self._slots}
        numbers = {name: np.zeros(len(self._places)) for name in self._numbers}
        if not self._optimizer.is_empty:
            states = self._optimizer.capture()
            for i, (where, state) in enumerate(zip(self._places, states, strict=True)):
                for name, values in state.slots.items():
                    slots[name][where] = values
                for name, value in state.numbers.items():
                    numbers[name][i] = value
        for name, elements in self._slots.items():
            np.multiply(to_units(slots, name), self._quantum, out=elements)
        for name, elements in self._numbers.items():
            units = np.clip(np.rint(numbers[name] / _unit_of(name)), -UNITS_MAX, UNITS_MAX)
            elements[:] = units * self._quantum

    def write(self) -> None:
        """Set the state of the optimizer to that of the elements.

        A tensor of which they are all 0 keeps what it has: nobody has trained it.
        """
        units = {name: elements / self._quantum for name, elements in self._slots.items()}
        numbers = {
            name: np.rint(elements.astype(np.float64) / self._quantum) * _unit_of(name)
            for name, elements in self._numbers.items()
        }
        if STEP in numbers:  # a worker may send anything; an optimizer takes roots of powers of it
            np.maximum(numbers[STEP], 0, out=numbers[STEP])
        values = {name: from_units(units, name) for name in units}
        states = []
        for i, where in enumerate(self._places):
            names = self._names_of(i, units, numbers)
            states.append(
                TensorState(
                    {name: values[name][where] for name in values.keys() & names},
                    {name: float(numbers[name][i]) for name in numbers.keys() & names},
                )
            )
        if any(state.slots or state.numbers for state in states):
            self._optimizer.restore(states)

    # Private.

    def _names_of(
        self,
        i: int,
        units: Mapping[str, Float32Array],
        numbers: Mapping[str, NDArray[np.float64]],
    ) -> frozenset[str]:
        """Return the names of what is written for a tensor; none if the elements are 0."""
        where = self._places[i]
        is_warm = any(numbers[name][i] for name in numbers) or any(
            units[name][where].any() for name in units
        )
        return self._optimizer.names_of(i) if is_warm else frozenset()


def _unit_of(number: str) -> float:
    return 1.0 if number == STEP else NUMBER_UNIT


def to_units(slots: Mapping[str, Float32Array], name: str) -> Float32Array:
    """Return a slot in units: whole numbers, and NaN where it is NaN or infinite.

    Parameters
    ----------
    slots : mapping of str to ndarray of shape (n,), dtype float32
        All slots.
    """
    values = slots[name]
    units: Float32Array
    with np.errstate(divide="ignore", invalid="ignore"):
        if name in SQUARES:
            units = (np.log2(values) - np.float32(LOGARITHM_MIN)) / np.float32(SQUARE_UNIT)
            np.maximum(units, 0, out=units)
        elif (root := _root(slots, name)) is not None:
            units = np.divide(values, root, out=np.zeros_like(values), where=root > 0)
            units /= np.float32(RATIO_UNIT)
        else:
            units = values / np.float32(PLAIN_UNIT)
    np.clip(units, -UNITS_MAX, UNITS_MAX, out=units)
    np.rint(units, out=units)
    units[~np.isfinite(values)] = np.nan
    return units


def from_units(units: Mapping[str, Float32Array], name: str) -> Float32Array:
    """Return what `to_units` has made units of, as far as they tell.

    Parameters
    ----------
    units : mapping of str to ndarray of shape (n,), dtype float32
        Of all slots.
    """
    given = units[name]
    values: Float32Array
    if name in SQUARES:
        logarithm = given * np.float32(SQUARE_UNIT) + np.float32(LOGARITHM_MIN)
        values = np.exp2(np.minimum(logarithm, np.float32(LOGARITHM_MAX)))
        values[given <= 0] = 0
    elif _compared_with(units, name) is not None:
        squares = {key: from_units(units, key) for key in units if key in SQUARES}
        root = _root(squares, name)
        assert root is not None
        values = given * np.float32(RATIO_UNIT) * root
    else:
        values = given * np.float32(PLAIN_UNIT)
    return values


def _root(slots: Mapping[str, Float32Array], name: str) -> Float32Array | None:
    """Return what a slot is compared with; None for one that is not compared."""
    found = _compared_with(slots, name)
    if found is None:
        return None
    other, power = found
    return np.sqrt(slots[other]) if power < 1 else slots[other]


def _compared_with(slots: Mapping[str, object], name: str) -> tuple[str, float] | None:
    return next((each for each in COMPARED.get(name, ()) if each[0] in slots), None)
