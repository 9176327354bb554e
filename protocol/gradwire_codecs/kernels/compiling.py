"""`compiling_alone`: of several processes, one compiles the kernels, and the others wait for it.

Four workers that start on a new machine would each compile all of them, and take four times as
long. So the first to come takes a lock in the folder of the cache. When it has compiled everything
it leaves a file that says so, and from then on nobody asks for the lock. Where there is no such
folder, or no lock can be had there, each process compiles for itself.
"""

import fcntl
import gc
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

import numba

from gradwire_codecs.kernels.compiled import KERNELS, cache_folder, sources

LOOK_SECONDS: Final = 0.05
"""Between two attempts to take the lock."""

ATTEMPTS_MAX: Final = 3_600
"""Three minutes. If another process has not compiled by then, this one compiles as well."""

LOCK_NAME: Final = "gradwire-compiling.lock"


@contextmanager
def compiling_alone(name: str, *, helper: str) -> Iterator[None]:
    """Compile the kernels of this name in the block, or find what another process has compiled.

    An error inside of it leaves the next process to compile. Where there is a second core, another
    process runs the program `helper` meanwhile, and what that compiles is found in the cache, too.
    """
    folder = cache_folder()
    done = None if folder is None else Path(folder, f"gradwire-compiled-{name}-{_stamp()}")
    if done is None or done.exists():
        yield
        return
    with ExitStack() as stack:
        with suppress(OSError):  # a folder that is read-only, or a file system without locks
            stack.enter_context(_locked(done.with_name(LOCK_NAME)))
            if not done.exists():  # else another process has compiled while this one waited
                stack.enter_context(_helped(helper))
                stack.enter_context(_collector_paused())
        yield
    with suppress(OSError):
        done.touch()


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Let no garbage be looked for: the compiler makes so much that it takes an eighth longer."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _helped(program: str) -> Iterator[None]:
    """Run a program beside the block, if there is a core for it and a Python to run it."""
    if (os.cpu_count() or 1) < 2 or "python" not in Path(sys.executable or "").name:
        yield
        return
    command = [sys.executable, "-P", "-c", program]
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(  # nosec B603
        command, stdin=nowhere, stdout=nowhere, stderr=nowhere
    ) as process:
        try:
            yield
        finally:
            process.kill()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        for _ in range(ATTEMPTS_MAX):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                select.select((), (), (), LOOK_SECONDS)
            else:
                break
        yield
    finally:
        os.close(fd)  # which gives the lock back, as the end of the process does


def _stamp() -> str:
    """Return what the machine code depends on, as text for a file name."""
    processor = KERNELS[0].targetctx.codegen().magic_tuple()
    key = repr((sources(), numba.__version__, processor))
    return sha256(key.encode()).hexdigest()[:16]
