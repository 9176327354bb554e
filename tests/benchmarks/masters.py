"""`Master`: gradwire's master as benchmarks start it, with keys or without.

With keys, as users have it: the master gets a new run key, and every worker a key that is made of
it, as with ``gradwire run``. Without, packets are neither encrypted nor authenticated, which takes
``--insecure`` where other machines can reach the master.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from benchmarks.programs import Program
from gradwire.settings.credentials import credentials_of
from gradwire_protocol import Credentials, RunKey
from gradwire_protocol.crypto.keys import SECRET_BYTES
from gradwire_udp.files.keys import write_key


class Master:
    """A process that is a master, for as long as the block lasts.

    Parameters
    ----------
    options : str
        Of ``gradwire master``, besides its addresses and keys.
    keys : bool
        Whether it has a key, and lets in only workers with one.
    listen : str
        Where it listens; port 0 is a free one.
    http : str
        Where it serves its metrics.
    core : int
        Where it runs; on any where it is None.
    prefix : sequence of str
        To be put before the command, to run it in a network namespace.
    """

    def __init__(
        self,
        *options: str,
        keys: bool,
        listen: str = "127.0.0.1:0",
        http: str = "off",
        core: int | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.run_key = RunKey(os.urandom(SECRET_BYTES)) if keys else None
        self._folder = TemporaryDirectory()
        self._run_key_file = Path(self._folder.name, "run.key")
        self._options = (*options, *self._key_options())
        self._listen, self._http, self._core, self._prefix = listen, http, core, prefix
        # Nobody was here before, so there is nobody to wait for.
        self._program = self._started("--recovery-seconds", "0")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._program.__exit__(*exception)
        self._folder.cleanup()

    @property
    def address(self) -> str:
        """Where it listens."""
        return str(self._program.announcement["master"])

    @property
    def port(self) -> int:
        """Of that."""
        return int(self.address.rpartition(":")[2])

    @property
    def http_address(self) -> str:
        """Where it serves its metrics."""
        return str(self._program.announcement["http"])

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._program.pid

    def memory(self) -> float:
        """Return the bytes of memory that it has."""
        pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        return float(pages) * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        """End it without a word."""
        self._program.kill()

    def start_again(self) -> None:
        """Start it as it was, when it was killed: where `listen` names a port, workers find it."""
        self._program.__exit__()
        self._program = self._started()

    def environ(self, name: str | None = None) -> dict[str, str]:
        """Return what workers find in their environment.

        Parameters
        ----------
        name : str, optional
            Of the one worker that this is for, which its key has; without one, every worker makes
            a key for itself of the run key.
        """
        environ = {"GRADWIRE_MASTER": self.address}
        if self.run_key is not None:
            file = self._run_key_file
            if name is not None:
                file = file.with_name(f"{name}.key")
                write_key(file, self.run_key.worker_key(name).format() + "\n")
            environ["GRADWIRE_KEY_FILE"] = str(file)
        return environ

    def credentials(self, name: str) -> Credentials | None:
        """Return what a worker with this name dials with."""
        return credentials_of(self.run_key and self.run_key.worker_key(name), "")

    def _key_options(self) -> Sequence[str]:
        if self.run_key is None:
            return ("--insecure",)
        write_key(self._run_key_file, self.run_key.format() + "\n")
        return ("--key-file", str(self._run_key_file))

    def _started(self, *options: str) -> Program:
        return Program("gradwire", "master", "--listen", self._listen, "--http", self._http,
                       *options, *self._options, core=self._core, prefix=self._prefix,
                       quiet=True)  # fmt: skip


def form(*, keys: bool) -> str:
    """Return how figures say which of the two it was."""
    return "with keys" if keys else "without keys"
