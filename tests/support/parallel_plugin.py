"""What processes that run tests side by side share: the cores, and the compiler's work.

There is one of these processes more than there are cores. Many tests wait, for other processes or
for a deadline that has to pass; meanwhile the cores run tests of the other processes. Each process
has to import and collect all tests first, so there are not many more. The longest tests are dealt
out first, and tests that share a fixture stay in one process.

In a fresh checkout everything has yet to be compiled: numba's kernels, for a quarter of a minute,
and all modules that are imported, for longer. One process compiles the kernels, and one imports all
tests before the others do. No process begins with a test before the kernels are there.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from support.tier_plugin import is_controlled

PROCESSES_MAX: Final = 16

COMPILE: Final = "from gradwire_codecs.warm_up import *; warm_up(); warm_up_rest()"
ROOT: Final = Path(__file__).parents[2]
SPARK: Final = "tests/integration/spark/"
DEALT_SINGLY: Final = ("tests/integration/test_benchmarks.py",)
"""Each case of a function in these files takes long, and shares nothing with the next."""
LOCK: Final = ROOT / ".cache" / "kernels.lock"
"""Held while kernels are being compiled."""
COLLECTED: Final = ROOT / ".cache" / "collected"
"""Held while modules are being compiled; no longer empty when they are."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes ``--numprocesses auto`` is."""
    return min((os.cpu_count() or 1) + 1, PROCESSES_MAX)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a process the tests of one function at a time; of some files, all tests or one at once.

    All that need Spark go to one process, one after the other: each is a Java machine and several
    processes with torch. Two at once leave two cores no time for the training that they wait for.
    """

    def _split_scope(self, nodeid: str) -> str:
        """Return what is the same for tests that go together."""
        file = nodeid.partition("::")[0]
        if file.startswith(SPARK):
            return SPARK
        if file in DEALT_SINGLY:
            return nodeid
        return file if _shares_a_fixture(file) else nodeid.partition("[")[0]


@cache
def _shares_a_fixture(file: str) -> bool:
    """Return whether a file has a fixture of the module: each process would set it up again."""
    return 'scope="module"' in (ROOT / file).read_text(encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Return what deals tests out, for ``--dist loadscope``."""
    return Scheduling(config, log) if config.getvalue("dist") == "loadscope" else None


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


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Import all tests, one process before the others where nobody has done so here."""
    with COLLECTED.open("a+") as collected:
        fcntl.flock(collected, fcntl.LOCK_EX)
        collected.seek(0)
        if collected.read():
            fcntl.flock(collected, fcntl.LOCK_UN)
        done = yield
        if session.testscollected:
            collected.truncate(0)
            collected.write(f"{session.testscollected}\n")
    return done


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
