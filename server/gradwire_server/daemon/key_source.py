"""`KeySource`: the files with a master's keys and denied names, which SIGHUP has read again."""

import logging
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradwire_protocol import UsageError
from gradwire_protocol.crypto.keys import KeyFormatError, Keyring, check_name
from gradwire_protocol.limits import MIB
from gradwire_udp.files.keys import read_run_keys

logger = logging.getLogger("gradwire.keys")

DENY_FILE_BYTES_MAX: Final = MIB
"""Largest file of denied names: 16,000 names of the greatest length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """The options about keys that a master was started with."""

    key_file: Path | None = None
    """File with the run keys; None for a master without keys."""

    denied: tuple[str, ...] = ()
    """Names of workers that may not take part, whatever their keys."""

    deny_file: Path | None = None
    """File with more names to deny, one a line."""

    insecure: bool = False
    """Whether the master may run without keys where other machines can reach it."""

    def __post_init__(self) -> None:
        """Raise `UsageError` for options that contradict each other."""
        if self.key_file is not None and self.insecure:
            raise UsageError(
                f"--insecure with a key, {self.key_file}: leave one of them out; a master with a "
                "key lets in no worker without one"
            )
        if self.key_file is None and (self.denied or self.deny_file is not None):
            raise UsageError(
                "--deny or --deny-file without a key: only a key proves a worker's name; make one "
                "with `gradwire keygen run.key`, and pass --key-file run.key"
            )

    def read(self) -> Keyring | None:
        """Read the files, and return the keys; None without a key file.

        Raises `UsageError` if a file cannot be read, other users can read the keys, or a line is
        malformed.
        """
        if self.key_file is None:
            return None
        denied = {*self.denied, *self._names_in_file()}
        keyring = Keyring(read_run_keys(self.key_file), denied)
        logger.info(
            "run keys %s of %s; names denied: %d",
            ", ".join(key.fingerprint.hex() for key in keyring.run_keys), self.key_file,
            len(denied),
        )  # fmt: skip
        return keyring

    def _names_in_file(self) -> list[str]:
        if self.deny_file is None:
            return []
        try:
            if not self.deny_file.is_file():  # opening a pipe would block
                reason = "not a file" if self.deny_file.exists() else "no such file"
                raise UsageError(f"cannot read {self.deny_file}: {reason}")
            with self.deny_file.open("rb") as file:
                content = file.read(DENY_FILE_BYTES_MAX + 1)
            if len(content) > DENY_FILE_BYTES_MAX:
                raise UsageError(
                    f"{self.deny_file} has more than {DENY_FILE_BYTES_MAX} bytes, which is the "
                    "limit for a file of names"
                )
            lines = content.decode().splitlines()
        except OSError as error:
            raise UsageError(f"cannot read {self.deny_file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsageError(f"{self.deny_file} is not UTF-8 text") from None
        return [
            _checked(name, f"{self.deny_file}, line {number}")
            for number, line in enumerate(lines, 1)
            if (name := line.partition("#")[0].strip())
        ]


def denied_names(given: Iterable[str]) -> tuple[str, ...]:
    """Return the names in the values of ``--deny``, which commas or spaces separate.

    Raises `UsageError` if one cannot be the name of a worker.
    """
    names = [name for text in given for name in re.split(r"[,\s]+", text) if name]
    return tuple(_checked(name, "--deny") for name in names)


def instance_name(listen: str) -> str:
    """Return a name for the master at this address: unique, and the same after a restart."""
    return f"{platform.node()} {listen}"


def _checked(name: str, where: str) -> str:
    try:
        return check_name(name)
    except KeyFormatError as error:
        raise UsageError(f"{where}: {error}") from None
