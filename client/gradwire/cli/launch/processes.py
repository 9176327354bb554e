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
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, Final

from gradwire.errors import DeadlineError, GradwireError

logger = logging.getLogger("gradwire.run")

LINE_BYTES_MAX: Final = 2**16
"""A longer line of a child is passed on in pieces."""

MASTER_START_SECONDS_MAX: Final = 60.0
"""On a machine where gradwire has never run, the master compiles its kernels first."""

STOP_SECONDS_MAX: Final = 10.0
"""How long a child may take to end after SIGTERM before it is killed."""

LAST_WORDS_SECONDS_MAX: Final = 0.5
"""How long what a child has started may go on writing after the child itself has ended.

Helpers that end with it, such as those of multiprocessing, need some milliseconds; a program left
in the background would hold the pipes open for ever, and the workers of a DataLoader look only
every 5 s whether the process that was killed is still there.
"""


class MasterEndedError(GradwireError):
    """A master that was started here has ended at once.

    Parameters
    ----------
    status : int
        Its exit status, which tells why.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"the master ended at once with status {status}")
        self.status = status


class Output(asyncio.Protocol):
    """What comes through a pipe, line by line.

    Goes on reading, and drops the rest, when `on_line` fails: the writer would block otherwise.

    Parameters
    ----------
    on_line : callable
        Called with each line, without its end.
    failed : asyncio.Future
        Its result becomes what `on_line` raised.
    """

    def __init__(self, on_line: Callable[[str], None], failed: asyncio.Future[Exception]) -> None:
        self._on_line = on_line
        self._failed = failed
        self._rest = b""
        self._transport: asyncio.BaseTransport | None = None
        self.ended = asyncio.get_running_loop().create_future()

    async def read(self, pipe: BinaryIO) -> None:
        """Begin to read."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(lambda: self, pipe)

    def data_received(self, data: bytes) -> None:
        """Pass on the lines that are complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._show(line.removesuffix(b"\r"))

    def connection_lost(self, error: Exception | None) -> None:
        """Pass on a last line without an end."""
        if self._rest:
            self._show(self._rest)
        self.ended.set_result(None)

    def close(self) -> None:
        """Stop reading, wherever the writers are."""
        if self._transport is not None:
            self._transport.close()

    def _show(self, line: bytes) -> None:
        if self._failed.done():
            return
        try:
            self._on_line(line.decode(errors="replace"))
        except Exception as error:
            self._failed.set_result(error)


class Child:
    """A process whose output is read line by line.

    Ends when the process has ended and its output too, or `LAST_WORDS_SECONDS_MAX` after the
    process; what it has left in its process group is killed then.

    Parameters
    ----------
    process : asyncio.subprocess.Process
        Leader of a process group.
    outputs : sequence of Output
        Read what it writes.
    failed : asyncio.Future
        Done when what is done with its output has failed.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        outputs: Sequence[Output],
        failed: asyncio.Future[Exception],
    ) -> None:
        self._process = process
        self._outputs = outputs
        self._failed = failed
        self._is_over = False
        self._told_at: float | None = None
        """When it was asked to end."""
        self._over = asyncio.create_task(self._see_it_out())

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
        failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        outputs = [Output(on_stdout, failed), Output(on_stderr, failed)]
        # Not asyncio's pipes: with those, the end of the process is no news before theirs.
        writing = []
        try:
            for output in outputs:
                read_end, write_end = os.pipe()
                writing.append(write_end)
                await output.read(os.fdopen(read_end, "rb", buffering=0))
            process = await asyncio.create_subprocess_exec(
                *arguments,
                env={**os.environ, **environ},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing[0],
                stderr=writing[1],
                process_group=0,
            )
        except BaseException:
            for output in outputs:
                output.close()
            raise
        finally:
            for write_end in writing:
                os.close(write_end)
        return cls(process, outputs, failed)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """Wait for its end and its last line; return the exit status as a shell shows it.

        Raises
        ------
        Exception
            What `on_stdout` or `on_stderr` raised, at once. The child runs on, unheard.
        """
        await asyncio.wait((self._over, self._failed), return_when=asyncio.FIRST_COMPLETED)
        if self._failed.done():
            raise self._failed.result()
        return self._over.result()

    def send_signal(self, number: int) -> None:
        """Send a signal to it and to whatever it has started in its process group."""
        if number == signal.SIGTERM and self._told_at is None:
            self._told_at = monotonic()
        if self._is_over:
            return  # the group's number may be another's by now
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def stop(self) -> int:
        """Ask it to end, insist after `STOP_SECONDS_MAX`, and return its exit status.

        It is asked once: who is asked a second time may take that for impatience.
        """
        if self._told_at is None:
            self.send_signal(signal.SIGTERM)
        assert self._told_at is not None
        left = self._told_at + STOP_SECONDS_MAX - monotonic()
        await asyncio.wait((self._over,), timeout=max(left, 0.0))
        self.send_signal(signal.SIGKILL)
        await asyncio.wait((self._over,))
        return self._over.result()

    async def _see_it_out(self) -> int:
        ended = [output.ended for output in self._outputs]
        try:
            status = await self._process.wait()
            await asyncio.wait(ended, timeout=LAST_WORDS_SECONDS_MAX)
        finally:
            # Also when the event loop ends with the process still running.
            self.send_signal(signal.SIGKILL)
            self._is_over = True
            for output in self._outputs:
                output.close()
            await asyncio.wait(ended)
            await self._process.wait()
        return 128 - status if status < 0 else status


