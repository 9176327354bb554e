"""`RoundSum`: what the workers of a run contribute to a round, added up, and its mean.

Contributions are integers, so their sum is exact, in any order. The mean is rounded to the lattice,
or to what its encoding has room for; what that leaves stays in the sum, and goes into the mean of
the next round. So nothing is lost, whoever contributes: the double error feedback of Tang et al.,
"DoubleSqueeze", ICML 2019, with integers on the master's side.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from gradwire_codecs.arrays import Int8Array, Int32Array, Int64Array, UInt32Array
from gradwire_codecs.format.dense import COUNT_MAX
from gradwire_codecs.format.header import INT32_MAX, MULTIPLE_MAX
from gradwire_codecs.format.update import DenseUpdate, Update
from gradwire_codecs.kernels.compiled import compiled, dividing

UNTOUCHED: Final = MULTIPLE_MAX + 1
"""In place of a threshold, where nothing was contributed."""

ELEMENT_BYTES: Final = 8
"""Of a sum. With int32, two workers that contribute what a replica can hold would be too many."""

RANGE_ELEMENTS_MAX: Final = 2**20
"""Most elements that share a threshold in a dense contribution: 1 MiB of 8 bits each."""

RANGE_ELEMENTS_MIN: Final = 2**12
"""Tensors with fewer elements share one with their neighbours: a message costs a master as much as
so many elements."""


def ranges_of(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges of a vector that have a threshold each, where contributions are dense.

    The elements of one tensor change alike, those of two may not.

    Parameters
    ----------
    sizes : sequence of int
        Elements of each tensor, in the order of the vector.
    """
    ranges: list[tuple[int, int]] = []
    start = stop = 0
    for size in sizes:
        if stop > start and (size >= RANGE_ELEMENTS_MIN or stop - start >= RANGE_ELEMENTS_MIN):
            ranges.append((start, stop))
            start = stop
        stop += size
        while stop - start > RANGE_ELEMENTS_MAX:
            ranges.append((start, start + RANGE_ELEMENTS_MAX))
            start += RANGE_ELEMENTS_MAX
    if stop > start:
        ranges.append((start, stop))
    return ranges


@compiled
def _add(total: Int64Array, index: UInt32Array, count: Int32Array, multiple: int) -> None:
    for j in range(index.size):
        total[index[j]] += np.int64(count[j]) * multiple


@compiled
def _add_counts(total: Int64Array, counts: Int8Array, multiple: int) -> None:
    factor = np.int32(multiple)
    for i in range(counts.size):
        total[i] += np.int64(np.int32(np.int32(counts[i]) * factor))


@compiled
def _peak(total: Int64Array) -> np.int64:
    """Return the largest magnitude."""
    highest = lowest = np.int64(0)
    for value in total:
        highest, lowest = max(highest, value), min(lowest, value)
    return max(highest, -lowest)


@compiled
def _take(
    total: Int64Array,
    start: int,
    unit: int,
    count_max: int,
    index: UInt32Array,
    counts: Int32Array,
) -> int:
    """Take out of each element the nearest whole number of units; return how many have any."""
    hits = 0
    half = unit // 2
    for j in range(total.size):
        value = total[j]
        if -half <= value <= half:
            continue
        count = min((abs(value) + half) // unit, count_max)
        if value < 0:
            count = -count
        total[j] = value - count * unit
        index[hits] = np.uint32(start + j)
        counts[hits] = np.int32(count)
        hits += 1
    return hits


@dividing
def _take_counts(total: Int64Array, unit: int, counts: Int8Array) -> None:
    """Do what `_take` does, with a count for each element, of which none exceeds 127.

    Magnitudes are below 2^52: then the quotient in float64, rounded down, is that of integers.
    """
    divisor, half = np.float64(unit), np.float64(unit // 2)
    for i in range(total.size):
        value = np.float64(total[i])
        count = min(np.floor((abs(value) + half) / divisor), np.float64(COUNT_MAX))
        count = -count if value < 0 else count
        counts[i] = np.int8(count)
        total[i] = np.int64(value - count * divisor)


class RoundSum:
    """The sum of contributions to rounds.

    Parameters
    ----------
    elements : int
        Length of the vector. A sum takes `ELEMENT_BYTES` for each.
    ranges : sequence of (int, int)
        Parts of it that each mean is an update of, in order and without gaps.
    """

    def __init__(self, elements: int, ranges: Sequence[tuple[int, int]]) -> None:
        self._total: Int64Array = np.zeros(elements, np.int64)
        self._ranges = ranges
        self._stops = np.array([stop for _, stop in ranges])
        self._finest = np.full(len(ranges), UNTOUCHED, np.int64)
        """By range: the lowest threshold of what was contributed to this round."""

    def add(self, update: Update) -> None:
        """Add an update that was contributed, and fits the vector."""
        if isinstance(update, DenseUpdate):
            part = self._total[update.start : update.stop]
            _add_counts(part, update.counts, update.multiple)
        else:
            _add(self._total, update.index, update.count, update.multiple)
        first = int(np.searchsorted(self._stops, update.start, side="right"))
        last = int(np.searchsorted(self._stops, update.stop))
        touched = self._finest[first : last + 1]
        np.minimum(touched, update.multiple, out=touched)

    def take_mean(
        self, divisor: int, magnitude_max: int | None, *, is_last: bool = False
    ) -> list[Update]:
        """Take the mean out of the sum, and begin another round with what rounding leaves.

        Parameters
        ----------
        divisor : int
            How many workers have contributed, at least 1.
        magnitude_max : int or None
            Largest count of an element. None for a resolution of what the finest contribution has,
            divided by all that have contributed.
        is_last : bool
            Whether there is no next round: then it is exact to half a quantum, whatever its size.

        Returns
        -------
        list of Update
            One for each range with a change that is not zero; their changes are within int32.
        """
        if is_last:
            self._finest[:], magnitude_max = 1, None
        means = [
            self._take_range(place, divisor, magnitude_max, is_last=is_last)
            for place in self._places(is_last=is_last)
        ]
        self._finest[:] = UNTOUCHED
        return [mean for mean in means if mean is not None]

    def _places(self, *, is_last: bool) -> Iterable[int]:
        """Return which ranges a mean is of."""
        return range(len(self._ranges))

    def _take_range(
        self, place: int, divisor: int, magnitude_max: int | None, *, is_last: bool
    ) -> Update | None:
        start, stop = self._ranges[place]
        total = self._total[start:stop]
        peak = int(_peak(total))
        if not peak:
            return None
        multiple = max(int(self._finest[place]) // divisor, 1)
        if magnitude_max is not None:
            multiple = max(multiple, -(-peak // (divisor * magnitude_max)))
        multiple = min(multiple, MULTIPLE_MAX)
        if magnitude_max is not None and magnitude_max <= COUNT_MAX:
            counts = np.empty(len(total), np.int8)
            _take_counts(total, divisor * multiple, counts)
            return found(DenseUpdate(start, stop, multiple, counts))
        index, count = np.empty(len(total), np.uint32), np.empty(len(total), np.int32)
        hits = _take(total, start, divisor * multiple, INT32_MAX // multiple, index, count)
        if not hits:
            return None
        return Update(start, stop, multiple, index[:hits].copy(), count[:hits].copy())


def found(update: DenseUpdate) -> DenseUpdate | None:
    """Return an update, or None if it changes nothing."""
    return update if update.hits else None
