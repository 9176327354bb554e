"""`Terminal`: a command in a terminal, and what people see there."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Final, Self

import pyte

from support.waiting import PROCESS, wait_for_process

COLUMNS: Final = 300
"""Nothing is broken in the middle of a word."""
ROWS: Final = 50
HISTORY: Final = 10_000
"""Rows that are kept when they scroll away."""


class Terminal:
    """A command that runs in a terminal of its own until the block ends.

    Parameters
    ----------
    command : sequence of str
    cwd : Path
    environ : mapping, optional
        Variables beside those of this process that are not gradwire's.
    columns, rows : int
    """

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        environ: Mapping[str, str] | None = None,
        *,
        columns: int = COLUMNS,
        rows: int = ROWS,
    ) -> None:
        self._screen = pyte.HistoryScreen(columns, rows, history=HISTORY)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = Lock()
        ours, theirs = pty.openpty()
        self._fd = ours
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        usual = {name: value for name, value in os.environ.items() if "GRADWIRE" not in name}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, start_new_session=True,
            env={**usual, "TERM": "xterm", **(environ or {})},
        )  # fmt: skip
        os.close(theirs)
        self._reader = Thread(target=self._read, name="terminal", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(PROCESS)
        os.close(self._fd)

    @property
    def lines(self) -> list[str]:
        """What is to be seen, without empty lines."""
        with self._lock:
            above = [
                "".join(row[column].data for column in range(self._screen.columns))
                for row in self._screen.history.top
            ]
            return [line.rstrip() for line in [*above, *self._screen.display] if line.strip()]

    def wait_for(self, text: str) -> None:
        """Wait until a text is to be seen."""

        def is_seen() -> bool:
            return any(text in line for line in self.lines)

        wait_for_process(is_seen, f"{text!r} in a terminal")

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._fd, text.encode())

    def wait(self) -> int:
        """Wait for the end; return the exit status."""
        status = self.process.wait(PROCESS)
        self._reader.join(PROCESS)
        return status

    def _read(self) -> None:
        with suppress(OSError):  # the other end is closed
            while data := os.read(self._fd, 65_536):
                with self._lock:
                    self._stream.feed(data)
