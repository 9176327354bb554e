"""`merge`: several updates as one. On the lattice their sum is exact."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from gradwire_codecs.format.header import INT32_MAX, MULTIPLE_MAX
from gradwire_codecs.format.update import Update
from gradwire_codecs.kernels.merging import WORD, add_hits, take_sums

WINDOW: Final = 2**18
"""Elements whose sums are kept at a time, 2 MiB."""


class _Workspace:
    """Zeros between two calls of `merge`; to clear memory takes longer than to add up little."""

    __slots__ = ("marks", "sums")

    def __init__(self) -> None:
        self.sums = np.zeros(WINDOW, np.int64)
        self.marks = np.zeros(WINDOW // WORD, np.uint64)


_spare: Final[list[_Workspace]] = []
"""Those that no thread uses: at most as many as threads that have merged at once."""


def merge(updates: Sequence[Update], elements: int) -> Update | None:
    """Return the sum of updates of one vector.

    Parameters
    ----------
    updates : sequence of Update
        At least one.
    elements : int
        Length of the vector.

    Returns
    -------
    Update or None
        Covers the whole vector; its threshold is the largest that all changes are multiples of, if
        an update can have that. None where an element changes by more than 2^31 - 1 quanta, which
        no update expresses.
    """
    unit = math.gcd(*(update.multiple for update in updates))
    sources = [(update.index, update.count, update.multiple // unit) for update in updates]
    room = min(sum(update.hits for update in updates), elements)
    index, count = np.empty(room, np.uint32), np.empty(room, np.int32)
    at = [0] * len(sources)
    merged = divisor = 0
    try:
        workspace = _spare.pop()
    except IndexError:  # to look first would not do: another thread may take the last one then
        workspace = _Workspace()
    sums, marks = workspace.sums, workspace.marks
    for low in range(0, elements, WINDOW):
        for number, (its_index, its_count, factor) in enumerate(sources):
            at[number] = add_hits(its_index, its_count, at[number], factor, low, sums, marks)
        found, divisor = take_sums(
            sums, marks, low, INT32_MAX // unit, divisor, index[merged:], count[merged:]
        )
        if found < 0:
            return None  # what is left in the workspace goes with it
        merged += found
    _spare.append(workspace)
    index, count = index[:merged], count[:merged]
    if divisor > 1 and unit * divisor <= MULTIPLE_MAX:
        return Update(0, elements, unit * divisor, index, count // np.int32(divisor))
    return Update(0, elements, unit, index, count)
