"""The compiled loops that add up the hits of several updates.

They go over the vector window by window. A window's sums stay in the second-level cache, and marks
say which of its elements have hits, so that the time follows from the hits and hardly from the
vector.
"""

from typing import Final

import numpy as np

from gradwire_codecs.arrays import Int32Array, Int64Array, UInt32Array, UInt64Array
from gradwire_codecs.kernels.compiled import compiled, trailing_zeros

WORD: Final = 64
"""Elements whose marks are the bits of one integer."""

WORD_BITS: Final = np.uint64(6)
WORD_MASK: Final = np.uint64(WORD - 1)


@compiled
def add_hits(
    index: UInt32Array,
    count: Int32Array,
    at: int,
    factor: int,
    low: int,
    sums: Int64Array,
    marks: UInt64Array,
) -> int:
    """Add the hits of one update that are in a window; return which hit is the first one after it.

    Parameters
    ----------
    index, count : ndarray of shape (hits,)
        Ascending positions, and what to add there, `factor` times.
    at : int
        The first hit that is not before the window.
    low : int
        The first element of the window.
    sums : ndarray of shape (window,)
    marks : ndarray of shape (window // WORD,)
        A bit for each element that was added to.
    """
    # Where the window ends is looked for first: a comparison for each hit would take a third more.
    stop, behind = at, index.size
    while stop < behind:
        middle = (stop + behind) // 2
        if index[middle] < low + sums.size:
            stop = middle + 1
        else:
            behind = middle
    for hit in range(at, stop):
        local = np.uint64(index[hit]) - np.uint64(low)
        sums[local] += np.int64(count[hit]) * factor
        marks[local >> WORD_BITS] |= np.uint64(1) << (local & WORD_MASK)
    return stop


@compiled
def take_sums(
    sums: Int64Array,
    marks: UInt64Array,
    low: int,
    largest: int,
    divisor: int,
    into_index: UInt32Array,
    into_count: Int32Array,
) -> tuple[int, int]:
    """Move the sums of a window to the result, and leave zeros.

    Parameters
    ----------
    largest : int
        Magnitude that a sum may have.
    divisor : int
        The greatest common divisor of the sums before.
    into_index, into_count : ndarray of shape (hits,)
        Get the result.

    Returns
    -------
    tuple
        How many sums are not zero, or -1 if one is too large; and the greatest common divisor with
        these.
    """
    found = 0
    fits = True
    for word in range(marks.size):
        left = marks[word]
        marks[word] = 0
        while left != 0:
            local = WORD * word + np.int64(trailing_zeros(left))
            left &= left - np.uint64(1)
            total = sums[local]
            sums[local] = 0
            if total != 0:
                into_index[found] = low + local
                into_count[found] = total
                found += 1
                fits &= abs(total) <= largest
                rest = abs(total)
                while divisor != 1 and rest != 0:
                    divisor, rest = rest, divisor % rest
    return found if fits else -1, divisor
