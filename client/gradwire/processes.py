"""Child processes of the command line: a master, workers, and what they print.

Children run in process groups of their own, so that a Ctrl-C in the terminal reaches only the
launcher, which then tells the workers first and the master last.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from gradwire.errors import DeadlineError, GradwireError

logger = logging.getLogger("gradwire.run")

LINE_BYTES_MAX: Final = 2**16
"""A longer line of a child is passed on in pieces."""

MASTER_START_SECONDS_MAX: Final = 60.0
"""On a machine where gradwire has never run, the master compiles its kernels first."""

STOP_SECONDS_MAX: Final = 10.0
"""How long a child may take to end after SIGTERM before it is killed."""


class Child:
    """A process whose output is read line by line.

    Parameters
    ----------
    process : asyncio.subprocess.Process
        With pipes for stdout and stderr.
    on_stdout, on_stderr : callable
        Called with each line, without its end.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        on_stdout: Callable[[str], None],
        on_stderr: Callable[[str], None],
    ) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._readers = [
            asyncio.create_task(_read_lines(process.stdout, on_stdout)),
            asyncio.create_task(_read_lines(process.stderr, on_stderr)),
        ]

    @classmethod
    async def start(
        cls,
        arguments: Sequence[str],
        *,
        environ: Mapping[str, str],
        on_stdout: Callable[[str], None],
        on_stderr: Callable[[str], None],
    ) -> "Child":
        """Start a program.

        Raises
        ------
        OSError
            If there is no such program.
        """
        process = await asyncio.create_subprocess_exec(
            *arguments,
            env={**os.environ, **environ},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            process_group=0,
        )
        return cls(process, on_stdout, on_stderr)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """Wait for its end and its last line; return the exit status as a shell shows it."""
        status = await self._process.wait()
        await asyncio.gather(*self._readers)
        return 128 - status if status < 0 else status

    def send_signal(self, number: int) -> None:
        """Send a signal to it and to whatever it has started in its process group."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def stop(self) -> int:
        """Ask it to end, insist after `STOP_SECONDS_MAX`, and return its exit status."""
        self.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS_MAX)
        self.send_signal(signal.SIGKILL)
        return await self.wait()


async def _read_lines(stream: asyncio.StreamReader, on_line: Callable[[str], None]) -> None:
    rest = b""
    while chunk := await stream.read(LINE_BYTES_MAX):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            lines, rest = [*lines, rest], b""
        for line in lines:
            on_line(line.decode(errors="replace").removesuffix("\r"))
    if rest:
        on_line(rest.decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class LocalMaster:
    """A master that runs as a child."""

    child: Child
    address: str
    http: str | None


@asynccontextmanager
async def local_master(
    options: Sequence[str], on_stderr: Callable[[str], None]
) -> AsyncIterator[LocalMaster]:
    """Run ``gradwire master`` with these options for as long as the block lasts.

    Raises
    ------
    GradwireError
        If it does not start; what it said has gone to `on_stderr`.
    """
    announced: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def on_stdout(line: str) -> None:
        if not announced.done():
            announced.set_result(json.loads(line))

    child = await Child.start(
        [sys.executable, "-m", "gradwire", "--log-level", "warning", "master", *options],
        environ={},
        on_stdout=on_stdout,
        on_stderr=on_stderr,
    )
    try:
        ended = asyncio.create_task(child.wait())
        await asyncio.wait(
            (asyncio.ensure_future(announced), asyncio.ensure_future(ended)),
            timeout=MASTER_START_SECONDS_MAX,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not announced.done():
            if ended.done():
                raise GradwireError(f"the master ended at once with status {ended.result()}")
            raise DeadlineError(f"the master did not start in {MASTER_START_SECONDS_MAX:g} s")
        announcement = announced.result()
        yield LocalMaster(child, announcement["master"], announcement["http"])
    finally:
        await child.stop()
        await ended


def worker_environment(rank: int, workers: int, master: str, *, of_a_world: bool) -> dict[str, str]:
    """Return what a worker process finds in its environment: ours, and torchrun's names.

    Parameters
    ----------
    rank, workers : int
        Which one it is of how many on this machine.
    master : str
        Address of the master.
    of_a_world : bool
        Whether these workers are all there are.
    """
    environ = {
        "GRADWIRE_MASTER": master,
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(workers),
        # Progress has to come through a pipe while it is news.
        "PYTHONUNBUFFERED": "1",
    }
    if of_a_world:
        environ |= {"RANK": str(rank), "WORLD_SIZE": str(workers)}
    if "OMP_NUM_THREADS" not in os.environ:
        # More threads than processors slow every worker down.
        environ["OMP_NUM_THREADS"] = str(max((os.cpu_count() or 1) // workers, 1))
    return environ
