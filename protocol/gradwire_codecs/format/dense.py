"""The formats with every element of a range, hit or not: as a digit, or as a byte.

**As one digit of a number.** With magnitudes of at most M there are ``2 M + 1`` values per element,
so an element is one digit in that radix, and a 64-bit word holds as many digits as fit: 40 if M is
1 (1.6 bits per element), 27 if M is 2, 8 if M is 127. The length depends only on the number of
elements and on M, so this format bounds the size of an update whatever its density.

Words are little-endian; the first element is the lowest digit; a digit is the count plus M. The
last word is filled up with zero digits (of value 0, not M).

**As one signed byte**, its count, -127 to 127: the format for contributions of 8 bits an element.
Rice codes of them take some per cent less, and many times as long: bytes are read and written at
the speed of memory.
"""

from typing import Final

import numpy as np

from gradwire_codecs.arrays import Int8Array, Int32Array, UInt32Array, UInt64Array
from gradwire_codecs.format.header import HITS_NOT_CODED, VALID
from gradwire_codecs.kernels.compiled import compiled

WORD_BYTES: Final = 8

COUNT_MAX: Final = 127

LARGEST_MIN: Final = 69
"""From this largest magnitude on, the words of the dense format hold eight elements, as many as
eight bytes do."""

MEAN_MIN: Final = 16
"""A mean magnitude, over all elements. From here on, the formats with Rice codes save 8 % at most
where elements are alike, and a sixth where half of the rows change eight times as much as the
others."""

DENSITY_MIN: Final = 7 / 8
"""Part of the elements that are hits. Long ranges without hits take fewer bytes in Rice codes."""

SPAN: Final = 2**16
"""Elements whose magnitudes are added up in 32 bits."""


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


def is_written_in_bytes(length: int, hits: int, magnitude_sum: int, magnitude_max: int) -> bool:
    """Return whether an encoder takes this format without looking at the size of others."""
    return (
        LARGEST_MIN <= magnitude_max <= COUNT_MAX
        and magnitude_sum >= MEAN_MIN * length
        and hits >= DENSITY_MIN * length
    )


@compiled
def measure_counts(counts: Int8Array) -> tuple[int, int, int]:
    """Return the number of hits, and the sum and the largest of their magnitudes."""
    hits = total = np.int64(0)
    largest = np.int32(0)
    for low in range(0, counts.size, SPAN):
        part = counts[low : low + SPAN]
        n = magnitudes = np.int32(0)
        for i in range(part.size):
            magnitude = np.int32(abs(np.int32(part[i])))
            n = np.int32(n + np.int32(magnitude != 0))
            magnitudes = np.int32(magnitudes + magnitude)
            largest = max(largest, magnitude)
        hits += n
        total += magnitudes
    return int(hits), int(total), int(largest)


@compiled
def check_counts(counts: Int8Array, hits: int) -> int:
    """Return `VALID` if these are so many hits, each with a valid count; else a key of `FAULTS`."""
    found, _, largest = measure_counts(counts)
    return VALID if found == hits and largest <= COUNT_MAX else HITS_NOT_CODED


@compiled
def collect_counts(counts: Int8Array, start: int, index: UInt32Array, count: Int32Array) -> int:
    """Write positions and counts of hits; return their number. The arrays have room for all."""
    hits = 0
    for i in range(counts.size):
        # Every element is written, and kept only if it is a hit.
        index[hits] = np.uint32(start + i)
        count[hits] = np.int32(counts[i])
        hits += 1 if counts[i] != 0 else 0
    return hits
