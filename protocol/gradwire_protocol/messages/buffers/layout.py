"""What a module holds besides its parameters: how that is described, its values, and `Buffers`.

`Buffers` is the message with the buffers of a worker.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gradwire_protocol.delivery.shaped_message import Payload
from gradwire_protocol.limits import BUFFER_LAYOUT_BYTES_MAX, BUFFERS_BYTES_MAX, MESSAGE_BYTES_MAX
from gradwire_protocol.messages.fields import Rank
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.layout import DIMENSIONS_MAX, ELEMENTS_MAX, NAME_CHARACTERS_MAX
from gradwire_protocol.messages.schema import (
    Check,
    Record,
    blob,
    choice,
    integer,
    listing,
    record,
    text,
)

Floats: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]

INTEGER_BYTES: Final = 8

BUFFER_TENSORS_MAX: Final = 8_192

TRUTH: Final = "BOOL"
"""Type of truth values, of which a message has eight in a byte."""

WIDTHS: Final = {
    "F32": 4,
    "F64": 8,
    TRUTH: 1,
    **{f"{sign}{8 * width}": width for sign in "IU" for width in (1, 2, 4, 8)},
}
"""Bytes of a value of each type in a file; the names are those of safetensors."""

INTEGER_TYPES: Final = {
    "torch.uint8": "U8",
    **{f"torch.int{8 * width}": f"I{8 * width}" for width in (1, 2, 4, 8)},
}
"""Types of integers that are averaged, and their names in files."""

TYPE_CHARACTERS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Buffers(Record):
    """The values of the buffers of a worker's module; `agreement.agreed` says what all use.

    The latest message of each rank counts. One without values withdraws the rank's buffers.
    """

    rank: Rank
    """The worker they belong to."""
    final: bool
    """Whether it is the rank's last: the worker is finishing, and these values count until the run
    ends."""
    leaves: bool
    """Whether the worker leaves while others train on. Its statistics count, but of what is not
    averaged its values are used only where no other worker has any."""
    layout: Annotated[bytes, blob(0, BUFFER_LAYOUT_BYTES_MAX)]
    """A packed `BufferLayout`. Only buffers of the same layout are averaged."""
    floats: Annotated[bytes, blob(0, BUFFERS_BYTES_MAX)]
    """Little-endian floats of 4 or 8 bytes, as the layout says."""
    integers: Annotated[bytes, blob(0, BUFFERS_BYTES_MAX)]
    """Little-endian int64."""
    others: Annotated[bytes, blob(0, BUFFERS_BYTES_MAX)]
    """What is not averaged, little-endian, as the layout says."""

    KIND: ClassVar[Kind] = Kind.BUFFERS
    BYTES_MAX: ClassVar[int] = MESSAGE_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0

    @classmethod
    def withdrawal(cls, rank: int) -> "Buffers":
        """Return a message that withdraws the buffers of a rank."""
        return cls(rank, False, False, layout=b"", floats=b"", integers=b"", others=b"")

    @property
    def nbytes(self) -> int:
        """Size of the values; 0 where there are none."""
        return len(self.floats) + len(self.integers) + len(self.others)


def _nothing() -> npt.NDArray[np.uint8]:
    return np.zeros(0, np.uint8)


class BufferValues(NamedTuple):
    """Values of the buffers of one module."""

    floats: Floats
    """Shape (n,): all floating point buffers that are averaged, concatenated."""
    integers: npt.NDArray[np.int64]
    """Shape (m,): all integer buffers that are averaged."""
    others: npt.NDArray[np.uint8] = _nothing()
    """Bytes of all others, little-endian, as in a message."""

    def equals(self, other: "BufferValues | None") -> bool:
        """Return whether the values are the same."""
        return other is not None and all(map(np.array_equal, self, other))


@dataclass(frozen=True)
class BufferTensor(Record):
    """One buffer of a module."""

    name: Annotated[str, text(NAME_CHARACTERS_MAX)]
    shape: Annotated[tuple[int, ...], listing(integer(0, ELEMENTS_MAX), DIMENSIONS_MAX)]
    type: Annotated[str, text(TYPE_CHARACTERS_MAX)]
    """Of what is averaged: ``float`` for every floating point type, as these may differ among
    workers, else torch's name; of others, one of `WIDTHS`."""

    @property
    def elements(self) -> int:
        """Number of its values."""
        return prod(self.shape)

    @property
    def packed_bytes(self) -> int:
        """Bytes in a message, where it is not averaged."""
        if self.type == TRUTH:
            return -(-self.elements // 8)
        return WIDTHS[self.type] * self.elements


def _tensors(*types: str) -> Check:
    """Allow lists of buffers of these types."""
    tensors = listing(record(BufferTensor), BUFFER_TENSORS_MAX)

    def check(value: object) -> tuple[BufferTensor, ...]:
        found: tuple[BufferTensor, ...] = tensors(value)
        for tensor in found:
            choice(*types)(tensor.type)
        return found

    return check


@dataclass(frozen=True)
class BufferLayout(Record):
    """The buffers of a module, in its order, and the format of their values in messages."""

    floats: Annotated[tuple[BufferTensor, ...], _tensors("float")]
    """Averaged."""
    integers: Annotated[tuple[BufferTensor, ...], _tensors(*INTEGER_TYPES)]
    """Averaged: of each value all use the largest."""
    float_bytes: Annotated[int, choice(4, 8)]
    """8 where an averaged buffer is float64, else 4."""
    others: Annotated[tuple[BufferTensor, ...], _tensors(*WIDTHS)] = ()

    BYTES_MAX: ClassVar[int] = BUFFER_LAYOUT_BYTES_MAX

    @property
    def tensors(self) -> tuple[BufferTensor, ...]:
        """All of them, in the order of the layout."""
        return *self.floats, *self.integers, *self.others

    @cached_property
    def packed(self) -> bytes:
        """The description in messages: two modules have the same buffers if these are equal."""
        return self.pack()

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Bytes of the floats, of the integers and of the others in a message."""
        floats = sum(tensor.elements for tensor in self.floats)
        integers = sum(tensor.elements for tensor in self.integers)
        others = sum(tensor.packed_bytes for tensor in self.others)
        return self.float_bytes * floats, INTEGER_BYTES * integers, others

    def pack_values(
        self, rank: int, values: BufferValues, *, final: bool, leaves: bool = False
    ) -> Buffers:
        """Return the message that has the values."""
        return Buffers(
            rank,
            final=final,
            leaves=leaves,
            layout=self.packed,
            floats=values.floats.astype(f"<f{self.float_bytes}", copy=False).tobytes(),
            integers=values.integers.astype("<i8", copy=False).tobytes(),
            others=values.others.tobytes(),
        )

    def unpack(self, buffers: Buffers) -> BufferValues | None:
        """Return the values in a message; None if another layout, or a mean would not be finite."""
        sizes = len(buffers.floats), len(buffers.integers), len(buffers.others)
        if buffers.layout != self.packed or sizes != self.sizes:
            return None
        floats: Floats = np.frombuffer(buffers.floats, f"<f{self.float_bytes}")
        if not np.isfinite(floats).all():
            return None
        others = np.frombuffer(buffers.others, np.uint8)
        return BufferValues(floats, np.frombuffer(buffers.integers, "<i8"), others)

    # In files, where each value has a place of its own.

    @classmethod
    def of_file(
        cls, tensors: Sequence[Mapping[str, object]], kinds: Sequence[str], counts: Sequence[object]
    ) -> "BufferLayout":
        """Return the layout of tensors in a file, with what `counts` says; or raise `ValueError`.

        Parameters
        ----------
        tensors : sequence of mapping
            Name and shape of each.
        kinds : sequence of str
            Their types in the file.
        """
        width, floats, integers, others = map(integer(0, 3 * BUFFER_TENSORS_MAX), counts)
        if floats + integers + others != len(tensors):
            raise ValueError(f"{counts} of {len(tensors)} buffers")
        torch_types = {name: type_ for type_, name in INTEGER_TYPES.items()}
        types = [
            *["float"] * floats,
            *(torch_types.get(kind, kind) for kind in kinds[floats : floats + integers]),
            *kinds[floats + integers :],
        ]
        plain = [{**each, "type": type_} for each, type_ in zip(tensors, types, strict=True)]
        return cls.from_plain(
            {
                "floats": plain[:floats],
                "integers": plain[floats : floats + integers],
                "float_bytes": width,
                "others": plain[floats + integers :],
            }
        )

    @property
    def counts(self) -> list[int]:
        """Width of the floats, and how many buffers there are of each kind: see `of_file`."""
        return [self.float_bytes, len(self.floats), len(self.integers), len(self.others)]

    def in_file(self) -> Iterator[tuple[BufferTensor, str]]:
        """Yield each buffer with its type in a safetensors file."""
        for tensor in self.floats:
            yield tensor, f"F{8 * self.float_bytes}"
        for tensor in self.integers:
            yield tensor, INTEGER_TYPES[tensor.type]
        for tensor in self.others:
            yield tensor, tensor.type

    @cached_property
    def bytes_in_file(self) -> int:
        """Bytes of all values in a file."""
        return sum(WIDTHS[kind] * tensor.elements for tensor, kind in self.in_file())

    def to_file(self, values: BufferValues) -> bytes:
        """Return values as they are in a file."""
        parts = [values.floats.astype(f"<f{self.float_bytes}", copy=False).tobytes()]
        for tensor, part in self.parts(values):
            if tensor.type in INTEGER_TYPES:
                parts.append(part.astype(dtype_of(INTEGER_TYPES[tensor.type])).tobytes())
            elif tensor.type == TRUTH:
                parts.append(np.unpackbits(part, count=tensor.elements).tobytes())
            elif tensor.type in WIDTHS:
                parts.append(part.tobytes())
        return b"".join(parts)

    def arrays(self, content: Payload) -> dict[str, npt.NDArray[Any]]:
        """Return the values that a file has, by name."""
        view, at, found = memoryview(content), 0, {}
        for tensor, kind in self.in_file():
            size = WIDTHS[kind] * tensor.elements
            array = np.frombuffer(view[at : at + size], dtype_of(kind))
            found[tensor.name] = array.reshape(tensor.shape)
            at += size
        return found

    def from_file(self, content: Payload) -> BufferValues:
        """Return the values that a file has."""
        arrays = [array.reshape(-1) for array in self.arrays(content).values()]
        floats = arrays[: len(self.floats)]
        integers = arrays[len(self.floats) : len(self.floats) + len(self.integers)]
        others = [
            np.packbits(array) if array.dtype == bool else np.frombuffer(array.tobytes(), np.uint8)
            for array in arrays[len(self.floats) + len(self.integers) :]
        ]
        return BufferValues(
            np.concatenate([np.zeros(0, f"f{self.float_bytes}"), *floats]),
            np.concatenate([np.zeros(0, np.int64), *integers]),
            np.concatenate([_nothing(), *others]),
        )

    def parts(self, values: BufferValues) -> Iterator[tuple[BufferTensor, npt.NDArray[Any]]]:
        """Yield each buffer with its values; of what is not averaged, its bytes in a message."""
        for tensors, flat in zip((self.floats, self.integers, self.others), values, strict=True):
            at = 0
            for tensor in tensors:
                length = tensor.packed_bytes if tensor.type in WIDTHS else tensor.elements
                yield tensor, flat[at : at + length]
                at += length


def dtype_of(kind: str) -> np.dtype[Any]:
    """Return the dtype of a type in files."""
    return np.dtype(bool if kind == TRUTH else f"<{kind[0].lower()}{WIDTHS[kind]}")


NO_BUFFERS: Final = BufferLayout((), (), 4)
