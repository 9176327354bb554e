"""One signed byte for every element of a range, hit or not: its count, -127 to 127.

The format for contributions of 8 bits an element. Rice codes of them take some per cent less, and
many times as long: bytes are read and written at the speed of memory.
"""

from typing import Final

import numpy as np

from gradwire_codecs.arrays import Int8Array, Int32Array, UInt32Array
from gradwire_codecs.format.header import HITS_NOT_CODED, VALID
from gradwire_codecs.kernels.compiled import compiled

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
