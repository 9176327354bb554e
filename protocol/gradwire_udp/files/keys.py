"""Key files: reading and writing them, and checking that only their owner can read them.

`gradwire_protocol.crypto.keys` has the format and does no I/O. A file that other users can read is
refused, as ``ssh`` does: nothing shows afterwards which of them have read it. No message repeats
anything from a key file.
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
    IssuingKey,
    KeyFormatError,
    RunKey,
    WorkerKey,
    parse_keys,
)
from gradwire_protocol.errors import UsageError
from gradwire_protocol.limits import KIB, RUN_KEYS_MAX
from gradwire_udp.files.durable import sync_folder

KEY_FILE_BYTES_MAX: Final = 16 * KIB
"""Largest key file that is read. The longest line takes less than 256 bytes, so eight keys take 2
KiB, and comments may take the rest."""

_LINE_BYTES_MAX: Final = 32 + NAME_BYTES_MAX + 2 * (KEY_ID_BYTES + SECRET_BYTES + CHECK_BYTES)
assert RUN_KEYS_MAX * _LINE_BYTES_MAX < KEY_FILE_BYTES_MAX / 2, "comments must have room, too"

KEY_FILE_MODE: Final = 0o600

NEW_SUFFIX: Final = ".new"
"""Suffix of the file that is to replace a key file; while it exists, no other process replaces
it."""

RUN_CREDENTIAL: Final = "run.key"
WORKER_CREDENTIAL: Final = "worker.key"
"""The names to give to keys in systemd's ``LoadCredential=``."""

CONTAINER_SECRETS: Final = Path("/run/secrets")
"""Where Docker and Podman put the secrets of a container."""


class KeyFileError(UsageError):
    """A key file that cannot be read or written, or that others can read."""


def read_keys(path: Path) -> list[RunKey] | IssuingKey | WorkerKey:
    """Read a key file.

    Returns
    -------
    list of RunKey, or IssuingKey, or WorkerKey
        Run keys, the newest first, or the one other key.

    Raises
    ------
    KeyFileError
        If it cannot be read, other users can read it, or it is not a key file.
    """
    try:
        # Without a variable for the text: error reports may show the variables of a frame.
        return parse_keys(read_secret(path, "key file", KEY_FILE_BYTES_MAX))
    except KeyFormatError as error:
        raise KeyFileError(f"key file {path}: {error}") from None


def read_run_keys(path: Path) -> list[RunKey]:
    """Read a key file that has to hold run keys.

    Raises
    ------
    KeyFileError
        As `read_keys`, and if it holds another key.
    """
    keys = read_keys(path)
    if isinstance(keys, list):
        return keys
    if isinstance(keys, WorkerKey):
        whose = f"worker {keys.name!r}"
    else:
        whose = f"role {keys.role.name.lower()}, which makes keys of workers"
    raise KeyFileError(
        f"key file {path} holds the key of {whose}; this takes a run key, which `gradwire keygen "
        "run.key` makes, and which stays with the master"
    )


def credential(environ: Mapping[str, str], name: str) -> Path | None:
    """Return the path of a systemd credential, if this process has it.

    `name` is `RUN_CREDENTIAL` or `WORKER_CREDENTIAL`; systemd sets ``CREDENTIALS_DIRECTORY``.
    """
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if not folder:
        return None
    path = Path(folder) / name
    return path if path.exists() else None


def write_key(path: Path, text: str) -> None:
    """Write a new key file that only its owner can read.

    Raises
    ------
    KeyFileError
        If the file exists, or cannot be written; then no part of it is left.
    """
    try:
        _write(path, text, KEY_FILE_MODE)
    except FileExistsError:
        raise KeyFileError(
            f"{path} exists already, and overwriting a key loses it; choose another name, or move "
            "that file away"
        ) from None
    except OSError as error:
        raise KeyFileError(f"cannot write {path}: {error.strerror}") from None


def replace_key(path: Path, text: str) -> None:
    """Replace the text of a key file atomically; owner and mode stay.

    Raises
    ------
    KeyFileError
        If it cannot be written, or another process replaces it; then the file is unchanged.
    """
    target = path.resolve()  # a link stays a link
    new = target.with_name(target.name + NEW_SUFFIX)
    try:
        before = target.stat()
        _write(new, text, stat.S_IMODE(before.st_mode), owner=(before.st_uid, before.st_gid))
    except FileExistsError:
        raise KeyFileError(
            f"{new} exists: another command is changing {path}, or was interrupted; if none is "
            f"running, remove {new}"
        ) from None
    except OSError as error:
        raise KeyFileError(f"cannot change {path}: {error.strerror}") from None
    try:
        new.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise KeyFileError(f"cannot change {path}: {error.strerror}") from None


def read_secret(path: Path, what: str, bytes_max: int) -> str:
    """Return the text of a file that other users can neither read nor have written.

    `what` names the file in messages, which never repeat what it has.

    Raises
    ------
    KeyFileError
        If it cannot be read, others can read it, or it is no text of at most `bytes_max` bytes.
    """
    try:
        content = _content(path, what, bytes_max)
    except OSError as error:
        raise KeyFileError(f"cannot read {what} {path}: {error.strerror}") from None
    try:
        if len(content) <= bytes_max:
            return content.decode()
        problem = f"has more than {bytes_max} bytes"
    except UnicodeDecodeError:
        problem = "is not text"
    del content
    raise KeyFileError(f"{what} {path} {problem}: is this the right file?")


def _content(path: Path, what: str, bytes_max: int) -> bytes:
    # The checks are made of the descriptor, so they hold even if another file takes the name
    # meanwhile. Non-blocking, because opening a pipe would wait until a process writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise KeyFileError(f"{what} {path} is not a regular file")
        _check_mode(path, what, stat.S_IMODE(status.st_mode))
        return os.read(descriptor, bytes_max + 1)
    finally:
        os.close(descriptor)


def _check_mode(path: Path, what: str, mode: int) -> None:
    """Refuse a file that other users can read, or could have written."""
    # A folder of secrets itself keeps other users out: only the service can enter systemd's, and a
    # container's is in its own file system. The files there have a mode that their reader often
    # cannot change: 0440 by systemd for some services, 0444 by Docker Swarm, that of the host's
    # file by Docker Compose. So these files may be readable by others, but not writable.
    among_secrets = _is_among_secrets(path)
    if mode & (0o022 if among_secrets else 0o077):
        right = "change it" if among_secrets else "have access to it"
        raise KeyFileError(
            f"{what} {path} has mode {mode:04o}; only its owner may {right}: chmod 600 "
            f"{path}, and if others may have seen it, make a new one"
        )


def _is_among_secrets(path: Path) -> bool:
    folders = [CONTAINER_SECRETS]
    given = os.environ.get("CREDENTIALS_DIRECTORY")
    if given:
        folders.append(Path(given))
    place = path.resolve()
    return any(place.is_relative_to(folder.resolve()) for folder in folders)


def _write(path: Path, text: str, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Write a new file; leave nothing if that fails."""
    # Created with this mode, so that no other user can read the text before the file has its own.
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
