"""Programs of a benchmark: processes that say where they listen and end with who started them.

A program writes JSON objects to its standard output, one a line; the first one says that it is
ready. Its standard input ends when its parent does, and then so does the program.

`Program` and `Meter` are for the benchmark, `announce` and `end_with_parent` for the program.
Imports nothing but the standard library: the smallest rivals load this too.
"""

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, Self

TESTS: Final = Path(__file__).parents[1]

READ_SECONDS_MAX: Final = 120.0
"""How long a program may take for its next line."""

END_SECONDS_MAX: Final = 10.0
"""How long it may take from closing its output to ending."""

CORES: Final = sorted(os.sched_getaffinity(0))
FIRST_CORE: Final = CORES[0]
LAST_CORE: Final = CORES[-1]
"""Where the two ends of what is measured run, so that they do not take turns on one."""


class Program:
    """A module that runs as a process of its own, for as long as the block lasts.

    Parameters
    ----------
    module : str
        As ``python -m`` takes it.
    arguments : str
        Of the program.
    core : int
        Where it runs; on any where it is None.
    prefix : sequence of str
        To be put before the command, to run it in a network namespace.
    quiet : bool
        Whether what it writes to its standard error is shown only where it fails.
    environ : mapping
        Variables that only it has.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        core: int | None = None,
        prefix: Sequence[str] = (),
        quiet: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._name = module
        self._log = TemporaryFile() if quiet else None  # noqa: SIM115  # open as long as it runs
        path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
        with on_core(core):  # a child inherits it
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=os.environ | {"PYTHONPATH": path} | dict(environ or {}),
                bufsize=0,  # else `select` misses lines that were read ahead
            )
        try:
            self.announcement = self.read()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()
        if self._log is not None:
            self._log.close()

    @property
    def pid(self) -> int:
        """Of the process, also where a prefix has replaced itself by it."""
        return self._process.pid

    def read(self) -> dict[str, Any]:
        """Return the next object that it writes."""
        pipe = self._process.stdout
        assert pipe is not None
        ready, _, _ = select.select([pipe], [], [], READ_SECONDS_MAX)
        line = pipe.readline() if ready else b""
        if not line:
            raise RuntimeError(self._complaint(READ_SECONDS_MAX if not ready else 0.0))
        said: dict[str, Any] = json.loads(line)
        return said

    def _complaint(self, waited: float) -> str:
        """Return why there is nothing to read, with what the program has written of it."""
        if waited:
            reason = f"{self._name} has said nothing for {waited:g} s"
        else:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS_MAX)
            status = self._process.returncode
            reason = f"{self._name} has nothing to say; its exit status is {status}"
        if self._log is None:
            return reason
        return "\n".join([reason, *self.complaints.splitlines()[-20:]])

    @property
    def complaints(self) -> str:
        """What it has written to its standard error, if it is quiet."""
        assert self._log is not None
        # It writes where this file ends: reading at a place of its own does not move that.
        descriptor = self._log.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def kill(self) -> None:
        """End it without a word."""
        self._process.kill()
        self._process.wait()

    def tell(self, line: str = "") -> None:
        """Tell it to go on with what it waits for, or what a line says."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())


class Meter:
    """What passes while the block lasts: time, and time of a process on processors.

    Parameters
    ----------
    pid : int
        Whose processor time is taken, all its threads together.
    """

    seconds: float
    processor_seconds: float

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __enter__(self) -> Self:
        self._began, self._used = time.perf_counter(), processor_seconds(self._pid)
        return self

    def __exit__(self, *exception: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self.processor_seconds = processor_seconds(self._pid) - self._used


def processor_seconds(pid: int) -> float:
    """Return the time that a process has spent on processors, exact to the nanosecond."""
    # clock_getcpuclockid(3), which Python has for threads only.
    return time.clock_gettime((~pid << 3) | 2)


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Run this thread, and the processes that it starts, on one core."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def announce(**values: object) -> None:
    """Say something to the parent."""
    print(json.dumps(values), flush=True)


def end_with_parent(told: Callable[[], object] = lambda: None) -> None:
    """End this process when its parent does; until then, call `told` whenever the parent says so.

    It is called on a thread of its own.
    """

    def watch() -> None:
        while sys.stdin.buffer.readline():
            told()
        os._exit(0)

    threading.Thread(target=watch, name="parent", daemon=True).start()
