"""Digests of a replica and of its blocks: 64 bits that follow from the updates alone.

The digest of a range of elements is the sum of ``values[i] * h(i)`` modulo 2^64, where h is the
finalizer of splitmix64 [1]_ made odd. It is a sum, so the digest of a range is its first digest
plus those of all updates since: a program that adds up updates knows, at every version vector, the
digest that a replica must have, without reading it. The digest always shows a single changed
element; it misses any other difference with a chance of one in 2^64. It finds accidents, not an
attacker who searches for a collision.

This holds as long as no element leaves the range of 32 bits, which the master prevents.

References
----------
.. [1] G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators",
   OOPSLA 2014.
"""

from typing import Final

import numpy as np

from gradwire_codecs.arrays import Int8Array, Int32Array, UInt32Array, UInt64Array
from gradwire_codecs.format.update import DenseUpdate, Update
from gradwire_codecs.kernels.compiled import compiled, internal

MODULUS: Final = 2**64


@internal
def _weight(i: int) -> np.uint64:
    x = np.uint64(i + 1) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) | np.uint64(1)


@compiled
def _weigh(values: Int32Array, start: int) -> np.uint64:
    total = np.uint64(0)
    for i in range(values.size):
        total += _weight(start + i) * np.uint64(np.int64(values[i]))
    return total


@compiled
def _weigh_hits(
    index: UInt32Array, change: Int32Array, sign: int, block_elements: int, blocks: UInt64Array
) -> None:
    # Positions ascend, so a block is looked up and written once for all its hits: a division and a
    # write for each hit would take longer than its weight.
    block, low, high = 0, 0, 0
    total = np.uint64(0)
    for j in range(index.size):
        i = int(np.int64(index[j]))  # of unsigned, numba would compile `_weight` once more
        if not low <= i < high:
            blocks[block] += total
            block = i // block_elements
            low, high = block * block_elements, (block + 1) * block_elements
            total = np.uint64(0)
        total += _weight(i) * np.uint64(sign * np.int64(change[j]))
    blocks[block] += total


@compiled
def _weigh_counts(
    counts: Int8Array, start: int, factor: int, block_elements: int, blocks: UInt64Array
) -> None:
    """Do what `_weigh_hits` does, by a count for each element from `start` on."""
    low = start
    while low < start + counts.size:
        block = low // block_elements
        high = min((block + 1) * block_elements, start + counts.size)
        total = np.uint64(0)
        for i in range(low, high):
            total += _weight(i) * np.uint64(np.int64(counts[i - start]))
        blocks[block] += total * np.uint64(factor)
        low = high


def digest_of(values: Int32Array, start: int = 0) -> int:
    """Return the digest of a range of a replica.

    Parameters
    ----------
    values : ndarray of shape (n,), dtype int32
    start : int
        Position of the first one in the replica.
    """
    return int(_weigh(values, start))


class BlockDigests:
    """The digests of all blocks of a replica, updated with the updates of the replica.

    Parameters
    ----------
    values : ndarray of shape (blocks,), dtype uint64
        The digests; not copied, changed in place.
    elements : int
        Length of the replica.
    block_elements : int
        Length of a block. The last one may be shorter.
    """

    def __init__(self, values: UInt64Array, elements: int, block_elements: int) -> None:
        self.values = values
        self._elements = elements
        self._block_elements = block_elements

    @classmethod
    def of(cls, values: Int32Array, block_elements: int) -> "BlockDigests":
        """Compute the digests of a replica."""
        digests = [
            digest_of(values[start : start + block_elements], start)
            for start in range(0, values.size, block_elements)
        ]
        return cls(np.array(digests, np.uint64), values.size, block_elements)

    @property
    def whole(self) -> int:
        """The digest of the replica: its length plus those of all blocks."""
        return (self._elements + int(self.values.sum())) % MODULUS

    def add(self, update: Update) -> None:
        """Add an update."""
        self._add(update, 1)

    def subtract(self, update: Update) -> None:
        """Subtract an update that was added."""
        self._add(update, -1)

    def _add(self, update: Update, sign: int) -> None:
        update.check_fits(self._elements)
        if isinstance(update, DenseUpdate):
            factor = sign * update.multiple
            _weigh_counts(update.counts, update.start, factor, self._block_elements, self.values)
            return
        _weigh_hits(update.index, update.change, sign, self._block_elements, self.values)
