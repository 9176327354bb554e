"""Child processes of the command line, their output, and how they end.

Each child runs in a process group of its own, so that Ctrl-C in the terminal reaches the launcher
alone, which then ends the workers first and the master last.
"""

import asyncio
import math
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Final, Self, cast

from gradwire.cli.launch.lines import Lines

STOP_SECONDS_MAX: Final = 10.0
"""Time for a child to end after SIGTERM before it is killed."""

LAST_WORDS_SECONDS_MAX: Final = 0.5
"""Time for processes that a child has started to go on writing after the child has ended.

Processes that end with it, such as those of multiprocessing, need some milliseconds. A program left
in the background would hold the pipes open for ever, and the workers of a DataLoader check only
every 5 s whether their killed parent still exists.
"""

SIGNALLED: Final = 128
"""A shell adds the number of a signal to it, for a process that has died of one."""


def ending_signals() -> list[signal.Signals]:
    """Return the signals to end at: under nohup, SIGHUP is ignored and stays so."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def how(status: int) -> str:
    """Return what a process did at its end, by its exit status as a shell shows it."""
    try:
        name = signal.Signals(status - SIGNALLED).name
    except ValueError:
        return f"ended with status {status}"
    if name == "SIGKILL":
        return f"was killed by {name} (if by nobody here, memory was short: see dmesg)"
    return f"was killed by {name}"


class Failures:
    """The latest three failures of a child: within a minute they are too many."""

    def __init__(self) -> None:
        self._times: deque[float] = deque([-math.inf] * 3, maxlen=3)

    def are_too_many(self) -> bool:
        """Note another one; return whether the child is to be given up."""
        self._times.append(monotonic())
        return self._times[-1] - self._times[0] <= 60.0


class Child(asyncio.SubprocessProtocol):
    """A process whose output is shown line by line.

    It is over when the process and its output have ended, or `LAST_WORDS_SECONDS_MAX` after the
    process. Then all processes left in its process group are killed.
    """

    def __init__(self, on_stdout: Callable[[str], None], on_stderr: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        later = self._loop.call_later
        self._lines = {1: Lines(on_stdout, later), 2: Lines(on_stderr, later)}
        self._to_be_killed: asyncio.TimerHandle | None = None
        self.over: asyncio.Future[int] = self._loop.create_future()
        """Its exit status as a shell shows it."""

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        environ: Mapping[str, str],
        on_stdout: Callable[[str], None],
        on_stderr: Callable[[str], None],
    ) -> Self:
        """Start a program; `OSError` if it does not exist, or cannot be run."""
        _, child = await asyncio.get_running_loop().subprocess_exec(
            lambda: cls(on_stdout, on_stderr),
            *command,
            env=environ,
            stdin=asyncio.subprocess.DEVNULL,
            process_group=0,
        )
        return child

    @property
    def pid(self) -> int:
        """Process id."""
        return self._transport.get_pid()

    async def wait(self) -> int:
        """Wait until it is over; return its exit status."""
        return await asyncio.shield(self.over)

    def send_signal(self, number: int) -> None:
        """Send a signal to its process group, and SIGKILL `STOP_SECONDS_MAX` after a SIGTERM."""
        if self.over.done():
            return  # the number may belong to another group by now
        if number == signal.SIGTERM and self._to_be_killed is None:
            self._to_be_killed = self._loop.call_later(
                STOP_SECONDS_MAX, self.send_signal, signal.SIGKILL
            )
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def stop(self) -> None:
        """Have it end, unless it was told to: a program may end at once at a second SIGTERM."""
        if self._to_be_killed is None:
            self.send_signal(signal.SIGTERM)
        await self.wait()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Know the process."""
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Show what it has written."""
        self._lines[fd].feed(data)

    def pipe_connection_lost(self, fd: int, error: Exception | None) -> None:
        """Show the rest of an output."""
        self._lines[fd].end()

    def process_exited(self) -> None:
        """Wait for the end of its outputs, but not for ever."""
        self._loop.call_later(LAST_WORDS_SECONDS_MAX, self._transport.close)

    def connection_lost(self, error: Exception | None) -> None:
        """Kill what it has left, now that process and outputs have ended."""
        self.send_signal(signal.SIGKILL)
        self._transport.close()
        status = self._transport.get_returncode()
        assert status is not None
        self.over.set_result(SIGNALLED - status if status < 0 else status)
