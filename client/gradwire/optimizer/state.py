"""The state of an optimizer in messages, from one worker to another that joins later.

A state is made of numbers, and nothing in it can be executed: for each parameter tensor its
*slots*, which have a float32 for each element (Adam's ``exp_avg``), and its *numbers*, which are
for the tensor as a whole (``step``). It has no hyperparameters: every worker keeps its own.

::

    part 0    a `StateHeader`: whose state it is, and what there is of each tensor
    part 1…   8 bytes for each number of a tensor: float64, tensor by tensor
              4 bytes for each value of an element: float32, tensor by tensor, slot by slot
              all little-endian, in the layout's order, cut every `STATE_PART_BYTES`

This module does not know torch; `torch_state` copies states out of its optimizers and into them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Annotated, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire_codecs.arrays import Float32Array
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.layout import TENSORS_MAX, Layout
from gradwire_protocol.messages.schema import SMALL_BYTES_MAX, Record, blob, listing, text
from gradwire_protocol.messages.states.records import STATE_PART_BYTES, STATE_SLOTS_MAX

NAME_CHARACTERS_MAX: Final = 64
"""For the names of an optimizer's class, its slots and its numbers."""

NUMBERS_MAX: Final = 8
"""For each tensor; most optimizers have one number, NAdam two. A mask of numbers or slots is a
byte."""

NOT_NEGATIVE: Final = frozenset(
    {"step", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "acc_delta", "exp_inf"}
)
"""Optimizers take roots or powers of these: a negative value would make NaNs of parameters."""


class UnfitStateError(ValueError):
    """A state does not fit, is damaged, or cannot be sent; the text says why."""


@dataclass(frozen=True, slots=True)
class StateHeader(Record):
    """The parts of an optimizer's state."""

    optimizer: Annotated[str, text(NAME_CHARACTERS_MAX)]
    """Name of the optimizer's class."""
    slots: Annotated[tuple[str, ...], listing(text(NAME_CHARACTERS_MAX), STATE_SLOTS_MAX)]
    """Names of the values for each element of a tensor."""
    numbers: Annotated[tuple[str, ...], listing(text(NAME_CHARACTERS_MAX), NUMBERS_MAX)]
    """Names of the values for a tensor as a whole."""
    slot_masks: Annotated[bytes, blob(1, TENSORS_MAX)]
    """A byte for each tensor of the layout; bit i is set if the tensor has the i-th slot."""
    number_masks: Annotated[bytes, blob(1, TENSORS_MAX)]

    BYTES_MAX: ClassVar[int] = 2 * TENSORS_MAX + SMALL_BYTES_MAX

    def slots_of(self, tensor: int) -> tuple[str, ...]:
        """Return the slots of a tensor."""
        return _chosen(self.slots, self.slot_masks[tensor])

    def numbers_of(self, tensor: int) -> tuple[str, ...]:
        """Return the numbers of a tensor."""
        return _chosen(self.numbers, self.number_masks[tensor])


assert StateHeader.BYTES_MAX < STATE_PART_BYTES, "a header is one part"


class TensorState(NamedTuple):
    """The state of one tensor."""

    slots: Mapping[str, Float32Array]
    """Each flat, and a view of the packed state."""
    numbers: Mapping[str, float]


