"""The compiled loop that adds up the hits of several updates.

It goes over the vector block by block. A block's sums stay in the first-level cache, and marks say
which of its groups have hits, so that the time follows from the hits and hardly from the vector.
"""

from typing import Final

import numpy as np

from gradwire_codecs.arrays import Int32Array, Int64Array, UInt32Array, UInt64Array
from gradwire_codecs.kernels.compiled import compiled

WORD: Final = 64
"""Elements whose marks are the bits of one integer."""

BLOCK: Final = 2**14

LARGEST: Final = 2**31 - 1

SPREAD: Final = np.uint64(0x03F79D71B4CB0A89)
"""A de Bruijn sequence: times a power of two, its six highest bits say which power that was."""

POSITIONS: Final = np.zeros(WORD, np.int64)
"""By these bits, the power."""
POSITIONS[[((int(SPREAD) << power) & (2**64 - 1)) >> 58 for power in range(WORD)]] = range(WORD)


@compiled
def merge_hits(
    index: UInt32Array,
    change: Int32Array,
    at: Int64Array,
    ends: Int64Array,
    sums: Int64Array,
    marks: UInt64Array,
    into_index: UInt32Array,
    into_change: Int32Array,
) -> np.int64:
    """Add up hits; return how many elements change, or -1 if one leaves the range of 32 bits.

    Parameters
    ----------
    index, change : ndarray of shape (hits,)
        Those of all sources one behind the other, each ascending.
    at, ends : ndarray of shape (sources,)
        Where the hits of each begin and end; `at` is changed.
    sums : ndarray of shape (BLOCK,)
        Zeros, and zeros again at the end unless it returns -1.
    marks : ndarray of shape (BLOCK // WORD,)
        The same.
    into_index, into_change : ndarray of shape (hits,)
        Get the result.
    """
    merged = np.int64(0)
    while True:
        low = _next_block(index, at, ends)
        if low < 0:
            return merged
        _add_block(index, change, at, ends, sums, marks, low)
        found = _take_block(sums, marks, low, into_index[merged:], into_change[merged:])
        if found < 0:
            return found
        merged += found


@compiled
def _next_block(index: UInt32Array, at: Int64Array, ends: Int64Array) -> np.int64:
    """Return the first element of the next block with hits; -1 after the last one."""
    lowest = np.int64(-1)
    for source in range(at.size):
        if at[source] < ends[source]:
            first = np.int64(index[at[source]])
            if lowest < 0 or first < lowest:
                lowest = first
    return lowest // BLOCK * BLOCK if lowest >= 0 else lowest


@compiled
def _add_block(
    index: UInt32Array,
    change: Int32Array,
    at: Int64Array,
    ends: Int64Array,
    sums: Int64Array,
    marks: UInt64Array,
    low: np.int64,
) -> None:
    """Add up the hits of all sources in a block."""
    high = low + BLOCK
    for source in range(at.size):
        j, end = at[source], ends[source]
        while j < end and index[j] < high:
            local = np.int64(index[j]) - low
            sums[local] += change[j]
            marks[local // WORD] |= np.uint64(1) << np.uint64(local % WORD)
            j += 1
        at[source] = j


@compiled
def _take_block(
    sums: Int64Array,
    marks: UInt64Array,
    low: np.int64,
    into_index: UInt32Array,
    into_change: Int32Array,
) -> np.int64:
    """Move the sums of a block to the result; return how many, or -1 if one is out of range."""
    found = np.int64(0)
    for word in range(marks.size):
        left = marks[word]
        marks[word] = 0
        while left != 0:
            local = WORD * word + POSITIONS[((left & -left) * SPREAD) >> np.uint64(58)]
            left &= left - np.uint64(1)
            total = sums[local]
            if abs(total) > LARGEST:
                return np.int64(-1)
            sums[local] = 0
            if total != 0:
                into_index[found] = low + local
                into_change[found] = total
                found += 1
    return found
