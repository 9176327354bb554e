"""Processes that a test starts: they end with the block, and are listened to with a deadline."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import IO, Any

from support.waiting import PROCESS


class Running(subprocess.Popen[str]):
    """A program in a process group of its own, which is killed where it outlasts the block.

    Parameters
    ----------
    command : sequence of str
    options
        Of `subprocess.Popen`; standard output is a pipe unless they say otherwise.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        options = {"stdout": subprocess.PIPE, "process_group": 0, **options}
        super().__init__(command, text=True, **options)

    def __exit__(self, *exception: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill it if it still runs, and close its pipes."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        with suppress(BrokenPipeError):  # of what was written and not read
            super().__exit__(None, None, None)

    def communicate(
        self, input: str | None = None, timeout: float | None = PROCESS
    ) -> tuple[str, str]:
        """Wait for its end, with a deadline; return the rest of what it writes."""
        return super().communicate(input, timeout)

    def wait(self, timeout: float | None = PROCESS) -> int:
        """Wait for its end, with a deadline; return its exit status."""
        return super().wait(timeout)

    def read_line(self, what: str, stream: IO[str] | None = None) -> str:
        """Return the next line that it writes; fail with `what` where none comes in time.

        Like `readline` it returns less, or nothing, where the output ends. It reads nothing ahead,
        so `communicate` returns all the rest.

        Parameters
        ----------
        what : str
            What is expected.
        stream : file, optional
            One of its outputs; standard output unless given.
        """
        file = stream or self.stdout
        assert file is not None
        line = b""
        deadline = monotonic() + PROCESS
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([file], [], [], max(deadline - monotonic(), 0.0))
            assert ready, f"waited {PROCESS:g} s in vain for {what}, after {line!r}"
            byte = os.read(file.fileno(), 1)
            if not byte:
                break
            line += byte
        return line.decode()


def completed(
    command: Sequence[str], *, seconds: float = PROCESS, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; return how it ended, and what it has written.

    Parameters
    ----------
    command : sequence of str
    seconds : float
        The deadline, of `support.waiting`.
    options
        Of `subprocess.run`.
    """
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, check=False, **options
    )


def python(code: str, *arguments: str) -> list[str]:
    """Return the command that runs Python code."""
    return [sys.executable, "-c", code, *arguments]


def with_tests(**more: str) -> dict[str, str]:
    """Return an environment for Python: ours, with the modules of the tests, and more."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | more


def children_of(pid: int) -> list[int]:
    """Return the children of a process, also those that nobody has asked how they ended."""
    children: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            children += map(int, path.read_text(encoding="ascii").split())
    return children


def stands_still(pid: int) -> bool:
    """Return whether all threads of a process are stopped: a busy machine takes its time."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    states = [(each / "stat").read_text().rpartition(")")[2].split()[0] for each in threads]
    return set(states) == {"T"}


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or would be if anyone asked how it ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")
