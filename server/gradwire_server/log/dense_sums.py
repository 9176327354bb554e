"""`DenseSum`: the sum of many updates, with a number for each element, hit or not.

What a slow member of a large model lacks has most elements after a minute. With 8 bytes for each
hit it would take twice the memory of the model; with the fewest bytes that take the largest number
it takes mostly a quarter of it, and never more than the model.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradwire_codecs import Update

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
    """

    multiple: int
    counts: NDArray[np.signedinteger]

    @classmethod
    def of(cls, update: Update, elements: int) -> "DenseSum | None":
        """Return an update of a vector like this; None if it takes less memory as it is."""
        if update.hits < DENSE_HITS_MIN:
            return None
        largest = max(int(update.count.max()), -int(update.count.min()))
        dtype = np.min_scalar_type(-largest - 1)
        if elements * dtype.itemsize >= update.index.nbytes + update.count.nbytes:
            return None
        counts = np.zeros(elements, dtype)
        counts[update.index] = update.count
        return cls(update.multiple, counts)

    @property
    def nbytes(self) -> int:
        """Memory."""
        return self.counts.nbytes

    @property
    def elements(self) -> int:
        """Length of the vector."""
        return len(self.counts)

    def within(self, start: int, stop: int) -> Update | None:
        """Return what changes between two elements; None if nothing does."""
        part = self.counts[start:stop]
        found = np.flatnonzero(part != 0)  # of booleans, which is faster
        if not found.size:
            return None
        index = (found + start).astype(np.uint32)
        return Update(start, stop, self.multiple, index, part[found].astype(np.int32))
