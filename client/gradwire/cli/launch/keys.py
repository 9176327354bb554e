"""Keys for a master and workers that one command starts together on this machine.

No user has to make these keys. They are new for every launch, in files that only this user can
read, in memory where the system has a folder for that, and are deleted when the launch is over.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gradwire_protocol.crypto.keys import SECRET_BYTES, RunKey
from gradwire_udp.files.keys import read_run_keys, write_key

MEMORY_FOLDER: Final = "/dev/shm"  # nosec B108  # its folder has mode 0700


@contextmanager
def local_keys(workers: int, run_key_file: Path | None = None) -> Iterator[tuple[Path, list[Path]]]:
    """Yield the file of a run key, and by rank those of keys that follow from it.

    Without `run_key_file`, the run key is new. `KeyFileError` if that file has no run key.
    """
    memory = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK | os.X_OK) else None
    with TemporaryDirectory(prefix="gradwire-keys-", dir=memory) as name:  # has mode 0700
        folder = Path(name)
        if run_key_file is None:
            run_key_file = folder / "run.key"
            write_key(run_key_file, RunKey(os.urandom(SECRET_BYTES)).format() + "\n")
        run_key = read_run_keys(run_key_file)[0]
        worker_key_files = [folder / f"rank-{rank}.key" for rank in range(workers)]
        for file in worker_key_files:
            write_key(file, run_key.worker_key(file.stem).format() + "\n")
        yield run_key_file.absolute(), worker_key_files
