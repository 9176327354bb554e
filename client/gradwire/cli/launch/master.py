"""`Master`: ``gradwire master`` as a child process, and keys for it and its workers.

No user has to make the keys. They are new for every launch, in files that only this user can read,
in memory where the system has a folder for that, and are deleted when the launch is over.
"""

import asyncio
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_urlsafe
from tempfile import TemporaryDirectory
from typing import Final, Self

from gradwire.cli.keygen import TOKEN_BYTES
from gradwire.cli.launch.processes import Child, how
from gradwire.errors import DeadlineError, GradwireError
from gradwire_protocol.crypto.keys import SECRET_BYTES, RunKey
from gradwire_udp import show_address, split_address
from gradwire_udp.files.keys import read_run_keys, write_key

MEMORY_FOLDER: Final = "/dev/shm"  # nosec B108  # its folder has mode 0700

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


@contextmanager
def key_folder() -> Iterator[Path]:
    """Yield a new folder that only this user can enter."""
    memory = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK | os.X_OK) else None
    with TemporaryDirectory(prefix="gradwire-keys-", dir=memory) as name:  # has mode 0700
        yield Path(name)


@contextmanager
def local_keys(workers: int, run_key_file: Path | None = None) -> Iterator[tuple[Path, list[Path]]]:
    """Yield the file of a run key, and by rank those of keys that follow from it.

    Without `run_key_file`, the run key is new. `KeyFileError` if that file has no run key.
    """
    with key_folder() as folder:
        if run_key_file is None:
            run_key_file = folder / "run.key"
            write_key(run_key_file, RunKey(os.urandom(SECRET_BYTES)).format() + "\n")
        run_key = read_run_keys(run_key_file)[0]
        worker_key_files = [folder / f"rank-{rank}.key" for rank in range(workers)]
        for file in worker_key_files:
            write_key(file, run_key.worker_key(file.stem).format() + "\n")
        yield run_key_file.absolute(), worker_key_files


@contextmanager
def operator_token() -> Iterator[tuple[Path, str]]:
    """Yield the file of a new token for orders over HTTP, and the token."""
    with key_folder() as folder:
        file, token = folder / "operator.token", token_urlsafe(TOKEN_BYTES)
        write_key(file, token + "\n")
        yield file, token


class MasterEndedError(GradwireError):
    """A master that was started here has ended; its last words are in the message."""

    def __init__(self, status: int, end: str, last_lines: Iterable[str]) -> None:
        said = " / ".join(last_lines) or "it has said nothing"
        super().__init__(f"the master {end}; its last words: {said}")
        self.status = status


class Master:
    """A master that runs as long as the block, and can be started again in it.

    `on_line` gets each line that it logs, `tell` what it is waited for. Where a start fails, it
    raises `MasterEndedError`, or `DeadlineError` after `START_SECONDS_MAX`.
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
        self._on_line = on_line
        self._tell = tell
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        """Of its log."""
        # Workers of other machines may train on when those of this machine have ended.
        is_local = listen.startswith(("127.", "localhost:", "[::1]:"))
        defaults = {"GRADWIRE_DRAIN_SECONDS": f"{DRAIN_SECONDS:g}"} if is_local else {}
        self._environ = defaults | os.environ
        self._environ["GRADWIRE_LISTEN"] = listen
        self._environ["GRADWIRE_HTTP"] = http
        self._environ["GRADWIRE_KEY_FILE"] = str(key_file)
        self._environ["GRADWIRE_INSECURE"] = "0"

    async def __aenter__(self) -> Self:
        """Start it. No worker can have known it before."""
        await self._start({"GRADWIRE_RECOVERY_SECONDS": "0"})
        return self

    async def start_again(self) -> None:
        """Start one in its place, to go on with its run."""
        resume = {"GRADWIRE_RESUME": "auto"} if self._environ.get("GRADWIRE_CHECKPOINT") else {}
        await self._start({"GRADWIRE_NEW_RUN": "0"} | resume)

    async def __aexit__(self, *_: object) -> None:
        """End it."""
        await self.child.stop()

    async def _start(self, environ: dict[str, str]) -> None:
        lines: asyncio.Queue[str] = asyncio.Queue()
        program = [sys.executable, "-c", PROGRAM.format(os.getpid())]
        self.child = await Child.start(
            [*program, "--log-level", "warning", "master", *self._options],
            self._environ | environ,
            lines.put_nowait,
            self._note_line,
        )
        try:
            announcement = json.loads(await self._first_line(lines))
        except BaseException:
            await self.child.stop()
            raise
        self.address: str = announcement["master"]
        self.http: str | None = announcement["http"]
        self._keep_port("GRADWIRE_LISTEN", self.address)
        if self.http is not None:
            self._keep_port("GRADWIRE_HTTP", self.http)

    async def _first_line(self, lines: asyncio.Queue[str]) -> str:
        self.child.over.add_done_callback(lambda _: lines.put_nowait(""))
        later = asyncio.get_running_loop().call_later
        later(START_SECONDS_MAX, lines.put_nowait, "")
        slow = later(SLOW_START_SECONDS, self._tell, SLOW_START)
        line = await lines.get()
        slow.cancel()
        if self.child.over.done():
            end = f"{how(self.child.over.result())} at once"
            raise MasterEndedError(self.child.over.result(), end, self.last_lines)
        if not line:
            raise DeadlineError(f"the master did not start in {START_SECONDS_MAX:g} s")
        return line

    def _keep_port(self, name: str, announced: str) -> None:
        """Have the next one listen where the system chose that this one does."""
        host, _ = split_address(self._environ[name])
        self._environ[name] = show_address((host, split_address(announced)[1]))

    def _note_line(self, line: str) -> None:
        self.last_lines.append(line)
        self._on_line(line)
