"""`Master`: ``gradwire master`` as a child process."""

import asyncio
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Self

from gradwire.cli.launch.processes import Child, how
from gradwire.errors import DeadlineError, GradwireError
from gradwire_udp import show_address, split_address

START_SECONDS_MAX: Final = 60.0
"""Time to start; where gradwire has never run, the master first compiles its kernels."""

SLOW_START_SECONDS: Final = 2.0
SLOW_START: Final = (
    "waiting for the master to start: the first start on a machine compiles gradwire's kernels for "
    "its processor, which may take half a minute"
)

DRAIN_SECONDS: Final = 0.25
"""How long a master that only this machine can reach waits at its end for workers that were killed;
for one on a slow network it would wait longer."""

LAST_LINES: Final = 5
"""Lines of its log that an error shows."""

PROGRAM: Final = """\
import signal
from gradwire_udp.process import end_with_parent
end_with_parent({}, signal.SIGTERM)
from runpy import run_module
run_module("gradwire", run_name="__main__", alter_sys=True)
"""
"""``python -m gradwire`` that ends with its parent, whose process id is to be filled in.

The master asks for that itself: asyncio has no way to do so between fork and exec that is safe in a
process with threads.
"""


class MasterEndedError(GradwireError):
    """A master that was started here has ended; its last words are in the message."""

    def __init__(self, status: int, end: str, last_lines: Iterable[str]) -> None:
        said = " / ".join(last_lines) or "it has said nothing"
        super().__init__(f"the master {end}; its last words: {said}")
        self.status = status


class Master:
    """A master that runs as long as the block; errors are those of `start`.

    `on_line` gets each line that it logs, `tell` what it is waited for.
    """

    def __init__(
        self,
        listen: str,
        http: str,
        key_file: Path,
        on_line: Callable[[str], None],
        tell: Callable[[str], None],
        options: Sequence[str] = (),
    ) -> None:
        self._options = options
        self._listen = listen
        self._http = http
        self._on_line = on_line
        self._tell = tell
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        """Of its log."""
        # Workers of other machines may train on when those of this machine have ended.
        is_local = listen.startswith(("127.", "localhost:", "[::1]:"))
        defaults = {"GRADWIRE_DRAIN_SECONDS": f"{DRAIN_SECONDS:g}"} if is_local else {}
        self._environ = defaults | os.environ | {
            "GRADWIRE_LISTEN": listen,
            "GRADWIRE_HTTP": http,
            "GRADWIRE_KEY_FILE": str(key_file),
            "GRADWIRE_INSECURE": "0",
        }  # fmt: skip
        self._of_this_start = {"GRADWIRE_RECOVERY_SECONDS": "0"}  # no worker knew it before

    async def start(self) -> None:
        """Start it; a second time at the same port, to go on with its run.

        `MasterEndedError` if it ends instead of starting, `DeadlineError` if it does not start in
        `START_SECONDS_MAX`.
        """
        announced: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        program = [sys.executable, "-c", PROGRAM.format(os.getpid())]
        self.child = await Child.start(
            [*program, "--log-level", "warning", "master", *self._options],
            self._environ | self._of_this_start,
            announced.set_result,
            self._note_line,
        )
        try:
            announcement = json.loads(await self._first(announced))
        except BaseException:
            await self.child.stop()
            raise
        self.address: str = announcement["master"]
        self.http: str | None = announcement["http"]
        self._of_this_start = {
            "GRADWIRE_LISTEN": _with_port_of(self.address, self._listen),
            "GRADWIRE_NEW_RUN": "0",
        }
        if self.http is not None:
            self._of_this_start["GRADWIRE_HTTP"] = _with_port_of(self.http, self._http)
        if os.environ.get("GRADWIRE_CHECKPOINT"):
            self._of_this_start["GRADWIRE_RESUME"] = "auto"

    async def _first(self, announced: asyncio.Future[str]) -> str:
        """Return what the master announces when it has started."""
        later = asyncio.get_running_loop().call_later
        slow = later(SLOW_START_SECONDS, self._tell, SLOW_START)
        await asyncio.wait(
            (announced, self.child.over),
            timeout=START_SECONDS_MAX,
            return_when=asyncio.FIRST_COMPLETED,
        )
        slow.cancel()
        if announced.done():
            return announced.result()
        if not self.child.over.done():
            raise DeadlineError(f"the master did not start in {START_SECONDS_MAX:g} s")
        status = self.child.over.result()
        raise MasterEndedError(status, f"{how(status)} at once", self.last_lines)

    async def __aenter__(self) -> Self:
        """Start it."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End it."""
        await self.child.stop()

    def _note_line(self, line: str) -> None:
        self.last_lines.append(line)
        self._on_line(line)


def _with_port_of(announced: str, wanted: str) -> str:
    """Return where to listen, with the port that the system has chosen."""
    return show_address((split_address(wanted)[0], split_address(announced)[1]))
