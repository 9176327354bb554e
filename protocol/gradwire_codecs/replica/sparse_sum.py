"""`SparseSum`: contributions of the largest elements only, added up, and the step that follows.

SparseLoCo (Sarfi et al., 2025, arXiv 2508.15706), on integers. Of one element in 64, most are sent
by one worker of a round. Divided by all workers, as a mean is, such a step would be too short: an
element is divided by how many have sent it, as in the reference code. What a step has no room for
stays in `rest`, and goes into the next ones. So what comes down does not grow with the number of
workers: it is `RESULT_FACTOR` times what one of them sends, at most.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.format.dense import COUNT_MAX
from gradwire_codecs.format.header import INT32_MAX, MULTIPLE_MAX
from gradwire_codecs.format.update import DenseUpdate, Update
from gradwire_codecs.replica.round_sum import RoundSum

RESULT_FACTOR: Final = 8
"""How many times denser a result is than a contribution, at most."""


class SparseSum(RoundSum):
    """A `RoundSum` whose steps have the largest elements only; it takes 14 bytes for each.

    Parameters
    ----------
    elements, ranges
        As for `RoundSum`.
    density : float
        Part of the elements that a contribution carries.
    rate : float
        What a mean is multiplied by.
    """

    def __init__(
        self, elements: int, ranges: Sequence[tuple[int, int]], *, density: float, rate: float
    ) -> None:
        super().__init__(elements, ranges)
        self._density = min(RESULT_FACTOR * density, 1.0)
        self._rate = rate
        self._senders: npt.NDArray[np.uint16] = np.zeros(elements, np.uint16)
        """By element: how many have contributed to it in this round."""
        self._rest: Float32Array = np.zeros(elements, np.float32)
        """What earlier steps had no room for, in quanta."""

    def add(self, update: Update) -> None:
        """Add an update that was contributed, and fits the vector."""
        super().add(update)
        if isinstance(update, DenseUpdate):
            self._senders[update.start : update.stop] += update.counts != 0
        else:
            self._senders[update.index] += 1  # an update has each element once

    def _take_range(
        self, place: int, divisor: int, magnitude_max: int | None, *, is_last: bool
    ) -> Update | None:
        """Take the step of a range; see `RoundSum.take_mean`. With `is_last`, all of it."""
        start, stop = self._ranges[place]
        total, senders = self._total[start:stop], self._senders[start:stop]
        rest = self._rest[start:stop]
        sent = np.flatnonzero(senders)
        rest[sent] += (total[sent] * self._rate / senders[sent]).astype(np.float32)
        total[sent], senders[sent] = 0, 0
        if is_last:
            multiple = 1
            np.rint(rest, out=rest)
        else:
            finest = min(int(self._finest[place]), MULTIPLE_MAX) // 2
            multiple = max(largest_multiple(rest, self._density), finest)
        hits = np.flatnonzero(np.abs(rest) >= multiple)
        if not hits.size:
            return None
        most = INT32_MAX // multiple
        count = np.trunc(rest[hits] / np.float64(multiple)).clip(-most, most)
        rest[hits] -= (count * multiple).astype(np.float32)
        index = (hits + start).astype(np.uint32)
        return Update(start, stop, multiple, index, count.astype(np.int32))


def largest_multiple(quanta: Float32Array, density: float) -> int:
    """Return the threshold, in quanta, that a part `density` of some elements has reached.

    Where most are zero, it is high enough for the largest one to be a count of 8 bits. Where many
    are equal, as the first changes of Lion are, it is above those rather than dense.

    Parameters
    ----------
    quanta : ndarray of shape (n,), dtype float32
        The elements, in quanta.
    density : float
        Above 0, at most 1.
    """
    size = np.abs(quanta)
    hits = max(round(size.size * density), 1)
    reached = float(np.partition(size, size.size - hits)[size.size - hits])
    least = max(reached, float(size.max()) / COUNT_MAX)
    multiple = min(max(math.ceil(least), 1), MULTIPLE_MAX - 1)
    if np.count_nonzero(size >= multiple) > 2 * hits and (size > multiple).any():
        multiple += 1
    return multiple
