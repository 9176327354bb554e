"""Checkpoint files: what they are called, and how they are found and read.

A folder has ``run-000042.safetensors`` for the 42nd checkpoint written to it, and
``run-000042-finished.safetensors`` where that is the end of a run.
`gradwire_protocol.messages.checkpoint` knows what stands in one and does no I/O. Only a master
writes them; everyone may read.
"""

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradwire_protocol.errors import UsageError
from gradwire_protocol.messages.checkpoint import (
    FILE_BYTES_MAX,
    HEAD_BYTES_MAX,
    Checkpoint,
    CheckpointError,
    parse,
    parse_head,
)
from gradwire_protocol.messages.layout import ELEMENTS_MAX

NUMBER_DIGITS: Final = 6
"""Names sort by number up to 999,999, two years of one a minute; beyond, only for us they do."""

_NAME: Final = re.compile(r"run-([0-9]{6,18})(-finished)?\.safetensors")

REASONS_MAX: Final = 3
"""Files of which an error says why they are of no use; the others are no different, as a rule."""

READ_BYTES: Final = 2**24
"""How much is asked for in one read, so that Ctrl-C does not have to wait for all of it."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A checkpoint that was read."""

    path: Path
    checkpoint: Checkpoint
    values: memoryview
    """The replica, little-endian int32; it can be written, and nobody else has it."""


Verify = Callable[[CheckpointFile], None]
"""Raises `CheckpointError` for a file that is no use for another reason than its bytes."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest checkpoint of a folder that can be used."""

    file: CheckpointFile
    passed_over: tuple[str, ...]
    """Why newer ones could not be used, each with its name."""


def name_of(number: int, *, finished: bool) -> str:
    """Return the name of the file of a checkpoint."""
    return f"run-{number:0{NUMBER_DIGITS}d}{'-finished' if finished else ''}.safetensors"


def number_in(name: str) -> int | None:
    """Return the number in the name of a checkpoint; None for other names."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def is_of_finished_run(name: str) -> bool:
    """Return whether the name of a checkpoint says that its run was finished."""
    return "-finished" in name


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
        Parameters for which there is to be memory. None is taken before the file has said how many
        there are, and is as long as it then should be.

    Raises
    ------
    CheckpointError
        If it cannot be read, is no checkpoint, or is damaged.
    UsageError
        If nothing is wrong with it, but there is not to be so much memory, or there is not.
    """
    try:
        return _read(path, elements_max)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except MemoryError:
        raise UsageError(f"{path}: this machine has not enough memory for it") from None


def newest(folder: Path, verify: Verify, *, elements_max: int = ELEMENTS_MAX) -> Newest:
    """Return the newest checkpoint of a folder that can be used.

    Parameters
    ----------
    folder : Path
    verify : callable
        What is found is given to this, too, before it is returned.
    elements_max : int
        As in `read`.

    Raises
    ------
    CheckpointError
        If there is none; the message says why.
    UsageError
        As in `read`: an older one is not taken where nothing is wrong with a newer one.
    """
    names = names_in(folder)
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
    # What is asked of the descriptor is true of what is read from it, whatever becomes of the name
    # meanwhile. Where a pipe stands here, nobody may ever write into it: not to wait for that.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError("it is no regular file")
        size = status.st_size
        if size > FILE_BYTES_MAX:
            raise CheckpointError(f"it has {size} bytes; the limit is {FILE_BYTES_MAX}")
        checkpoint, _ = parse_head(_pread(descriptor, min(size, HEAD_BYTES_MAX)), size)
        elements = checkpoint.layout.elements
        if elements > elements_max:
            raise UsageError(f"{path}: it has {elements} parameters; the limit is {elements_max}")
        checkpoint, values = parse(_pread(descriptor, size))
    finally:
        os.close(descriptor)
    return CheckpointFile(path, checkpoint, values)


def _pread(descriptor: int, size: int) -> bytearray:
    """Return so many bytes from the beginning of a file."""
    data = bytearray(size)
    view = memoryview(data)
    at = 0
    while at < size:
        count = os.preadv(descriptor, [view[at : at + READ_BYTES]], at)
        if not count:
            raise CheckpointError(f"it ends after {at} bytes; it had {size} when it was opened")
        at += count
    return data
