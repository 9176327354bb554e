"""Checkpoint files: their names, how to find them, and how to read them.

The 42nd checkpoint in a folder, if it is of run "bert", is ``bert-000042.safetensors``, or
``bert-000042-over.safetensors`` if it is the end of the run.
`gradwire_protocol.messages.checkpoint` has the format and does no I/O. Only a master writes
checkpoints; any program may read them.
"""

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

from gradwire_protocol.errors import UsageError
from gradwire_protocol.messages.checkpoint.format import (
    FILE_BYTES_MAX,
    HEAD_BYTES_MAX,
    Checkpoint,
    CheckpointError,
    parse,
    parse_head,
)
from gradwire_protocol.messages.layout import ELEMENTS_MAX

NUMBER_DIGITS: Final = 6
"""Names sort by number up to 999,999, two years of one a minute; `names_in` sorts all of them."""

RUN_BYTES_MAX: Final = 200
"""Most bytes of a run in a file's name; file systems allow 255 for the whole name."""

_NAME: Final = re.compile(r"([^.].*)-([0-9]{6,18})(-over)?\.safetensors")

REASONS_MAX: Final = 3
"""Files for which an error gives the reason; the reasons of the others are mostly the same."""

READ_BYTES: Final = 2**24
"""Bytes of one read, so that Ctrl-C does not have to wait for the whole file."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A checkpoint that was read."""

    path: Path
    checkpoint: Checkpoint
    values: memoryview
    """The replica, little-endian int32; writable, and not shared."""
    buffers: memoryview
    """The values of the module's buffers, as `BufferLayout.from_file` reads them."""


Verify = Callable[[CheckpointFile], None]
"""Raises `CheckpointError` for a valid file that the caller cannot use."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest usable checkpoint of a folder."""

    file: CheckpointFile
    passed_over: tuple[str, ...]
    """For each newer checkpoint, its name and why it cannot be used."""


def name_of(run: str, number: int, *, is_over: bool) -> str:
    """Return the file name of a checkpoint."""
    return f"{in_names(run)}-{number:0{NUMBER_DIGITS}d}{'-over' if is_over else ''}.safetensors"


def in_names(run: str) -> str:
    """Return a run's name as it is written in the names of files.

    What not every file system takes is escaped as in a URL. A long name is cut, and has part of its
    SHA-256 instead.
    """
    shown = quote(run, safe=" +=@,()[]").replace(".", "%2E", run.startswith("."))
    if len(shown) > RUN_BYTES_MAX:
        digest = sha256(run.encode()).hexdigest()[:16]
        shown = f"{shown[: RUN_BYTES_MAX - len(digest) - 1]}~{digest}"
    return shown


def number_in(name: str) -> int | None:
    """Return the number in a checkpoint's file name; None for other names."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[2])


def run_in(name: str) -> str:
    """Return the run in a checkpoint's file name, as `in_names` writes it."""
    match = _NAME.fullmatch(name)
    assert match is not None, "the name of a checkpoint"
    return match[1]


def is_of_run_that_is_over(name: str) -> bool:
    """Return whether a checkpoint's file name says that its run was over, finished or not."""
    match = _NAME.fullmatch(name)
    return match is not None and match[3] is not None


def names_in(folder: Path) -> list[str]:
    """Return the names of all checkpoints in a folder, the newest first.

    Raises
    ------
    CheckpointError
        If the folder cannot be read.
    """
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError as error:
        raise CheckpointError(f"cannot read folder {folder}: {error.strerror}") from None
    numbered = [(number, name) for name in names if (number := number_in(name)) is not None]
    return [name for _, name in sorted(numbered, reverse=True)]


def read(path: Path, *, elements_max: int = ELEMENTS_MAX) -> CheckpointFile:
    """Read a checkpoint.

    Parameters
    ----------
    path : Path
    elements_max : int
        Most parameters to take memory for. No memory is taken before their number is known from the
        head of the file, and the file has proved to be as long as that requires.

    Raises
    ------
    CheckpointError
        If it cannot be read, is no checkpoint, or is damaged.
    UsageError
        If the file is valid, but has more than `elements_max` parameters, or this machine has too
        little memory.
    """
    try:
        return _read(path, elements_max)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except MemoryError:
        raise UsageError(f"{path}: this machine has not enough memory to read it") from None


def newest(
    folder: Path, verify: Verify, *, of: str | None = None, elements_max: int = ELEMENTS_MAX
) -> Newest:
    """Return the newest checkpoint of a folder that `read` and `verify` accept.

    With `of`, only those of this run count, as `in_names` writes it.

    Raises
    ------
    CheckpointError
        If there is none; the message says why.
    UsageError
        As in `read`: an older checkpoint does not replace a valid newer one.
    """
    names = [name for name in names_in(folder) if of in (None, run_in(name))]
    if not names:
        raise CheckpointError(f"there is no checkpoint in {folder}")
    passed_over: list[str] = []
    for name in names:
        try:
            file = read(folder / name, elements_max=elements_max)
            verify(file)
        except CheckpointError as error:
            passed_over.append(str(error))
        else:
            return Newest(file, tuple(passed_over))
    raise CheckpointError(
        f"no checkpoint in {folder} can be used, of {len(names)}: "
        + "; ".join(passed_over[:REASONS_MAX])
    )


def _read(path: Path, elements_max: int) -> CheckpointFile:
    # The checks are made of the descriptor, so they hold even if another file takes the name
    # meanwhile. Non-blocking, because opening a pipe would wait until a process writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError("it is not a regular file")
        size = status.st_size
        if size > FILE_BYTES_MAX:
            raise CheckpointError(f"it has {size} bytes; the limit is {FILE_BYTES_MAX}")
        checkpoint, _ = parse_head(_pread(descriptor, min(size, HEAD_BYTES_MAX)), size)
        elements = checkpoint.replica_elements
        if elements > elements_max:
            raise UsageError(f"{path}: it has {elements} parameters; the limit is {elements_max}")
        contents = parse(_pread(descriptor, size))
    finally:
        os.close(descriptor)
    return CheckpointFile(path, *contents)


def _pread(descriptor: int, size: int) -> bytearray:
    """Return the first `size` bytes of a file."""
    data = bytearray(size)
    view = memoryview(data)
    at = 0
    while at < size:
        count = os.preadv(descriptor, [view[at : at + READ_BYTES]], at)
        if not count:
            raise CheckpointError(f"it ends after {at} bytes; it had {size} when it was opened")
        at += count
    return data
