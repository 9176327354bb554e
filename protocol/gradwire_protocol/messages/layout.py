"""`Layout`: the named tensors, in order, that form the parameters of a run.

All workers of a run have the same one. It gives the length of the flat vector, and the name of each
element for error messages.
"""

import hashlib
from dataclasses import dataclass
from math import prod
from typing import Annotated, ClassVar, Final

from gradwire_protocol.limits import MESSAGE_BYTES_MAX
from gradwire_protocol.messages.schema import (
    SMALL_BYTES_MAX,
    Record,
    integer,
    listing,
    record,
    text,
)

ELEMENTS_MAX: Final = 2**31 - 1
TENSORS_MAX: Final = 16_384
DIMENSIONS_MAX: Final = 16
NAME_CHARACTERS_MAX: Final = 256

METADATA: Final = "__metadata__"
"""The name of what a safetensors file holds besides tensors. No tensor can have it: see
`checkpoint`."""

LOGGED: Final = "__logged__"
"""The name of what was logged, in a checkpoint. No tensor can have it either."""

LAYOUT_BYTES_MAX: Final = MESSAGE_BYTES_MAX // 2
"""Most bytes of a packed layout: some 40,000 tensors with names of 40 characters."""


@dataclass(frozen=True, slots=True)
class Tensor(Record):
    """One named part of the parameters."""

    name: Annotated[str, text(NAME_CHARACTERS_MAX)]
    shape: Annotated[tuple[int, ...], listing(integer(0, ELEMENTS_MAX), DIMENSIONS_MAX)]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


def _check_tensors(value: object) -> tuple[Tensor, ...]:
    tensors: tuple[Tensor, ...] = listing(record(Tensor), TENSORS_MAX)(value)
    integer(1, ELEMENTS_MAX)(sum(tensor.elements for tensor in tensors))
    names = {METADATA, LOGGED}
    for tensor in tensors:
        if tensor.name in names:
            raise ValueError(f"the name {tensor.name!r} is taken")
        names.add(tensor.name)
    size = len(Layout(tensors).pack())
    if size > LAYOUT_BYTES_MAX:
        raise ValueError(f"the tensors take {size} bytes; the limit is {LAYOUT_BYTES_MAX}")
    return tensors


@dataclass(frozen=True, slots=True)
class Layout(Record):
    """The tensors that form the flat vector of parameters, in order."""

    tensors: Annotated[tuple[Tensor, ...], _check_tensors]

    BYTES_MAX: ClassVar[int] = LAYOUT_BYTES_MAX + SMALL_BYTES_MAX

    @property
    def elements(self) -> int:
        """N, the length of the flat vector."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def digest(self) -> str:
        """A short name for this layout, for logs."""
        return hashlib.blake2b(self.pack(), digest_size=4).hexdigest()

    def difference(self, other: "Layout") -> str | None:
        """Describe the first difference of `other`; return None if there is none."""
        for mine, theirs in zip(self.tensors, other.tensors, strict=False):
            if mine != theirs:
                return (
                    f"{theirs.name!r} of shape {theirs.shape} "
                    f"where the run has {mine.name!r} of shape {mine.shape}"
                )
        if len(self.tensors) != len(other.tensors):
            return (
                f"{len(other.tensors)} tensors with {other.elements} parameters "
                f"where the run has {len(self.tensors)} with {self.elements}"
            )
        return None

    def locate(self, element: int) -> str:
        """Name an element of the flat vector: its tensor and its place there."""
        wanted = element
        for tensor in self.tensors:
            if element < tensor.elements:
                place = []
                for size in reversed(tensor.shape):
                    element, at = divmod(element, size)
                    place.append(at)
                return f"{tensor.name}{list(reversed(place))}" if place else tensor.name
            element -= tensor.elements
        raise IndexError(f"element {wanted} is behind the last tensor")
