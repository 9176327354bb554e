"""`take` and `give_back`: large buffers used again and again.

Memory fresh from the operating system costs a page fault every 4 KiB, which is more than what
receiving or sending that much takes. Messages come and go by the hundred a second, all of a few
sizes, so their buffers are kept for the next one.
"""

import sys
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.limits import KIB, MIB

RECYCLED_BYTES_MIN: Final = 16 * KIB
"""Smaller ones come from memory that the allocator keeps anyway."""

KEPT_BYTES_MAX: Final = 64 * MIB
"""What is kept of all sizes together."""

STEPS: Final = 4
"""Sizes between one power of two and the next: at most a quarter of a buffer is left unused."""


def _references(buffer: NDArray[np.uint8]) -> int:
    return sys.getrefcount(buffer)


_NOBODYS = np.empty(1, np.uint8)
_OURS: Final = _references(_NOBODYS) - 1
"""References that `give_back` sees of a buffer besides those of its callers. Not all interpreters
count those of a call."""

_kept: dict[int, list[NDArray[np.uint8]]] = {}
_kept_bytes = 0


def take(size: int) -> NDArray[np.uint8]:
    """Return a buffer of at least `size` bytes, with anything in it."""
    global _kept_bytes
    if size < RECYCLED_BYTES_MIN:
        return np.empty(size, np.uint8)
    rounded = _rounded(size)
    try:
        buffer = _kept[rounded].pop()
    except (KeyError, IndexError):  # not asked before: another thread may be doing the same
        return np.empty(rounded, np.uint8)
    _kept_bytes -= rounded
    return buffer


def give_back(buffer: NDArray[np.uint8], references: int) -> None:
    """Keep a buffer for others, if nobody can look at it any more.

    Parameters
    ----------
    buffer : array
        From `take`.
    references : int
        How many the caller and its callers hold.
    """
    global _kept_bytes
    size = len(buffer)
    if (
        size >= RECYCLED_BYTES_MIN
        and _kept_bytes + size <= KEPT_BYTES_MAX
        and _references(buffer) <= references + _OURS + 1
    ):
        _kept.setdefault(size, []).append(buffer)
        _kept_bytes += size


def _rounded(size: int) -> int:
    step = 1 << max(size - 1, 1).bit_length() - 1
    step //= STEPS
    return -(-size // step) * step
