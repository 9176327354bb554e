"""Buffers: what a module has besides its parameters, such as the running statistics of BatchNorm.

They are not trained, so they do not go through the threshold. Now and then every worker sends the
exact values of its buffers, and sets them to the mean of what all workers have sent last; for
integers, such as counts of batches, to the largest. This module has the values and their mean,
`features.buffers` averages at the steps where it is due, `worker.buffers` keeps received values,
and `torch_buffers` reads and writes the buffers of a module.

Whatever rounding does, a mean lies between the least and the largest averaged value: so no variance
becomes negative, and values that are equal everywhere stay as they are.
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
    """Values of the buffers of one module."""

    floats: Floats
    """Shape (n,): all floating point buffers, concatenated."""
    integers: npt.NDArray[np.int64]
    """Shape (m,): all integer buffers."""

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
    """``float`` for every floating point type, as these may differ among workers; else its own."""

    @property
    def elements(self) -> int:
        """Number of its values."""
        return prod(self.shape)


@dataclass(frozen=True)
class BufferLayout:
    """The buffers of a module, in its order, and the format of their values in messages."""

    floats: tuple[BufferTensor, ...]
    integers: tuple[BufferTensor, ...]
    float_bytes: int
    """8 where a buffer is float64, else 4."""

    @cached_property
    def digest(self) -> bytes:
        """Digest of the layout, by which workers compare theirs."""
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
        """Refuse buffers too large for a message; `UsageError` names the largest ones."""
        size = sum(self.sizes)
        if size <= BUFFERS_BYTES_MAX:
            return
        tensors = sorted((*self.floats, *self.integers), key=lambda each: -each.elements)
        largest = ", ".join(f"{each.name!r} {each.shape}" for each in tensors[:3])
        raise UsageError(
            f"the {len(tensors)} buffers of the module take {size} bytes; the limit is "
            f"{BUFFERS_BYTES_MAX}. The largest are {largest}. Register buffers that are no state "
            "of the training with persistent=False: these are not averaged. Or pass "
            "share_buffers=False to average none"
        )

    def check_finite(self, values: BufferValues) -> None:
        """Refuse values without a mean; `NonFiniteError` names the buffer and its value."""
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
        """Return the message that has the values."""
        return Buffers(
            rank,
            final=final,
            layout_digest=self.digest,
            floats=values.floats.astype(f"<f{self.float_bytes}", copy=False).tobytes(),
            integers=values.integers.astype("<i8", copy=False).tobytes(),
        )

    def unpack(self, buffers: Buffers) -> BufferValues | None:
        """Return the values in a message; None if it has another layout, a NaN or an infinity."""
        sizes = len(buffers.floats), len(buffers.integers)
        if buffers.layout_digest != self.digest or sizes != self.sizes:
            return None
        floats: Floats = np.frombuffer(buffers.floats, f"<f{self.float_bytes}")
        if not np.isfinite(floats).all():
            return None
        return BufferValues(floats, np.frombuffer(buffers.integers, "<i8"))


class ModuleBuffers(Protocol):
    """The buffers of a module, on any device."""

    layout: BufferLayout

    def read(self) -> BufferValues:
        """Return a copy of the values.

        `UsageError` if a buffer is gone, or has another shape or type than at first.
        """

    def write(self, values: BufferValues) -> None:
        """Set the buffers that have other values."""


def mean_of(values: Sequence[BufferValues]) -> BufferValues:
    """Return the mean of the floats, computed in float64, and the largest of the integers.

    Parameters
    ----------
    values : sequence of BufferValues
        At least one. Their order decides how the sum is rounded: every worker needs the same.

    Returns
    -------
    BufferValues
        Each float is between the least and the largest at its place, both included.
    """
    first = values[0].floats
    total = first.astype(np.float64)
    low, high = total.copy(), total.copy()
    with np.errstate(over="ignore"):  # an infinite sum is clipped to `high`
        for each in values[1:]:
            total += each.floats
            np.minimum(low, each.floats, out=low)
            np.maximum(high, each.floats, out=high)
    mean = np.clip(total / len(values), low, high)
    integers = reduce(np.maximum, (each.integers for each in values))
    floats: Floats = mean if first.dtype == np.float64 else mean.astype(np.float32)
    return BufferValues(floats, integers)
