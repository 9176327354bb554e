"""`KeySource`: the file with a master's keys, which SIGHUP has read again, and the denied names."""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gradwire_protocol import UsageError
from gradwire_protocol.crypto.keys import KeyFormatError, Keyring, check_name
from gradwire_udp.files.keys import read_run_keys

logger = logging.getLogger("gradwire.keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """The options about keys that a master was started with."""

    key_file: Path | None = None
    """File with the run keys; None for a master without keys."""

    denied: tuple[str, ...] = ()
    """Names of workers that may not take part, whatever their keys."""

    insecure: bool = False
    """Whether the master may run without keys where other machines can reach it."""

    def __post_init__(self) -> None:
        """Raise `UsageError` for options that contradict each other."""
        if self.key_file is not None and self.insecure:
            raise UsageError(
                f"--insecure with a key, {self.key_file}: leave one of them out; a master with a "
                "key lets in no worker without one"
            )
        if self.key_file is None and self.denied:
            raise UsageError(
                "--deny without a key: only a key proves a worker's name; make one "
                "with `gradwire keygen run.key`, and pass --key-file run.key"
            )

    def read(self) -> Keyring | None:
        """Read the file, and return the keys; None without one.

        Raises `UsageError` if it cannot be read, other users can read it, or a line is malformed.
        """
        if self.key_file is None:
            return None
        keyring = Keyring(read_run_keys(self.key_file), self.denied)
        logger.info(
            "run keys %s of %s; names denied: %d",
            ", ".join(key.fingerprint.hex() for key in keyring.run_keys), self.key_file,
            len(keyring.denied),
        )  # fmt: skip
        return keyring


def denied_names(given: Iterable[str]) -> tuple[str, ...]:
    """Return the names in the values of ``--deny``, which commas or spaces separate.

    Raises `UsageError` if one cannot be the name of a worker.
    """
    names = [name for text in given for name in re.split(r"[,\s]+", text) if name]
    try:
        return tuple(map(check_name, names))
    except KeyFormatError as error:
        raise UsageError(f"--deny: {error}") from None
