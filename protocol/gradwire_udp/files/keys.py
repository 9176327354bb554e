"""Key files: where keys lie on this machine, and who may read them.

`gradwire_protocol.crypto.keys` knows what stands in one and does no I/O; here it is read and
written. A file that others can read is refused, as ``ssh`` refuses it: who else has read it cannot
be found out afterwards. No message repeats anything that stood in a file.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gradwire_protocol.crypto.keys import (
    CHECK_BYTES,
    KEY_ID_BYTES,
    NAME_BYTES_MAX,
    SECRET_BYTES,
    KeyFormatError,
    RunKey,
    WorkerKey,
    parse_keys,
)
from gradwire_protocol.errors import UsageError
from gradwire_protocol.limits import KIB, RUN_KEYS_MAX
from gradwire_udp.files.durable import sync_folder

KEY_FILE_BYTES_MAX: Final = 16 * KIB
"""Largest key file that is read; whatever is larger is something else. The longest line takes less
than 256 bytes, so eight keys take 2 KiB, and comments may take the rest."""

_LINE_BYTES_MAX: Final = 32 + NAME_BYTES_MAX + 2 * (KEY_ID_BYTES + SECRET_BYTES + CHECK_BYTES)
assert RUN_KEYS_MAX * _LINE_BYTES_MAX < KEY_FILE_BYTES_MAX / 2, "comments must have room, too"

KEY_FILE_MODE: Final = 0o600

NEW_SUFFIX: Final = ".new"
"""Of the file that is about to replace one; while it is there, nobody else begins to."""

RUN_CREDENTIAL: Final = "run.key"
WORKER_CREDENTIAL: Final = "worker.key"
"""Names that systemd's ``LoadCredential=`` has to give to keys for them to be found."""

CONTAINER_SECRETS: Final = Path("/run/secrets")
"""Where Docker and Podman put what a container is trusted with."""


class KeyFileError(UsageError):
    """A key file that cannot be read or written, or should not be."""


def read_keys(path: Path) -> list[RunKey] | WorkerKey:
    """Read a key file.

    Returns
    -------
    list of RunKey, or WorkerKey
        Run keys, the newest first, or the one worker key.

    Raises
    ------
    KeyFileError
        If it cannot be read, others can read it, or it is no key file.
    """
    try:
        # Not by a name: reports of errors may show what names stand for where one was raised.
        return parse_keys(_read(path))
    except KeyFormatError as error:
        raise KeyFileError(f"key file {path}: {error}") from None


def read_run_keys(path: Path) -> list[RunKey]:
    """Read a key file that has to hold run keys.

    Raises
    ------
    KeyFileError
        As `read_keys`, and if it holds a worker key.
    """
    keys = read_keys(path)
    if isinstance(keys, WorkerKey):
        raise KeyFileError(
            f"key file {path} holds the key of worker {keys.name!r}; this takes a run key, which "
            "`gradwire keygen run.key` makes, and which stays with the master"
        )
    return keys


def credential(environ: Mapping[str, str], name: str) -> Path | None:
    """Return the systemd credential with this name, if this process was given one.

    Parameters
    ----------
    environ : mapping
        The environment; systemd says in ``CREDENTIALS_DIRECTORY`` where they are.
    name : str
        `RUN_CREDENTIAL` or `WORKER_CREDENTIAL`.
    """
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if not folder:
        return None
    path = Path(folder) / name
    return path if path.exists() else None


def write_key(path: Path, text: str) -> None:
    """Write a new key file, that nobody else can read.

    Raises
    ------
    KeyFileError
        If there is a file already, or it cannot be written; nothing is left then.
    """
    try:
        _write(path, text, KEY_FILE_MODE)
    except FileExistsError:
        raise KeyFileError(
            f"{path} exists already: who overwrites a key loses it; choose another name, or move "
            "that file away"
        ) from None
    except OSError as error:
        raise KeyFileError(f"cannot write {path}: {error.strerror}") from None


def replace_key(path: Path, text: str) -> None:
    """Put another text into a key file, all of it or nothing; owner and mode stay.

    Raises
    ------
    KeyFileError
        If it cannot be written, or somebody else is about to; the file is as it was then.
    """
    target = path.resolve()  # a link goes on to point at it
    new = target.with_name(target.name + NEW_SUFFIX)
    try:
        before = target.stat()
        _write(new, text, stat.S_IMODE(before.st_mode), owner=(before.st_uid, before.st_gid))
    except FileExistsError:
        raise KeyFileError(
            f"{new} exists: another command changes {path} just now, or was interrupted; in that "
            "case, remove it"
        ) from None
    except OSError as error:
        raise KeyFileError(f"cannot change {path}: {error.strerror}") from None
    try:
        new.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise KeyFileError(f"cannot change {path}: {error.strerror}") from None


def _read(path: Path) -> str:
    try:
        content = _content(path)
    except OSError as error:
        raise KeyFileError(f"cannot read key file {path}: {error.strerror}") from None
    try:
        if len(content) <= KEY_FILE_BYTES_MAX:
            return content.decode()
        problem = f"has more than {KEY_FILE_BYTES_MAX} bytes"
    except UnicodeDecodeError:
        problem = "is no text"
    del content
    raise KeyFileError(f"key file {path} {problem}: it is no key file")


def _content(path: Path) -> bytes:
    # What is asked of the descriptor is true of what is read from it, whatever becomes of the name
    # meanwhile. Where a pipe stands here, nobody may ever write into it: not to wait for that.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise KeyFileError(f"key file {path} is no regular file")
        _check_mode(path, stat.S_IMODE(status.st_mode))
        return os.read(descriptor, KEY_FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)


def _check_mode(path: Path, mode: int) -> None:
    """Refuse what others can read, or could have written."""
    # A folder of secrets is itself what keeps others out: systemd's can be entered by the service
    # alone, and that of a container is in no other's file system. The files there have whatever
    # mode their maker gives them, which the reader often cannot change: 0440 by systemd for some
    # services, 0444 by Docker Swarm, that of the host's file by Docker Compose. So others may read
    # there, but not write.
    among_secrets = _is_among_secrets(path)
    if mode & (0o022 if among_secrets else 0o077):
        what = "be able to change it" if among_secrets else "have access to it"
        raise KeyFileError(
            f"key file {path} has mode {mode:04o}; nobody but its owner may {what}: chmod 600 "
            f"{path}, and if others may have seen it, make new keys"
        )


def _is_among_secrets(path: Path) -> bool:
    folders = [CONTAINER_SECRETS]
    given = os.environ.get("CREDENTIALS_DIRECTORY")
    if given:
        folders.append(Path(given))
    place = path.resolve()
    return any(place.is_relative_to(folder.resolve()) for folder in folders)


def _write(path: Path, text: str, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Write a file that was not there; leave nothing where that fails."""
    # Nobody but its owner can read it at any time: the mode is set before there is anything in it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, KEY_FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, *owner)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        sync_folder(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
