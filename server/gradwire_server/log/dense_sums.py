"""`DenseSum`: the sum of many updates, with a number for each element, hit or not.

What a slow member of a large model lacks has most elements after a minute. With 8 bytes for each
hit it would take twice the memory of the model; with the fewest bytes that take the largest number
it takes mostly a quarter of it, and never more than the model. Further updates are added to it in
the time that their hits take.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradwire_codecs import Update
from gradwire_codecs.format.header import INT32_MAX

DENSE_HITS_MIN: Final = 2**20
"""Hits, 8 MiB. A smaller sum is wanted again too often, or for too short a time."""


@dataclass(frozen=True, slots=True)
class DenseSum:
    """A sum of updates of a vector.

    Attributes
    ----------
    multiple : int
        The threshold in quanta.
    counts : ndarray of shape (elements,), dtype int8, int16 or int32
        Thresholds by which each element changes.
    largest : int
        The largest magnitude in it.
    """

    multiple: int
    counts: NDArray[np.signedinteger]
    largest: int

    @classmethod
    def of(cls, update: Update, elements: int) -> "DenseSum | None":
        """Return an update of a vector like this; None if it takes less memory as it is."""
        if update.hits < DENSE_HITS_MIN:
            return None
        largest = _largest(update.count)
        dtype = _dtype_for(largest)
        if elements * dtype.itemsize >= update.index.nbytes + update.count.nbytes:
            return None
        counts = np.zeros(elements, dtype)
        counts[update.index] = update.count
        return cls(update.multiple, counts, largest)

    def plus(self, others: Sequence["Update | DenseSum"]) -> "DenseSum | None":
        """Return the sum with others; None where an element leaves the range of 32 bits."""
        unit = math.gcd(self.multiple, *(other.multiple for other in others))
        largest = self.largest * (self.multiple // unit)
        for other in others:
            its_largest = other.largest if isinstance(other, DenseSum) else _largest(other.count)
            largest += its_largest * (other.multiple // unit)
        dtype = _dtype_for(largest)
        counts = self.counts.astype(dtype)
        if unit < self.multiple:
            counts *= dtype.type(self.multiple // unit)
        for other in others:
            factor = dtype.type(other.multiple // unit)
            if isinstance(other, DenseSum):
                counts += other.counts * factor
            else:
                counts[other.index] += other.count.astype(dtype) * factor
        largest = _largest(counts)
        if largest > INT32_MAX // unit:
            return None
        return DenseSum(unit, counts.astype(_dtype_for(largest), copy=False), largest)

    @property
    def nbytes(self) -> int:
        """Memory."""
        return self.counts.nbytes

    @property
    def elements(self) -> int:
        """Length of the vector."""
        return len(self.counts)

    def within(self, start: int, stop: int) -> Update:
        """Return what changes between two elements; it may have no hits."""
        part = self.counts[start:stop]
        found = np.flatnonzero(part != 0)  # of booleans, which is faster
        index = (found + start).astype(np.uint32)
        return Update(start, stop, self.multiple, index, part[found].astype(np.int32))


def _largest(counts: NDArray[np.signedinteger]) -> int:
    """Return the largest magnitude."""
    return max(int(counts.max(initial=0)), -int(counts.min(initial=0)))


def _dtype_for(largest: int) -> np.dtype[np.signedinteger]:
    """Return the type with the fewest bytes that has room for a magnitude."""
    return np.min_scalar_type(-largest - 1)
