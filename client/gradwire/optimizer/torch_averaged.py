"""`AveragedState`: an optimizer's state as elements of the replica, which rounds average.

The elements are behind those of the parameters. They are read from the optimizer before a
contribution, and written into it after a round, and whatever a worker joins with.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.errors import UsageError
from gradwire.optimizer.averaged import Averaged
from gradwire.optimizer.state import PackedState, UnfitStateError, header_of
from gradwire.optimizer.state_units import NUMBER_UNIT, UNITS_MAX, from_units, to_units
from gradwire.optimizer.torch_state import TorchOptimizer
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.modes.kept_state import STEP, KeptState


class _Piece(NamedTuple):
    """What a part of a model has of one tensor."""

    tensor: int
    of_tensor: slice
    of_part: slice

    def is_whole(self, model: Layout) -> bool:
        return self.of_tensor == slice(0, model.tensors[self.tensor].elements)


class AveragedState(Averaged):
    """The state of one optimizer, and its elements.

    Parameters
    ----------
    optimizer : TorchOptimizer
        It has to be prepared.
    kept : KeptState
        What it keeps.
    model : Layout
    span : slice
        The elements of the model that the replica has, where several masters have parts of it. Of a
        tensor that is cut, each part has the numbers.
    elements : ndarray of shape (n,), dtype float32
        A view of the vector that is shared, behind the parameters.
    quantum : float
        Of the replica: an element is a whole number of units, times this.
    """

    def __init__(
        self,
        optimizer: TorchOptimizer,
        kept: KeptState,
        model: Layout,
        span: slice,
        elements: Float32Array,
        quantum: float,
    ) -> None:
        self._optimizer = optimizer
        self.kept = kept
        self._model = model
        self._quantum = np.float32(quantum)
        start, stop, _ = span.indices(model.elements)
        self._size = stop - start
        self._pieces = _pieces_of(model, start, stop)
        sizes = [self._size] * len(kept.slots) + [len(self._pieces)] * len(kept.numbers)
        parts = np.split(elements, np.cumsum(sizes)[:-1])
        self._slots = dict(zip(kept.slots, parts, strict=False))
        self._numbers = dict(zip(kept.numbers, parts[len(kept.slots) :], strict=True))

    def read(self) -> None:
        """Set the elements to the state of the optimizer; 0 where it has none."""
        slots = {name: np.zeros(self._size, np.float32) for name in self._slots}
        numbers = {name: np.zeros(len(self._pieces)) for name in self._numbers}
        if not self._optimizer.is_empty:
            with self._named_errors():
                packed = self._optimizer.capture()
            for number, piece in enumerate(self._pieces):
                state = packed.tensor(piece.tensor)
                for name, values in state.slots.items():
                    slots[name][piece.of_part] = values[piece.of_tensor]
                for name, value in state.numbers.items():
                    numbers[name][number] = value
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
        names = [frozenset[str]()] * len(self._model.tensors)
        for number, piece in enumerate(self._pieces):
            names[piece.tensor] = self._names_of(number, units, numbers)
        if not any(names):
            return
        header = header_of(
            self._optimizer.name,
            [each & self._slots.keys() for each in names],
            [each & self._numbers.keys() for each in names],
        )
        packed = PackedState(header, self._model)
        self._fill_cut_tensors(packed)
        values = {name: from_units(units, name) for name in units}
        for number, piece in enumerate(self._pieces):
            for name in header.slots_of(piece.tensor):
                packed.slot(piece.tensor, name)[piece.of_tensor] = values[name][piece.of_part]
            for name in header.numbers_of(piece.tensor):
                packed.set_number(piece.tensor, name, float(numbers[name][number]))
        with self._named_errors():
            self._optimizer.restore(packed)

    # Private.

    def _fill_cut_tensors(self, packed: PackedState) -> None:
        """Have what the optimizer keeps of tensors of which other masters have a part, or 0."""
        cut = [piece.tensor for piece in self._pieces if not piece.is_whole(self._model)]
        if not cut:
            return
        before: PackedState | None = None
        if not self._optimizer.is_empty:
            with self._named_errors():
                before = self._optimizer.capture()
        for i in cut:
            had = {} if before is None else before.tensor(i).slots
            for name in packed.header.slots_of(i):
                packed.slot(i, name)[:] = had.get(name, np.float32(0))

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except UnfitStateError as error:
            raise UsageError(
                f"the state of the {self._optimizer.name} cannot be averaged: {error}"
            ) from None

    def _names_of(
        self,
        number: int,
        units: Mapping[str, Float32Array],
        numbers: Mapping[str, NDArray[np.float64]],
    ) -> frozenset[str]:
        """Return the names of what is written for a piece; none if the elements are 0."""
        piece = self._pieces[number]
        is_warm = any(values[number] for values in numbers.values()) or any(
            values[piece.of_part].any() for values in units.values()
        )
        return self._optimizer.names_of(piece.tensor) if is_warm else frozenset()


def _pieces_of(model: Layout, start: int, stop: int) -> list[_Piece]:
    """Return what a range of a model has of its tensors, in order."""
    bounds = pairwise(accumulate((tensor.elements for tensor in model.tensors), initial=0))
    pieces = []
    for i, (first, end) in enumerate(bounds):
        low, high = max(first, start), min(end, stop)
        if low < high or low == high == first == end:  # an empty tensor is in every part it touches
            of_tensor, of_part = slice(low - first, high - first), slice(low - start, high - start)
            pieces.append(_Piece(i, of_tensor, of_part))
    return pieces


def _unit_of(number: str) -> float:
    return 1.0 if number == STEP else NUMBER_UNIT
