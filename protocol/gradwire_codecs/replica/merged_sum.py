"""`MergedSum`: updates of several workers as one, for those that were to receive each of them.

On the lattice a sum of updates is exact. It costs in proportion to the elements that change, not to
the length of the vector.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from gradwire_codecs.arrays import Int64Array, UInt32Array
from gradwire_codecs.format.header import INT32_MAX, MULTIPLE_MAX
from gradwire_codecs.format.update import Update

SORTED_PORTION: Final = 0.05
"""Up to this part of the vector, hits are sorted; more of them are added to a vector of zeros."""


class MergedSum:
    """A sum of updates of one vector.

    Parameters
    ----------
    elements : int
        Length of the vector.
    """

    def __init__(self, elements: int) -> None:
        self._elements = elements
        self._updates: list[Update] = []

    def __len__(self) -> int:
        """Return how many updates are in it."""
        return len(self._updates)

    def add(self, update: Update) -> None:
        """Add an update that fits the vector."""
        self._updates.append(update)

    def take(self) -> list[Update]:
        """Return updates that come to the same as those added, and begin another sum.

        One, or none where nothing changes. Where a sum would leave 32 bits, those that were added.
        """
        updates, self._updates = self._updates, []
        return merge(updates, self._elements)


def merge(updates: Sequence[Update], elements: int) -> list[Update]:
    """Return updates of a vector of this length that come to the same as these; see `take`."""
    changing = [update for update in updates if update.hits]
    if len(changing) < 2:
        return changing
    index, change = _added(changing, elements)
    touched = change != 0
    index, change = index[touched], change[touched]
    if not index.size:
        return []
    if max(int(change.max()), -int(change.min())) > INT32_MAX:
        return changing
    count = change.astype(np.int32)
    # Where all updates had the same threshold, this is it: it saves most of the bits.
    multiple = int(np.gcd.reduce(count))
    if multiple > MULTIPLE_MAX:
        multiple = 1
    start = min(update.start for update in changing)
    stop = max(update.stop for update in changing)
    return [Update(start, stop, multiple, index, count // np.int32(multiple))]


def _added(updates: Sequence[Update], elements: int) -> tuple[UInt32Array, Int64Array]:
    """Return the elements that some update changes, ascending, and by how much all do."""
    if sum(update.hits for update in updates) > SORTED_PORTION * elements:
        total = np.zeros(elements, np.int64)
        for update in updates:
            total[update.index] += update.change
        found = np.flatnonzero(total)
        return found.astype(np.uint32), total[found]
    index = np.concatenate([update.index for update in updates])
    order = np.argsort(index, kind="stable")
    index = index[order]
    firsts = np.flatnonzero(np.concatenate(([True], index[1:] != index[:-1])))
    change = np.concatenate([update.change for update in updates]).astype(np.int64)[order]
    return index[firsts], np.add.reduceat(change, firsts)
