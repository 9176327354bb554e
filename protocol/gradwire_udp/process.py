"""What a process asks of its system: to end with its parent, and to keep the memory it frees."""

import ctypes
import os
import signal
import sys
from functools import cache
from typing import Final

import numpy as np

from gradwire_protocol.limits import WINDOW_BYTES

PR_SET_PDEATHSIG: Final = 1
"""Of ``prctl`` in Linux: which signal a process gets when its parent has ended."""


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Have this process sent a signal when its parent has ended, however that came.

    A parent that is killed cannot stop what it has started. Only Linux can do this, and takes
    the thread that has started this process for its parent.

    Parameters
    ----------
    parent : int
        Process id of the parent.
    number : Signals
        Which signal.

    Raises
    ------
    SystemExit
        If the parent has ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        raise SystemExit(128 + number)


@cache
def keep_freed_memory() -> None:
    """Have the C library keep the memory of messages for the next ones.

    Memory fresh from the kernel costs a page fault every 4 KiB, which takes longer than receiving
    or sending that much. glibc returns a block to the kernel at once where it is larger than every
    block freed before, and returns the end of its heap where twice as much is free there. So this
    frees a block as large as all that a connection may have under way; nothing is written to it.
    It changes nothing for another C library, or where the environment says what glibc should do.
    """
    np.empty(WINDOW_BYTES, np.uint8)
