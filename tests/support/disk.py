"""A disk in memory that breaks, and a writer of checkpoints in virtual time that uses it.

`CheckpointFolder` and the functions that read checkpoints are the production code: while the disk
is mounted, it stands where they look for `os`. What was written is lost in a power failure unless
it was brought to the disk, and so are names.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from gradwire_server.checkpoints import folder as checkpoint_folder
from gradwire_server.checkpoints.folder import CheckpointFolder
from gradwire_server.checkpoints.writer import Copy, Failed, Outcome, Written
from gradwire_udp.files import checkpoints as checkpoint_files
from gradwire_udp.files import durable

FOLDER: Final = Path("/")
"""The only one there is; `Path.mkdir`, which asks the real disk, finds it there."""

FIRST_DESCRIPTOR: Final = 2**30
"""No file of this process has it."""


class DeathInMidstError(BaseException):
    """The process that writes dies at this moment."""


@dataclass(eq=False, slots=True)
class _File:
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    """What a power failure leaves of it."""


class SimulatedDisk:
    """Files of one folder, as a kernel has them and as a disk has them.

    Parameters
    ----------
    random : Random
        What becomes of that which was not brought to the disk.
    """

    def __init__(self, random: Random) -> None:
        self.failure: int | None = None
        """What every attempt to write fails with."""
        self.dies_after: int | None = None
        """How many calls the process still makes before it dies; None for all."""
        self._random = random
        self._names: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}
        self._open: dict[int, _File | None] = {}
        self._descriptors = count(FIRST_DESCRIPTOR)

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Stand where the code of checkpoints looks for `os`."""
        with ExitStack() as stack:
            for module in (checkpoint_folder, checkpoint_files, durable):
                stack.enter_context(patch.object(module, "os", self))
            yield

    def lose_power(self) -> None:
        """Forget what was not brought to the disk, or a part of it."""
        kept: dict[str, _File] = {}
        for name in {**self._durable_names, **self._names}:
            file, durable_file = self._names.get(name), self._durable_names.get(name)
            chosen = file if self._random.random() < 0.5 else durable_file
            if chosen is not None:
                kept[name] = chosen
        for file in kept.values():
            unsynced = len(file.content) - len(file.durable)
            if file.content[: len(file.durable)] == file.durable and unsynced > 0:
                file.durable = bytes(file.content[: -self._random.randint(1, unsynced)])
            file.content = bytearray(file.durable)
        self._names, self._durable_names = kept, dict(kept)

    def __getattr__(self, name: str) -> Any:
        """Return constants, and `strerror` and its like."""
        return getattr(os, name)

    # What the code of checkpoints calls, with the names that `os` gives it.

    def open(self, path: Path | str, flags: int, mode: int = 0o777) -> int:
        self._live_on(writing=bool(flags & os.O_CREAT))
        descriptor = next(self._descriptors)
        if Path(path) == FOLDER:
            self._open[descriptor] = None
            return descriptor
        name = Path(path).name
        if flags & os.O_CREAT:
            file = self._names.setdefault(name, _File())
            if flags & os.O_TRUNC:
                file.content.clear()
                file.durable = b""
        elif name not in self._names:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._open[descriptor] = self._names[name]
        return descriptor

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]

    def write(self, descriptor: int, data: memoryview) -> int:
        self._live_on(writing=True)
        file = self._open[descriptor]
        assert file is not None
        # As a disk that is nearly full does: a part, and the rest with the next call.
        size = max(len(data) // 2, min(len(data), 64))
        file.content += data[:size]
        return size

    def fsync(self, descriptor: int) -> None:
        self._live_on(writing=True)
        file = self._open[descriptor]
        if file is None:
            self._durable_names = dict(self._names)
        else:
            file.durable = bytes(file.content)

    def rename(self, source: Path, target: Path) -> None:
        self._live_on(writing=True)
        self._names[target.name] = self._names.pop(source.name)

    def unlink(self, path: Path) -> None:
        self._live_on(writing=self.failure == errno.EROFS)
        if self._names.pop(path.name, None) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def listdir(self, path: Path) -> list[str]:
        self._live_on()
        return list(self._names)

    def access(self, path: Path, mode: int) -> bool:
        return True

    def fstat(self, descriptor: int) -> SimpleNamespace:
        file = self._open[descriptor]
        assert file is not None
        return SimpleNamespace(st_mode=stat.S_IFREG | 0o600, st_size=len(file.content))

    def preadv(self, descriptor: int, buffers: list[memoryview], at: int) -> int:
        self._live_on()
        file = self._open[descriptor]
        assert file is not None
        data = file.content[at : at + len(buffers[0])]
        buffers[0][: len(data)] = data
        return len(data)

    def _live_on(self, *, writing: bool = False) -> None:
        if self.dies_after is not None:
            if self.dies_after == 0:
                raise DeathInMidstError
            self.dies_after -= 1
        if writing and self.failure is not None:
            raise OSError(self.failure, os.strerror(self.failure), str(FOLDER))


class SimulatedWriter:
    """Writes checkpoints to a simulated disk, each after the time that it takes.

    Parameters
    ----------
    disk : SimulatedDisk
    keep : int
        As in `CheckpointFolder`.
    after : callable
        Does something after so many seconds.
    random : Random
    on_ready : callable
        Called when `take` has something to return.
    """

    def __init__(
        self,
        disk: SimulatedDisk,
        keep: int,
        after: Callable[[float, Callable[[], None]], None],
        random: Random,
        on_ready: Callable[[], None],
    ) -> None:
        self.written: dict[int, int] | None = None
        """The versions in the last checkpoint of which it was said that it is written."""
        self.is_dead = False
        self._disk = disk
        with disk.mounted():
            self._folder = CheckpointFolder(FOLDER, keep, resuming=True)
        self._after = after
        self._random = random
        self._on_ready = on_ready
        self._copy: Copy | None = None
        self._outcome: Outcome | None = None

    def write(self, copy: Copy) -> None:
        assert self._copy is None, "one at a time"
        self._copy = copy
        self._after(self._random.choice([0.0, 0.01, 0.5]), self._complete)

    def take_outcome(self) -> Outcome | None:
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            self._copy = None
        return outcome

    def die(self) -> None:
        """Die with the process: a checkpoint that is under way is written up to some point."""
        self.is_dead = True
        if self._copy is not None and self._outcome is None:
            self._disk.dies_after = self._random.randrange(20)
            with suppress(DeathInMidstError, OSError):
                self._write(self._copy)
            self._disk.dies_after = None

    def _complete(self) -> None:
        if self.is_dead:
            return
        assert self._copy is not None
        try:
            name = self._write(self._copy)
        except OSError as error:
            self._outcome = Failed(error.strerror or str(error))
        else:
            self._outcome = Written(name, 0, 0.0, 0.0)
            self.written = self._copy.versions
        self._on_ready()

    def _write(self, copy: Copy) -> str:
        with self._disk.mounted():
            return self._folder.write(copy.pieces(), copy.of.name, is_over=copy.is_over).name
