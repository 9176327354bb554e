"""Buffers: what a module holds besides its parameters, such as the running statistics of BatchNorm.

They are not trained, so they do not go through the threshold. Every worker sends what its own hold
now and then, exactly, and sets them to the mean of what all have sent last; of integers, as counts
of batches are, everyone takes the largest. What they hold and how they are averaged is here,
`features.buffers` does it at the steps where it is due, `worker.buffers` keeps what has come, and
`torch_buffers` reads and writes those of a module.

A mean lies between the least and the largest of what was averaged, whatever rounding does: so no
variance becomes negative, and what is equal everywhere stays as it is.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from hashlib import blake2b
from math import prod
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gradwire.errors import NonFiniteError, UsageError
from gradwire_protocol.limits import BUFFERS_BYTES_MAX
from gradwire_protocol.messages.fields import DIGEST_BYTES
from gradwire_protocol.messages.states import Buffers

Floats: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]

INTEGER_BYTES = 8


class BufferValues(NamedTuple):
    """What the buffers of one module hold."""

    floats: Floats
    """Shape (n,): all floating point ones, one behind the other."""
    integers: npt.NDArray[np.int64]
    """Shape (m,): all integer ones."""

    def equals(self, other: "BufferValues | None") -> bool:
        """Return whether the values are the same."""
        return (
            other is not None
            and np.array_equal(self.floats, other.floats)
            and np.array_equal(self.integers, other.integers)
        )


@dataclass(frozen=True)
class BufferTensor:
    """One buffer of a module."""

    name: str
    shape: tuple[int, ...]
    type: str
    """``float`` for all floating point types, which may differ among workers; else its own."""

    @property
    def elements(self) -> int:
        """How many values it has."""
        return prod(self.shape)


@dataclass(frozen=True)
class BufferLayout:
    """Which buffers a module has, and how their values travel.

    Parameters
    ----------
    floats, integers : tuple of BufferTensor
        In the order of the module.
    float_bytes : int
        8 where one of them has float64, and 4 otherwise.
    """

    floats: tuple[BufferTensor, ...]
    integers: tuple[BufferTensor, ...]
    float_bytes: int

    @cached_property
    def digest(self) -> bytes:
        """What tells layouts apart."""
        tensors = [
            f"{tensor.name}\0{tensor.shape}\0{tensor.type}".encode(errors="replace")
            for tensor in (*self.floats, *self.integers)
        ]
        lengths = struct.pack(f"<{len(tensors) + 1}I", self.float_bytes, *map(len, tensors))
        return blake2b(lengths + b"".join(tensors), digest_size=DIGEST_BYTES).digest()

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Bytes of the floats and of the integers in a message."""
        floats = sum(tensor.elements for tensor in self.floats)
        integers = sum(tensor.elements for tensor in self.integers)
        return self.float_bytes * floats, INTEGER_BYTES * integers

    def check_size(self) -> None:
        """Refuse what no message holds.

        Raises
        ------
        UsageError
            Which says what is so large, and what to do.
        """
        size = sum(self.sizes)
        if size <= BUFFERS_BYTES_MAX:
            return
        tensors = sorted((*self.floats, *self.integers), key=lambda each: -each.elements)
        largest = ", ".join(f"{each.name!r} {each.shape}" for each in tensors[:3])
        raise UsageError(
            f"the {len(tensors)} buffers of the module take {size} bytes; the limit is "
            f"{BUFFERS_BYTES_MAX}. The largest are {largest}. Register what is no state of the "
            "training with persistent=False, which is left alone; or pass share_buffers=False, and "
            "no buffer is averaged"
        )

    def check_finite(self, values: BufferValues) -> None:
        """Refuse values that no mean can be taken of.

        Raises
        ------
        NonFiniteError
            Which names the buffer.
        """
        finite = np.isfinite(values.floats)
        if finite.all():
            return
        at = int(np.argmin(finite))
        value = values.floats[at]
        for tensor in self.floats:
            if at < tensor.elements:
                place = tuple(int(i) for i in np.unravel_index(at, tensor.shape or (1,)))
                where = f"{tensor.name}{list(place) if tensor.shape else ''}"
                raise NonFiniteError(f"buffer {where} is {value}; nothing was sent")
            at -= tensor.elements
        raise AssertionError("there are as many values as the layout has")

    def pack(self, rank: int, values: BufferValues, *, final: bool) -> Buffers:
        """Return what tells others of the values."""
        return Buffers(
            rank,
            final=final,
            layout_digest=self.digest,
            floats=values.floats.astype(f"<f{self.float_bytes}", copy=False).tobytes(),
            integers=values.integers.astype("<i8", copy=False).tobytes(),
        )

    def unpack(self, buffers: Buffers) -> BufferValues | None:
        """Return the values that somebody has sent; None where they are no use.

        They are none of another layout, and none with a NaN or an infinity.
        """
        sizes = len(buffers.floats), len(buffers.integers)
        if buffers.layout_digest != self.digest or sizes != self.sizes:
            return None
        floats: Floats = np.frombuffer(buffers.floats, f"<f{self.float_bytes}")
        if not np.isfinite(floats).all():
            return None
        return BufferValues(floats, np.frombuffer(buffers.integers, "<i8"))


class ModuleBuffers(Protocol):
    """The buffers of a module, wherever they are."""

    layout: BufferLayout

    def read(self) -> BufferValues:
        """Return a copy of what they hold.

        Raises
        ------
        UsageError
            If one is gone, or has another shape or type than at first.
        """

    def write(self, values: BufferValues) -> None:
        """Set those that hold anything else."""


def mean_of(values: Sequence[BufferValues]) -> BufferValues:
    """Return the mean of the floats, computed in float64, and the largest of the integers.

    Parameters
    ----------
    values : sequence of BufferValues
        At least one. Their order decides how the sum is rounded, so it has to be the same at all.

    Returns
    -------
    BufferValues
        Each float between the least and the largest at its place, both included.
    """
    first = values[0].floats
    total = first.astype(np.float64)
    low, high = total.copy(), total.copy()
    with np.errstate(over="ignore"):  # beyond the largest float64; `high` is then nearer
        for each in values[1:]:
            total += each.floats
            np.minimum(low, each.floats, out=low)
            np.maximum(high, each.floats, out=high)
    mean = np.clip(total / len(values), low, high)
    integers = reduce(np.maximum, (each.integers for each in values))
    floats: Floats = mean if first.dtype == np.float64 else mean.astype(np.float32)
    return BufferValues(floats, integers)
