"""Requests of a process to its system: to end with its parent, to keep freed memory, and more."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from functools import cache
from typing import Final

import numpy as np

from gradwire_protocol.limits import WINDOW_BYTES

PR_SET_PDEATHSIG: Final = 1
"""Option of Linux's ``prctl``: the signal that a process gets when its parent ends."""

DESCRIPTORS: Final = 2**16
"""Files and sockets that a daemon may have open; the system may allow fewer."""


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Have the system send this process a signal when its parent, of process id `parent`, ends.

    A parent that is killed cannot stop the processes that it has started. Only Linux can do this,
    and it means the thread that has started this process.

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

    Fresh memory from the kernel costs a page fault every 4 KiB, which takes longer than receiving
    or sending 4 KiB. glibc returns a block to the kernel at once if it is larger than every block
    freed before, and returns the end of its heap if twice as much is free there. So this frees a
    block as large as the window of a connection; nothing is written to it. It has no effect on
    another C library, or if the environment configures glibc.
    """
    np.empty(WINDOW_BYTES, np.uint8)


def allow_descriptors() -> None:
    """Have as many files and sockets as the system lets this process have, `DESCRIPTORS` at most.

    The usual limit, 1,024, is for programs that call ``select``.
    """
    if sys.platform == "win32":
        return
    import resource

    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, DESCRIPTORS)
    if now != resource.RLIM_INFINITY and now < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
