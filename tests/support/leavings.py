"""What a test leaves behind ends with it, and is charged to it. Part of pytest.

Processes and sessions that a test has started and not ended are ended after it, by name: in its
report if it has failed, else it fails for them. Children of its children count: what loses its
parent becomes a child of this process. What a failed test has not closed is let go of at once; else
the garbage collector would find it during a later test, which would fail for the warnings.

What fixtures of a module or of the session have started lives on.
"""

import ctypes
import gc
import os
import signal
import sys
import warnings
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from support.processes import children_of, has_ended
from support.waiting import SOON, comes_true

PR_SET_CHILD_SUBREAPER: Final = 36
"""Of ``prctl`` in Linux: orphans among a process's descendants become its children."""

FAILED: Final = pytest.StashKey[bool]()


def pytest_sessionstart() -> None:
    """Inherit what loses its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep in mind which tests have failed."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let go of what a failed test has not closed; it has failed, so nobody has to be warned."""
    done = yield
    if item.stash.get(FAILED, False):
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            vars(sys).pop(name, None)  # whose frames hold the test's variables
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    return done


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """End what the test has started and not ended, and say so."""
    processes, sessions = _children(), _open_sessions()
    yield
    left = _end_sessions(_open_sessions() - sessions) + _end_processes(processes)
    if not left:
        return
    said = "the test has left behind:\n" + "\n".join(left)
    if request.node.stash.get(FAILED, False):
        request.node.add_report_section("teardown", "leavings", said)
    else:
        pytest.fail(said, pytrace=False)


def _children() -> set[int]:
    """Return the processes that are this one's children, ended or not."""
    try:
        # Mostly there are none, and this tells so in a microsecond; it changes nothing.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ChildProcessError, AttributeError):  # the latter on macOS
        return set()
    return set(children_of(os.getpid()))


def _end_processes(before: set[int]) -> list[str]:
    """Kill the children that were not there before; return what they were."""
    if _children() <= before:
        return []
    comes_true(lambda: all(map(has_ended, _children() - before)), seconds=SOON)
    left = []
    # Until there are none: one that is killed leaves its children to us.
    while new := _children() - before:
        for pid in new:
            if not has_ended(pid):
                left.append(f"process {pid}: {_command_line(pid)}")
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # another thread waits for it
                os.waitpid(pid, 0)
    return left


def _command_line(pid: int) -> str:
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b" ".join(arguments).decode(errors="replace").strip()


def _open_sessions() -> set[Any]:
    """Return the sessions of this process that are not over."""
    module = sys.modules.get("gradwire.threads.signals")
    return set(module._open) if module else set()


def _end_sessions(left: set[Any]) -> list[str]:
    for session in left:
        session.close("the test is over")
    return [f"an open session: {session}" for session in left]
