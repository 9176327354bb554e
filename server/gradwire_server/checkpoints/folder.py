"""The folder that a master writes its checkpoints to: whole files, or none.

A checkpoint is written to a temporary file in the same folder, brought to the disk (fsync), given
its name, and then the folder is brought to the disk, too. So whatever happens in between, a power
failure included, a file with the name of a checkpoint is a whole one, and the one before it is
still there. Then older ones are removed: the last K are kept, and of finished runs as many, so that
the next run does not push out what the last one has come to. One is written before another is
removed: the folder holds 2 K + 1 files of 4 bytes for each parameter at the most.
"""

import errno
import fcntl
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradwire_protocol import UsageError
from gradwire_protocol.messages.checkpoint import CheckpointError
from gradwire_udp.files.checkpoints import is_of_finished_run, name_of, names_in, number_in
from gradwire_udp.files.durable import sync_folder

logger = logging.getLogger("gradwire.master")

TEMPORARY_PREFIX: Final = ".writing-"
"""Of the file that is being written. One that is there when a master begins is of one that died."""

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
"""What keys seal on the network is nobody else's on the disk either."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A checkpoint that is on the disk."""

    name: str
    size: int
    complaint: str
    """Why an older one could not be removed; empty where nothing is the matter."""


class CheckpointFolder:
    """Writes numbered checkpoints, and keeps the last ones.

    Only one master at a time may write to a folder.

    Parameters
    ----------
    path : Path
        Made where it is missing.
    keep : int
        Checkpoints to keep, and of finished runs as many.
    resuming : bool
        Whether it is of a run that goes on. That does not end because the disk is read-only for
        the moment, which is logged; what cannot be written then is tried again like any checkpoint.

    Raises
    ------
    UsageError
        If it is no folder, cannot be written to, or another master writes to it.
    """

    def __init__(self, path: Path, keep: int, *, resuming: bool = False) -> None:
        self.path = path
        self._keep = keep
        try:
            path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
        """Let another master write to it."""
        os.close(self._descriptor)

    def write(self, pieces: Iterable[bytes | memoryview], *, finished: bool) -> WrittenFile:
        """Write a checkpoint.

        Parameters
        ----------
        pieces : iterable of bytes-like
            What is to stand in the file.
        finished : bool
            Whether its run was finished.

        Raises
        ------
        OSError
            If it cannot be written. What was there before is still there.
        """
        self._number = max(self._number, self._last_number()) + 1
        name = name_of(self._number, finished=finished)
        temporary = self.path / f"{TEMPORARY_PREFIX}{name}"
        try:
            size = _write(temporary, pieces)
            os.rename(temporary, self.path / name)  # noqa: PTH104  # as all the others here
        except BaseException:
            _remove(temporary)
            raise
        # By its name, and not by what holds the lock: the folder may have been made anew since.
        sync_folder(self.path)
        return WrittenFile(name, size, self._prune())

    def _check_access(self, *, resuming: bool) -> None:
        if os.access(self.path, os.W_OK | os.X_OK):
            return
        what = f"--checkpoint {self.path}: nothing can be written there"
        if not resuming:
            raise UsageError(what)
        logger.error("%s now; the master goes on without checkpoints until it can", what)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"--checkpoint {self.path}: another master writes there; give each a folder of its "
                "own"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.EBADF):
                raise  # some network file systems know no locks

    def _last_number(self) -> int:
        # Looked up each time: something else may have been mounted there since.
        return max((number_in(name) or 0 for name in os.listdir(self.path)), default=0)  # noqa: PTH208

    def _remove_leftovers(self) -> None:
        for name in os.listdir(self.path):  # noqa: PTH208
            if name.startswith(TEMPORARY_PREFIX):
                _remove(self.path / name)  # in nobody's way where that fails

    def _prune(self) -> str:
        """Remove what is too old; return what is in the way of that."""
        try:
            names = names_in(self.path)
        except CheckpointError as error:
            return str(error)
        complaint = ""
        for finished in (False, True):
            of_a_kind = [name for name in names if is_of_finished_run(name) is finished]
            for name in of_a_kind[self._keep :]:
                complaint = _remove(self.path / name) or complaint
        return complaint


def _write(path: Path, pieces: Iterable[bytes | memoryview]) -> int:
    """Write a file, to the disk; return how long it is."""
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
    """Remove a file, if it is there; return what is in the way of that."""
    try:
        os.unlink(path)  # noqa: PTH108
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot remove {path}: {error.strerror}"
    return ""
