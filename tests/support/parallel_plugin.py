"""What processes that run tests side by side share: the cores, and the compiler's work.

There is one of these processes more than there are cores. Many tests wait, for other processes or
for a deadline that has to pass, and what waits is no load: others run meanwhile. Each has to import
and collect all tests first, so there are not many more.

In a fresh checkout numba's kernels have yet to be compiled, which takes a quarter of a minute. One
process does it for all, while the others collect their tests. They wait for it before the first.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from support.tier_plugin import is_controlled

PROCESSES_MAX: Final = 16

COMPILE: Final = "from gradwire_codecs import warm_up; warm_up()"
LOCK: Final = Path(__file__).parents[2] / ".cache" / "kernels.lock"
"""Held while kernels are being compiled."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes ``--numprocesses auto`` is."""
    return min((os.cpu_count() or 1) + 1, PROCESSES_MAX)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Let a process compile, unless there is a controller that has started one."""
    if is_controlled(session.config):
        return
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # It inherits the lock, which is gone when it has ended, however that came.
        session.config.stash[_compiling] = subprocess.Popen(
            [sys.executable, "-c", COMPILE], pass_fds=[lock.fileno()]
        )


def pytest_runtestloop(session: pytest.Session) -> None:
    """Wait until kernels are there, where tests are run."""
    if session.testscollected:
        with LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Take leave of the process that has compiled."""
    compiling = config.stash.get(_compiling, None)
    if compiling is not None:
        compiling.wait()


_compiling = pytest.StashKey[subprocess.Popen[bytes]]()