MASTER_PROGRAM: Final = """\
import signal
from gradwire_udp.process import end_with_parent
end_with_parent({}, signal.SIGTERM)
from runpy import run_module
run_module("gradwire", run_name="__main__", alter_sys=True)
"""
"""``python -m gradwire``, for a process id to be filled in.

The master asks for its own end, before anything else: asyncio can run nothing between fork and exec
that is safe where there are threads.
"""

MASTER_COMMAND: Final = ("--log-level", "warning", "master", "--recovery-seconds", "0")


@dataclass(frozen=True, slots=True)
class LocalMaster:
    """A master that runs as a child."""

    child: Child
    address: str
    http: str | None


@asynccontextmanager
async def local_master(
    options: Sequence[str], environ: Mapping[str, str], on_stderr: Callable[[str], None]
) -> AsyncIterator[LocalMaster]:
    """Run ``gradwire master`` for as long as the block lasts.

    Parameters
    ----------
    options : sequence of str
        Of the command.
    environ : mapping
        What it finds in its environment besides ours.
    on_stderr : callable
        Called with each line that it logs.

    Raises
    ------
    MasterEndedError
        If it does not start; what it said has gone to `on_stderr`.
    DeadlineError
        If it takes too long.
    """
    announced: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def on_stdout(line: str) -> None:
        if not announced.done():
            announced.set_result(json.loads(line))

    child = await Child.start(
        [sys.executable, "-c", MASTER_PROGRAM.format(os.getpid()), *MASTER_COMMAND, *options],
        environ=environ,
        on_stdout=on_stdout,
        on_stderr=on_stderr,
    )
    ended = asyncio.create_task(child.wait())
    try:
        await asyncio.wait(
            (announced, ended),
            timeout=MASTER_START_SECONDS_MAX,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not announced.done():
            if ended.done():
                raise MasterEndedError(ended.result())
            raise DeadlineError(f"the master did not start in {MASTER_START_SECONDS_MAX:g} s")
        announcement = announced.result()
        yield LocalMaster(child, announcement["master"], announcement["http"])
    finally:
        await child.stop()
        await asyncio.gather(ended, return_exceptions=True)


def worker_environment(
    rank: int, workers: int, master: str, key_file: Path | None, *, of_a_world: bool
) -> dict[str, str]:
    """Return what a worker process finds in its environment: ours, and torchrun's names.

    Parameters
    ----------
    rank, workers : int
        Which one it is of how many on this machine.
    master : str
        Address of the master.
    key_file : Path or None
        Where its key lies, if that is not what our environment says anyway.
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
    if key_file is not None:
        environ["GRADWIRE_KEY_FILE"] = str(key_file)
    if of_a_world:
        environ |= {"RANK": str(rank), "WORLD_SIZE": str(workers)}
    if "OMP_NUM_THREADS" not in os.environ:
        # More threads than processors slow every worker down.
        environ["OMP_NUM_THREADS"] = str(max((os.cpu_count() or 1) // workers, 1))
    return environ
