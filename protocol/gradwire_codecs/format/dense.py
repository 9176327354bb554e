"""Dense coder: every element of a range, hit or not, as one digit of a number.

With magnitudes of at most M there are ``2 M + 1`` values per element, so an element is one digit
in that radix, and a 64-bit word holds as many digits as fit: 40 if M is 1 (1.6 bits per
element), 27 if M is 2, 8 if M is 127. The length depends only on the number of elements and on
M, so this format bounds the size of an update whatever its density.

Words are little-endian; the first element is the lowest digit; a digit is the count plus M. The
last word is filled up with zero digits (of value 0, not M).
"""

from typing import Final

import numpy as np

from gradwire_codecs.arrays import Int32Array, UInt32Array, UInt64Array
from gradwire_codecs.kernels.compiled import compiled

WORD_BYTES: Final = 8


@compiled
def digits_per_word(magnitude_max: int) -> int:
    """Return how many elements with magnitudes up to `magnitude_max` one 64-bit word holds."""
    radix = np.uint64(2 * magnitude_max + 1)
    most = np.uint64(2**64 - 1) // radix
    digits, capacity = 0, np.uint64(1)
    while capacity <= most:
        capacity *= radix
        digits += 1
    return digits


def dense_bytes(length: int, magnitude_max: int) -> int:
    """Return the exact size of `length` elements with magnitudes up to `magnitude_max`."""
    return -(-length // digits_per_word(magnitude_max)) * WORD_BYTES


@compiled
def _write(
    index: UInt32Array,
    count: Int32Array,
    start: int,
    length: int,
    magnitude_max: int,
    digits: int,
    words: UInt64Array,
) -> None:
    radix = np.uint64(2 * magnitude_max + 1)
    hit = 0
    for w in range(words.size):
        word = np.uint64(0)
        scale = np.uint64(1)
        low = w * digits
        for j in range(low, min(low + digits, length)):
            digit = np.uint64(magnitude_max)
            if hit < index.size and np.int64(index[hit]) == start + j:
                digit = np.uint64(np.int64(count[hit]) + magnitude_max)
                hit += 1
            word += digit * scale
            scale *= radix
        words[w] = word


def write_dense(
    index: UInt32Array, count: Int32Array, start: int, length: int, magnitude_max: int
) -> bytes:
    """Code the hits of a range of `length` elements from `start` on.

    `index` is ascending and inside the range; no magnitude in `count` exceeds `magnitude_max`.
    """
    digits = digits_per_word(magnitude_max)
    words = np.empty(-(-length // digits), np.uint64)
    _write(index, count, start, length, magnitude_max, digits, words)
    return words.astype("<u8", copy=False).tobytes()
