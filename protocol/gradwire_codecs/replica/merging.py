"""`merge`: several updates as one. On the lattice their sum is exact."""

from collections.abc import Sequence

import numpy as np

from gradwire_codecs.format.header import MULTIPLE_MAX
from gradwire_codecs.format.update import Update
from gradwire_codecs.kernels.merging import BLOCK, WORD, merge_hits


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
        Covers the whole vector; its threshold is the largest that all changes are multiples of.
        None where an element changes by more than 2^31 - 1 quanta, which no update expresses.
    """
    index = np.concatenate([update.index for update in updates])
    change = np.concatenate([update.change for update in updates])
    ends = np.cumsum([update.hits for update in updates], dtype=np.int64)
    at = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    into_index, into_change = np.empty_like(index), np.empty_like(change)
    merged = merge_hits(
        index,
        change,
        at,
        ends,
        np.zeros(BLOCK, np.int64),
        np.zeros(BLOCK // WORD, np.uint64),
        into_index,
        into_change,
    )
    if merged < 0:
        return None
    count = into_change[:merged]
    multiple = int(np.gcd.reduce(count)) if merged else 1
    if multiple > MULTIPLE_MAX:
        multiple = 1
    return Update(0, elements, multiple, into_index[:merged], count // np.int32(multiple))
