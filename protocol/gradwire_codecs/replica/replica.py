"""The replica: the shared parameters as a vector of integers, the same bits everywhere.

The value of element ``i`` is ``values[i] * quantum``. Updates add integers, which commutes and is
exact, so replicas that have applied the same updates are identical, whatever the order. A sum that
leaves the range of 32 bits wraps around, so this holds for it, too. The master prevents it: it asks
`Replica.first_outside` before it relays an update. The threshold pass of the worker whose parameter
grows too large finds it as well.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from gradwire_codecs.arrays import (
    Buffer,
    Float32Array,
    Int8Array,
    Int32Array,
    UInt32Array,
    describe,
)
from gradwire_codecs.errors import CodecError, NonFiniteError, OutOfRangeError
from gradwire_codecs.format.header import INT32_MAX
from gradwire_codecs.format.reading import add_counts, read_encoded
from gradwire_codecs.format.update import ELEMENTS_MAX, DenseUpdate, Update
from gradwire_codecs.kernels.compiled import compiled
from gradwire_codecs.kernels.lattice import add_to_replica
from gradwire_codecs.replica.digests import MODULUS, digest_of

QUANTUM_EXPONENT: Final = -24
"""The quantum is 2^-24 unless the parameters are too large for it: a range of plus or minus 128 in
steps of 6e-8, the resolution of a float32 near 1."""

QUANTUM_EXPONENT_MIN: Final = -40
QUANTUM_EXPONENT_MAX: Final = 0

HEADROOM: Final = 16
"""A run starts only if its largest parameter can still grow by this factor."""

FIRST_VALUE_MAX: Final = 2**31 // HEADROOM
"""Largest magnitude of an element at the start of a run, in quanta."""

BLOCK_ELEMENTS: Final = 2**14
"""Parameters that are converted to quanta at a time: all at once would take 16 bytes each, as
float64."""


@compiled
def _write(values: Int32Array, quantum: np.float32, parameters: Float32Array) -> None:
    for i in range(values.size):
        parameters[i] = np.float32(values[i]) * quantum


@compiled
def _largest_after(values: Int32Array, index: UInt32Array, change: Int32Array) -> int:
    # Reads all elements: a loop that can end early takes four times as long.
    largest = np.int64(0)
    for j in range(index.size):
        largest = max(largest, abs(np.int64(values[index[j]]) + np.int64(change[j])))
    return int(largest)


@compiled
def _largest_after_counts(values: Int32Array, counts: Int8Array, multiple: int) -> int:
    """Do what `_largest_after` does, with a count for each element."""
    highest, lowest = np.int64(0), np.int64(0)
    for i in range(counts.size):
        after = np.int64(values[i]) + np.int64(np.int32(counts[i]) * np.int32(multiple))
        # An element that does not change may be anywhere.
        highest = max(highest, after if counts[i] != 0 else np.int64(0))
        lowest = min(lowest, after if counts[i] != 0 else np.int64(0))
    return int(max(highest, -lowest))


class Replica:
    """The shared parameters S of a run.

    Parameters
    ----------
    values : ndarray of shape (N,), dtype int32
        Not copied; changed in place.
    quantum_exponent : int
        The quantum is two to this power.
    """

    def __init__(self, values: Int32Array, quantum_exponent: int = QUANTUM_EXPONENT) -> None:
        if (
            values.dtype != np.int32
            or values.ndim != 1
            or not values.flags.c_contiguous
            or not values.flags.aligned
            or not 1 <= values.size <= ELEMENTS_MAX
        ):
            raise CodecError(
                f"a replica is a flat int32 array of 1 to {ELEMENTS_MAX} elements, "
                f"not {describe(values)}"
            )
        if not QUANTUM_EXPONENT_MIN <= quantum_exponent <= QUANTUM_EXPONENT_MAX:
            raise CodecError(
                f"quantum 2^{quantum_exponent}; the exponent has to be "
                f"{QUANTUM_EXPONENT_MIN} to {QUANTUM_EXPONENT_MAX}"
            )
        self.values = values
        self.quantum_exponent = quantum_exponent

    def __len__(self) -> int:
        """Return N."""
        return self.values.size

    @property
    def quantum(self) -> np.float32:
        """Value of one unit: a power of two, exact in float32."""
        return np.float32(2.0**self.quantum_exponent)

    @classmethod
    def zeros(cls, elements: int, quantum_exponent: int = QUANTUM_EXPONENT) -> "Replica":
        """Return a replica of `elements` zeros."""
        return cls(np.zeros(elements, np.int32), quantum_exponent)

    @classmethod
    def from_parameters(
        cls, parameters: Float32Array, quantum_exponent: int = QUANTUM_EXPONENT
    ) -> "Replica":
        """Return the replica nearest to `parameters`.

        Raises
        ------
        NonFiniteError
            If a parameter is NaN or infinite.
        OutOfRangeError
            If a parameter could not grow by the factor `HEADROOM`; `quantum_exponent_for` returns
            an exponent with which it can.
        """
        if not parameters.size:
            raise CodecError("the parameters are empty; a replica needs at least one")
        check_headroom(parameters, quantum_exponent)
        values = np.empty(parameters.size, np.int32)
        for low in range(0, parameters.size, BLOCK_ELEMENTS):
            block = slice(low, low + BLOCK_ELEMENTS)
            scaled = np.ldexp(parameters[block].astype(np.float64), -quantum_exponent)
            values[block] = np.rint(scaled)
        return cls(values, quantum_exponent)

    def apply(self, update: Update | Buffer) -> int:
        """Add an update, decoded or not; return how many elements it changes.

        Raises
        ------
        MalformedUpdateError
            If it is no valid update of a vector of this length; the replica is then unchanged.
        """
        if isinstance(update, Update):
            update.check_fits(len(self))
            if isinstance(update, DenseUpdate):
                covered = slice(update.start, update.stop)
                add_counts(update.counts, update.multiple, covered, self.values)
            else:
                add_to_replica(self.values, update.index, update.change)
            return update.hits
        if not len(update):
            return 0  # `NOTHING`
        encoded = read_encoded(update, len(self))
        encoded.check()
        encoded.add_to(self.values)
        return encoded.hits

    def first_outside(self, update: Update) -> int | None:
        """Return the first element that an update would take beyond plus or minus 2^31 - 1.

        None if there is none; then `apply` wraps no element around.
        """
        update.check_fits(len(self))
        if isinstance(update, DenseUpdate):
            covered = self.values[update.start : update.stop]
            if _largest_after_counts(covered, update.counts, update.multiple) <= INT32_MAX:
                return None
        values, index, change = self.values, update.index, update.change
        if _largest_after(values, index, change) <= INT32_MAX:
            return None
        after = values[index].astype(np.int64) + change
        return int(index[np.argmax(np.abs(after) > INT32_MAX)])

    def values_at(self, where: slice) -> Int32Array:
        """Return some elements, shape (n,), in the memory of the host; they are to be read only."""
        return self.values[where]

    def write_parameters(self, parameters: Float32Array) -> None:
        """Set every parameter to the value of its element of the replica.

        The rounding to float32 is the same on every machine, so equal replicas give equal
        parameters, bit by bit.
        """
        _write(self.values, self.quantum, parameters)

    def digest(self) -> int:
        """Return 64 bits that are the same for equal replicas; see `digests`."""
        return (len(self) + digest_of(self.values)) % MODULUS


def largest_magnitude(parameters: Float32Array) -> float:
    """Return the largest absolute value.

    Raises
    ------
    NonFiniteError
        If an element is NaN or infinite.
    """
    check_finite(parameters)
    return max(float(parameters.max()), -float(parameters.min()))


def check_headroom(parameters: Float32Array, quantum_exponent: int) -> None:
    """Raise the errors of `Replica.from_parameters`, without making a replica.

    Raises
    ------
    NonFiniteError
        If a parameter is NaN or infinite.
    OutOfRangeError
        If a parameter could not grow by the factor `HEADROOM`.
    """
    limit = 2.0 ** (31 + quantum_exponent) / HEADROOM
    if largest_magnitude(parameters) >= limit:
        largest = int(np.argmax(np.abs(parameters)))
        raise OutOfRangeError(largest, float(parameters[largest]), limit)


def check_finite(parameters: Float32Array) -> None:
    """Raise `NonFiniteError` for the first element that is NaN or infinite."""
    finite = np.isfinite(parameters)
    if not finite.all():
        first = int(np.argmin(finite))
        raise NonFiniteError(first, float(parameters[first]))


def quantum_exponent_for(magnitudes: Sequence[float]) -> int:
    """Return the exponent of the smallest quantum, 2^-24 or more, for these parameters.

    Parameters
    ----------
    magnitudes : sequence of float
        Absolute values of parameters, all finite; the largest one decides.
    """
    largest = max(magnitudes, default=0.0)
    exponent = QUANTUM_EXPONENT
    while exponent < QUANTUM_EXPONENT_MAX and largest * HEADROOM >= math.ldexp(1.0, 31 + exponent):
        exponent += 1
    return exponent
