"""Digests of a replica and of its blocks: 64 bits that follow from the updates alone.

The digest of a range of elements is the sum of ``values[i] * h(i)`` modulo 2^64, where h is the
finalizer of splitmix64 [1]_ made odd. Being a sum, it is that of what the range was plus that of
every update since, so that who adds up updates knows what a replica has to be without looking at
it, at every version vector. It shows a single changed element for certain and anything else but for
one chance in 2^64. It finds accidents; it does not resist someone who searches for a collision.

It holds as long as no element leaves the range of 32 bits, which no master lets happen.

References
----------
.. [1] G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators",
   OOPSLA 2014.
"""

from typing import Final

import numpy as np

from gradwire_codecs.arrays import Int32Array, UInt32Array, UInt64Array
from gradwire_codecs.format.header import INT32_MAX
from gradwire_codecs.format.update import Update
from gradwire_codecs.kernels.compiled import compiled

MODULUS: Final = 2**64


@compiled
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
    for j in range(index.size):
        i = int(index[j])
        blocks[i // block_elements] += _weight(i) * np.uint64(sign * np.int64(change[j]))


@compiled
def _find_flip(values: Int32Array, start: int, difference: np.uint64) -> tuple[int, np.int64]:
    for i in range(values.size):
        weight = _weight(start + i)
        for bit in range(32):
            error = np.int64(1) << np.int64(bit)
            if weight * np.uint64(error) == difference:
                return i, error
            if weight * np.uint64(-error) == difference:
                return i, -error
    return -1, np.int64(0)


def digest_of(values: Int32Array, start: int = 0) -> int:
    """Return the digest of a range of a replica.

    Parameters
    ----------
    values : ndarray of shape (n,), dtype int32
    start : int
        Place of the first one in the replica.
    """
    return int(_weigh(values, start))


def unflip(values: Int32Array, start: int, digest: int) -> int | None:
    """Undo that one bit of a range was flipped; return the place of its element.

    Updates that were added since do not matter: the element is a power of two away from what it has
    to be. In 2^40 cases once, something else is taken for that.

    Parameters
    ----------
    values : ndarray of shape (n,), dtype int32
        Changed in place. At most 2^18 elements, or cases become more.
    start : int
        Place of the first one in the replica.
    digest : int
        What theirs has to be.

    Returns
    -------
    int or None
        None where more was flipped than one bit; nothing is changed then.
    """
    difference = (digest_of(values, start) - digest) % MODULUS
    at, error = _find_flip(values, start, np.uint64(difference))
    if at < 0:
        return None
    right = int(values[at]) - int(error)
    if not -INT32_MAX <= right <= INT32_MAX:
        return None
    values[at] = right
    return start + at


class BlockDigests:
    """The digests of all blocks of a replica, kept up to date by the updates that it gets.

    Parameters
    ----------
    values : ndarray of shape (blocks,), dtype uint64
        The digests; taken over and changed in place.
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
        """Compute those of a replica."""
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
        """Follow an update of the replica."""
        self._add(update, 1)

    def subtract(self, update: Update) -> None:
        """Take an update back."""
        self._add(update, -1)

    def _add(self, update: Update, sign: int) -> None:
        update.check_fits(self._elements)
        _weigh_hits(update.index, update.change, sign, self._block_elements, self.values)
