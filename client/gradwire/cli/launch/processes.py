"""Child processes of the command line: a master, workers, and their output.

Each child runs in a process group of its own, so that Ctrl-C in the terminal reaches the launcher
alone, which then ends the workers first and the master last.
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

from gradwire.cli.launch.lines import Lines, Pace
from gradwire.errors import DeadlineError, GradwireError

logger = logging.getLogger("gradwire.run")

MASTER_START_SECONDS_MAX: Final = 60.0
"""Time to start; where gradwire has never run, the master first compiles its kernels."""

MASTER_START_SHOWN_SECONDS: Final = (2.0, 10.0, 30.0)
"""When to say that the master has not started yet."""

FIRST_START: Final = (
    "the first start on a machine compiles gradwire's kernels for its processor, which may take "
    "half a minute"
)

STOP_SECONDS_MAX: Final = 10.0
"""Time for a child to end after SIGTERM before it is killed."""

LAST_WORDS_SECONDS_MAX: Final = 0.5
"""Time for processes that a child has started to go on writing after the child has ended.

Processes that end with it, such as those of multiprocessing, need some milliseconds. A program left
in the background would hold the pipes open for ever, and the workers of a DataLoader check only
every 5 s whether their killed parent still exists.
"""


class MasterEndedError(GradwireError):
    """A master that was started here has ended at once; its exit status says why."""

    def __init__(self, status: int, said: str = "") -> None:
        text = f"the master ended at once with status {status}"
        super().__init__(f"{text}: {said}" if said else text)
        self.status = status


class Output(asyncio.Protocol):
    """Reads a pipe line by line; `Lines` says what a line is. `pace` is that of the process.

    `on_line` is called with each line, without its end. If it fails, `failed` gets the exception as
    its result, and lines are read and dropped from then on: otherwise the writer would block.
    """

    def __init__(
        self,
        on_line: Callable[[str], None],
        failed: asyncio.Future[Exception],
        pace: Pace | None = None,
    ) -> None:
        self._on_line = on_line
        self._failed = failed
        self._lines = Lines(pace or Pace())
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.BaseTransport | None = None
        self.ended = asyncio.get_running_loop().create_future()

    async def read(self, pipe: BinaryIO) -> None:
        """Begin to read a pipe."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(lambda: self, pipe)

    def data_received(self, data: bytes) -> None:
        """Pass on complete lines."""
        self._show(self._lines.feed(data, monotonic()))
        self._set_timer()

    def connection_lost(self, error: Exception | None) -> None:
        """Pass on the last line, if it has no end."""
        self._show(self._lines.end())
        self._set_timer()
        self.ended.set_result(None)

    def close(self) -> None:
        """Stop reading, even where the pipe has writers."""
        if self._transport is not None:
            self._transport.close()

    def _show(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            if self._failed.done():
                return
            try:
                self._on_line(line.decode(errors="replace"))
            except Exception as error:
                self._failed.set_result(error)

    def _set_timer(self) -> None:
        """Have progress shown that is too early now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_at = self._lines.next_at
        if next_at is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(next_at - monotonic(), 0.0), self._look)

    def _look(self) -> None:
        self._show(self._lines.look(monotonic()))
        self._set_timer()


class Child:
    """A process whose output is read line by line.

    It is over when the process and its output have ended, or `LAST_WORDS_SECONDS_MAX` after the
    process. Then all processes left in its process group, which it has to lead, are killed.
    `failed` is done when an `on_line` of its outputs has failed.
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
        self._terminated_at: float | None = None
        """When SIGTERM was sent first."""
        self._over = asyncio.create_task(self._wait_until_over())

    @classmethod
    async def start(
        cls,
        arguments: Sequence[str],
        *,
        environ: Mapping[str, str],
        on_stdout: Callable[[str], None],
        on_stderr: Callable[[str], None],
    ) -> "Child":
        """Start a program; `OSError` if it does not exist, or cannot be run."""
        failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        pace = Pace()
        outputs = [Output(on_stdout, failed, pace), Output(on_stderr, failed, pace)]
        # Not asyncio's own pipes: with these, a process only counts as ended when they have.
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
        """Process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """Wait for the end and the last line; return the exit status as a shell shows it.

        Raises an exception of `on_stdout` or `on_stderr` at once; the child then runs on.
        """
        await asyncio.wait((self._over, self._failed), return_when=asyncio.FIRST_COMPLETED)
        if self._failed.done():
            raise self._failed.result()
        return self._over.result()

    def send_signal(self, number: int) -> None:
        """Send a signal to all processes of the child's process group."""
        if number == signal.SIGTERM and self._terminated_at is None:
            self._terminated_at = monotonic()
        if self._is_over:
            return  # the number may belong to another group by now
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def stop(self) -> int:
        """Send SIGTERM, after `STOP_SECONDS_MAX` SIGKILL, and return the exit status.

        SIGTERM is sent only once: a program may take a second one as an order to end at once.
        """
        if self._terminated_at is None:
            self.send_signal(signal.SIGTERM)
        assert self._terminated_at is not None
        left = self._terminated_at + STOP_SECONDS_MAX - monotonic()
        await asyncio.wait((self._over,), timeout=max(left, 0.0))
        self.send_signal(signal.SIGKILL)
        await asyncio.wait((self._over,))
        return self._over.result()

    async def _wait_until_over(self) -> int:
        ended = [output.ended for output in self._outputs]
        try:
            status = await self._process.wait()
            await asyncio.wait(ended, timeout=LAST_WORDS_SECONDS_MAX)
        finally:
            # This also runs where the event loop ends before the process.
            self.send_signal(signal.SIGKILL)
            self._is_over = True
            for output in self._outputs:
                output.close()
            await asyncio.wait(ended)
            await self._process.wait()
        return 128 - status if status < 0 else status


DRAIN_SECONDS: Final = 0.25
"""How long a master that only this machine can reach waits at its end for workers.

They have ended by then. A killed worker did not say so, and the master would wait for it as long as
for one on a slow network.
"""

MASTER_PROGRAM: Final = """\
import signal
from gradwire_udp.process import end_with_parent
end_with_parent({}, signal.SIGTERM)
from runpy import run_module
run_module("gradwire", run_name="__main__", alter_sys=True)
"""
"""``python -m gradwire`` that ends with its parent, whose process id is to be filled in.

The master asks for that itself, before anything else: asyncio offers no way to do so between fork
and exec that is safe in a process with threads.
"""

MASTER_COMMAND: Final = ("--log-level", "warning", "master")

FIRST: Final = ("--recovery-seconds", "0")
"""For a master that no worker can have known before."""


@dataclass(frozen=True, slots=True)
class MasterChild:
    """A master that runs as a child."""

    child: Child
    address: str
    http: str | None


@asynccontextmanager
async def local_master_process(
    options: Sequence[str],
    environ: Mapping[str, str],
    on_stderr: Callable[[str], None],
    on_wait: Callable[[str], None] = lambda _: None,
    *,
    recovers: bool = False,
) -> AsyncIterator[MasterChild]:
    """Run ``gradwire master`` until the block ends.

    `environ` adds to the variables of this process; `on_stderr` gets each line that the master
    logs, `on_wait` what is waited for where it takes long to start. `recovers` says that it takes
    the place of one that had workers. `MasterEndedError` if the master ends instead of starting,
    `DeadlineError` if it does not start in `MASTER_START_SECONDS_MAX`.
    """
    announced: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def on_stdout(line: str) -> None:
        if not announced.done():
            announced.set_result(json.loads(line))

    child = await Child.start(
        [
            *(sys.executable, "-c", MASTER_PROGRAM.format(os.getpid())),
            *(*MASTER_COMMAND, *(() if recovers else FIRST), *options),
        ],
        environ=environ,
        on_stdout=on_stdout,
        on_stderr=on_stderr,
    )
    ended = asyncio.create_task(child.wait())
    try:
        waited = 0.0
        for until in (*MASTER_START_SHOWN_SECONDS, MASTER_START_SECONDS_MAX):
            if waited:
                on_wait(f"waiting ({waited:g} s) for the master to start: {FIRST_START}")
            done, _ = await asyncio.wait(
                (announced, ended), timeout=until - waited, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                break
            waited = until
        if not announced.done():
            if ended.done():
                raise MasterEndedError(ended.result())
            raise DeadlineError(f"the master did not start in {MASTER_START_SECONDS_MAX:g} s")
        announcement = announced.result()
        yield MasterChild(child, announcement["master"], announcement["http"])
    finally:
        await child.stop()
        await asyncio.gather(ended, return_exceptions=True)


def master_options(listen: str, http: str, environ: Mapping[str, str]) -> list[str]:
    """Return the options of the master; a GRADWIRE_DRAIN_SECONDS in the environment stays valid."""
    options = ["--listen", listen, "--http", http]
    # Workers of other machines may train on when those of this machine have ended.
    is_local = listen.startswith(("127.", "localhost:", "[::1]:"))
    if is_local and "GRADWIRE_DRAIN_SECONDS" not in environ:
        options += ["--drain-seconds", f"{DRAIN_SECONDS:g}"]
    return options


def worker_environment(
    rank: int, workers: int, master: str, key_file: Path | None, *, is_whole_run: bool
) -> dict[str, str]:
    """Return the variables of a worker process: gradwire's, and those of torchrun.

    `rank` and `workers` are those of this machine; `is_whole_run` says that the run has no other
    workers. `key_file` is None where the variables of this process name the worker's key.
    """
    environ = {
        "GRADWIRE_MASTER": master,
        "GRADWIRE_LAUNCHED": "1",
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(workers),
        # Without it, Python would hold back lines that it writes to a pipe.
        "PYTHONUNBUFFERED": "1",
    }
    if key_file is not None:
        environ["GRADWIRE_KEY_FILE"] = str(key_file)
    if is_whole_run:
        environ |= {"RANK": str(rank), "WORLD_SIZE": str(workers)}
    if "OMP_NUM_THREADS" not in os.environ:
        environ["OMP_NUM_THREADS"] = str(threads_of_each(workers))
    return environ


def threads_of_each(workers: int) -> int:
    """Return with how many threads each worker computes: more than processors slow all down."""
    return max((os.cpu_count() or 1) // workers, 1)