class PackedState:
    """The state of an optimizer in one piece of memory, in the format of messages.

    Values are undefined until `set_number`, `set_part` or the views of `slot` write them.
    `UnfitStateError` if the header does not fit the run's layout.
    """

    def __init__(self, header: StateHeader, layout: Layout) -> None:
        check_header(header, layout)
        self.header = header
        self._layout = layout
        self._numbers_at: list[dict[str, int]] = []
        self._slots_at: list[dict[str, slice]] = []
        numbers = values = 0
        for i, tensor in enumerate(layout.tensors):
            names = header.numbers_of(i)
            self._numbers_at.append({name: numbers + at for at, name in enumerate(names)})
            numbers += len(names)
            slots = {}
            for name in header.slots_of(i):
                slots[name] = slice(values, values + tensor.elements)
                values += tensor.elements
            self._slots_at.append(slots)
        self._bytes: NDArray[np.uint8] = np.empty(8 * numbers + 4 * values, np.uint8)
        self._numbers = self._bytes[: 8 * numbers].view("<f8")
        self._values = self._bytes[8 * numbers :].view("<f4")

    # Values.

    def slot(self, tensor: int, name: str) -> Float32Array:
        """Return the values of a slot of a tensor: a flat view, to read or write."""
        return self._values[self._slots_at[tensor][name]]

    def set_number(self, tensor: int, name: str, value: float) -> None:
        """Set a number of a tensor."""
        self._numbers[self._numbers_at[tensor][name]] = value

    def tensor(self, i: int) -> TensorState:
        """Return the state of a tensor."""
        return TensorState(
            {name: self._values[where] for name, where in self._slots_at[i].items()},
            {name: float(self._numbers[at]) for name, at in self._numbers_at[i].items()},
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self._bytes.nbytes

    def check_values(self) -> None:
        """Refuse values that no optimizer has: a NaN, an infinity, a sum of squares below zero.

        `UnfitStateError` names the first such value.
        """
        for i, tensor in enumerate(self._layout.tensors):
            state = self.tensor(i)
            for name, values in state.slots.items():
                _check_values(values, name, tensor.name)
            for name, value in state.numbers.items():
                _check_values(np.array([value]), name, tensor.name)

    # Messages.

    @property
    def parts(self) -> int:
        """Number of parts, the header included."""
        return 1 + -(-self.nbytes // STATE_PART_BYTES)

    def part(self, number: int) -> bytes:
        """Return the bytes of a part."""
        if number == 0:
            return self.header.pack()
        return self._bytes[self._span_of(number)].tobytes()

    def set_part(self, number: int, body: bytes) -> None:
        """Write a received part, not the header; `UnfitStateError` if its length is wrong."""
        span = self._span_of(number)
        size = len(self._bytes[span])
        if len(body) != size:
            raise UnfitStateError(f"part {number} has {len(body)} bytes; it has to have {size}")
        self._bytes[span] = np.frombuffer(body, np.uint8)

    @staticmethod
    def _span_of(number: int) -> slice:
        return slice((number - 1) * STATE_PART_BYTES, number * STATE_PART_BYTES)


def header_of(
    optimizer: str, slots: Sequence[frozenset[str]], numbers: Sequence[frozenset[str]]
) -> StateHeader:
    """Return the header of a state.

    Parameters
    ----------
    optimizer : str
        Name of the optimizer's class.
    slots, numbers : sequence of frozenset of str
        Names of the slots and numbers of each tensor of the layout.

    Raises
    ------
    UnfitStateError
        If the state is empty, or has too many names or too long ones.
    """
    slot_names = tuple(sorted(frozenset().union(*slots)))
    number_names = tuple(sorted(frozenset().union(*numbers)))
    if not slot_names and not number_names:
        raise UnfitStateError(f"{optimizer} keeps no state for any parameter")
    if len(slot_names) > STATE_SLOTS_MAX or len(number_names) > NUMBERS_MAX:
        raise UnfitStateError(
            f"{optimizer} keeps {len(slot_names)} values for each element and {len(number_names)} "
            f"for each tensor; the limits are {STATE_SLOTS_MAX} and {NUMBERS_MAX}"
        )
    header = StateHeader(
        optimizer,
        slot_names,
        number_names,
        bytes(_mask(slot_names, present) for present in slots),
        bytes(_mask(number_names, present) for present in numbers),
    )
    try:
        return StateHeader.parse(header.pack())
    except InvalidMessageError as error:  # a name is too long, or not printable
        raise UnfitStateError(str(error)) from None


def _chosen(names: Sequence[str], mask: int) -> tuple[str, ...]:
    return tuple(compress(names, (mask >> i & 1 for i in range(len(names)))))


def _mask(names: Sequence[str], present: frozenset[str]) -> int:
    return sum(1 << i for i, name in enumerate(names) if name in present)


def check_header(header: StateHeader, layout: Layout) -> None:
    """Refuse a header that does not fit the layout; `UnfitStateError` names the difference."""
    names = [*header.slots, *header.numbers]
    if len(set(names)) != len(names):
        raise UnfitStateError(f"a name occurs twice among {', '.join(names)}")
    masks = ((header.slot_masks, header.slots), (header.number_masks, header.numbers))
    for mask, known in masks:
        if len(mask) != len(layout.tensors):
            raise UnfitStateError(f"it has {len(mask)} tensors; the run has {len(layout.tensors)}")
        if max(mask) >> len(known):
            raise UnfitStateError(f"a tensor has more than {', '.join(known) or 'nothing'}")


def _check_values(values: NDArray[np.floating], name: str, tensor: str) -> None:
    low = 0.0 if name in NOT_NEGATIVE else -np.inf
    # Both comparisons with a NaN are false.
    fit = (values >= low) & (np.abs(values) < np.inf)
    if not fit.all():
        at = int(np.argmin(fit))
        raise UnfitStateError(f"{name} of {tensor!r} has the value {values[at]:g} at {at}")
