"""The folder that a master writes its checkpoints to: a file is whole, or not there.

A checkpoint is written to a temporary file in the same folder, flushed to the disk (fsync),
renamed, and then the folder is flushed, too. So whatever happens in between, a power failure
included, a file with the name of a checkpoint is whole, and the one before it is still there. Then
older files are removed: of each run's name, the last K are kept, and of runs that are over as many,
so that the next run does not push out the result of the last one. A file is written before another
is removed: there are at most 2 K + 1 files of a name, of 4 to 8 bytes for each parameter.
"""

import errno
import fcntl
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from gradwire_protocol import UsageError
from gradwire_protocol.messages.checkpoint.format import CheckpointError
from gradwire_udp.files.checkpoints import (
    is_of_run_that_is_over,
    name_of,
    names_in,
    number_in,
    run_in,
)
from gradwire_udp.files.durable import sync_folder

logger = logging.getLogger("gradwire.master")

TEMPORARY_PREFIX: Final = ".writing-"
"""Name prefix of the file that is being written. A master that starts removes what a crashed one
has left."""

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
"""No other user may read what is sealed on the network."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A checkpoint on the disk."""

    name: str
    size: int
    """In bytes."""
    complaint: str
    """Why an older file could not be removed; empty if none failed."""


class CheckpointFolder:
    """Writes numbered checkpoints, and removes old ones.

    A lock allows only one master at a time to write to a folder.

    Parameters
    ----------
    path : Path
        Created if missing.
    keep : int
        Checkpoints to keep for each name of a run, and of runs that are over as many.
    resuming : bool
        Whether the master resumes a run. Then a folder that is read-only at the moment is logged
        instead of raised: the run continues, and checkpoints are tried again as after any failure.

    Raises
    ------
    UsageError
        If the path is not a folder, cannot be written to, or another master writes there.
    """

    def __init__(self, path: Path, keep: int, *, resuming: bool = False) -> None:
        self.path = path
        self._keep = keep
        self._numbering = Lock()
        try:
            path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileExistsError, NotADirectoryError):
            raise UsageError(f"--checkpoint {path}: a file is there; name a folder") from None
        except OSError as error:
            raise UsageError(f"--checkpoint {path}: {error.strerror}") from None
        try:
            self._check_access(resuming=resuming)
            self._lock()
            self._remove_leftovers()
            self._number = self._last_number()
        except OSError as error:
            self.close()
            raise UsageError(f"--checkpoint {path}: {error.strerror}") from None
        except UsageError:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)

    def write(
        self, pieces: Iterable[bytes | memoryview], run: str, *, is_over: bool
    ) -> WrittenFile:
        """Write a checkpoint of a run, which may be over. Several threads may do so at once.

        Raises `OSError` if it cannot be written. The checkpoints before it are still there.
        """
        with self._numbering:
            self._number = max(self._number, self._last_number()) + 1
            name = name_of(run, self._number, is_over=is_over)
        temporary = self.path / f"{TEMPORARY_PREFIX}{name}"
        try:
            size = _write(temporary, pieces)
            os.rename(temporary, self.path / name)  # noqa: PTH104  # as all the others here
        except BaseException:
            _remove(temporary)
            raise
        # By path, not by the locked descriptor: the folder may have been replaced since.
        sync_folder(self.path)
        return WrittenFile(name, size, self._prune(name))

    def _check_access(self, *, resuming: bool) -> None:
        if os.access(self.path, os.W_OK | os.X_OK):
            return
        what = f"--checkpoint {self.path}: no file can be written there"
        if not resuming:
            raise UsageError(what)
        logger.error("%s now; the master goes on without checkpoints until it can", what)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"--checkpoint {self.path}: another master writes there; wait for its end, or give "
                "each a folder of its own"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.EBADF):
                raise  # some network file systems have no locks

    def _last_number(self) -> int:
        # Read each time: another file system may have been mounted there since.
        return max((number_in(name) or 0 for name in os.listdir(self.path)), default=0)  # noqa: PTH208

    def _remove_leftovers(self) -> None:
        for name in os.listdir(self.path):  # noqa: PTH208
            if name.startswith(TEMPORARY_PREFIX):
                _remove(self.path / name)  # a file that stays does no harm

    def _prune(self, name: str) -> str:
        """Remove checkpoints of a file's run that are too old; return why that failed, if so."""
        run, is_over = run_in(name), is_of_run_that_is_over(name)
        try:
            names = names_in(self.path)
        except CheckpointError as error:
            return str(error)
        alike = [n for n in names if run_in(n) == run and is_of_run_that_is_over(n) == is_over]
        complaint = ""
        for old in alike[self._keep :]:
            complaint = _remove(self.path / old) or complaint
        return complaint


def _write(path: Path, pieces: Iterable[bytes | memoryview]) -> int:
    """Write a file and flush it to the disk; return its size in bytes."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, FILE_MODE)
    size = 0
    try:
        for piece in pieces:
            left = memoryview(piece)
            while left:
                count = os.write(descriptor, left)
                size += count
                left = left[count:]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return size


def _remove(path: Path) -> str:
    """Remove a file, if it is there; return why that failed, or an empty text."""
    try:
        os.unlink(path)  # noqa: PTH108
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot remove {path}: {error.strerror}"
    return ""
