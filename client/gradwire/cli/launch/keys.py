"""Keys of a run that one command starts on this machine, master and workers together.

Nobody has to make keys for that: they are new for every launch, lie where only this user can look,
and are gone when the launch is over. Processes are told the paths of their keys by the environment;
the keys themselves stand neither there nor on a command line.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gradwire_protocol.crypto.keys import SECRET_BYTES, RunKey
from gradwire_udp.files.keys import read_run_keys, write_key

FOLDER_PREFIX: Final = "gradwire-keys-"


@dataclass(frozen=True, slots=True)
class LocalKeys:
    """Key files of a master and of the workers that are started with it."""

    run_key_file: Path
    worker_key_files: tuple[Path, ...]
    """By rank."""

    @property
    def of_master(self) -> dict[str, str]:
        """What the master finds in its environment."""
        # The launch has a key, so what else is said here about having none is not for its master.
        return {"GRADWIRE_KEY_FILE": str(self.run_key_file), "GRADWIRE_INSECURE": "0"}


@contextmanager
def local_keys(workers: int, run_key_file: Path | None = None) -> Iterator[LocalKeys]:
    """Have keys for a master and its workers for as long as the block lasts.

    Parameters
    ----------
    workers : int
        How many; each gets a key of its own.
    run_key_file : Path, optional
        The run key to take; a new one unless given.

    Raises
    ------
    KeyFileError
        If the file that was given is no run key file.
    """
    with TemporaryDirectory(prefix=FOLDER_PREFIX) as name:  # which gets mode 0700
        folder = Path(name)
        if run_key_file is None:
            run_key = RunKey(os.urandom(SECRET_BYTES))
            run_key_file = folder / "run.key"
            write_key(run_key_file, run_key.format() + "\n")
        else:
            run_key = read_run_keys(run_key_file)[0]
        files = tuple(folder / f"rank-{rank}.key" for rank in range(workers))
        for rank, file in enumerate(files):
            write_key(file, run_key.worker_key(f"rank-{rank}").format() + "\n")
        yield LocalKeys(run_key_file.absolute(), files)


def given_run_key_file() -> Path | None:
    """Return the run key file that the environment names, if it does."""
    given = os.environ.get("GRADWIRE_KEY_FILE")
    return Path(given) if given else None
