"""Keys for a master and workers that one command starts together on this machine.

No user has to make these keys. They are new for every launch, in files that only this user can
read, in memory where the system has a folder for that, and are deleted when the launch is over.
Processes find the paths of their keys in the environment. The keys themselves are neither there nor
on a command line.
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

MEMORY_FOLDER: Final = "/dev/shm"  # nosec B108  # its folder has mode 0700


@dataclass(frozen=True, slots=True)
class LocalKeys:
    """Key files of a master and of the workers started with it."""

    run_key_file: Path
    worker_key_files: tuple[Path, ...]
    """By rank."""

    @property
    def master_environment(self) -> dict[str, str]:
        """Variables for the master's environment."""
        # The launch has a key, so a GRADWIRE_INSECURE that is set here is not for its master.
        return {"GRADWIRE_KEY_FILE": str(self.run_key_file), "GRADWIRE_INSECURE": "0"}


@contextmanager
def local_keys(workers: int, run_key_file: Path | None = None) -> Iterator[LocalKeys]:
    """Yield keys for a master and its workers; new files are deleted when the block ends.

    Each worker gets a key of its own. Without `run_key_file`, the run key is new. `KeyFileError` if
    that file has no run key.
    """
    with TemporaryDirectory(prefix=FOLDER_PREFIX, dir=_memory_folder()) as name:  # has mode 0700
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


def _memory_folder() -> str | None:
    """Return a folder whose files are on no disk; None for the usual one where there is none."""
    return MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK | os.X_OK) else None
