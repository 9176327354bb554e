"""`AveragedState`: an optimizer's state as elements of the replica, which rounds average.

The elements are behind those of the parameters. They are read from the optimizer before a
contribution, and written into it after a round, and whatever a worker joins with.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gradwire.optimizer.averaged import Averaged
from gradwire.optimizer.state_units import NUMBER_UNIT, UNITS_MAX, from_units, to_units
from gradwire.optimizer.torch_state import TensorState, TorchOptimizer
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.modes.kept_state import STEP


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
