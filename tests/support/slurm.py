"""A real cluster of Slurm, of one node on loopback: munged, slurmctld and slurmd of Debian."""

import getpass
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

import pytest

from support.processes import Running
from support.waiting import PROCESS, comes_true

PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol")
DAEMON_PATHS: Final = "/usr/sbin"
"""Where Debian installs daemons, which is not on every user's PATH."""

TASKS: Final = 4
"""Processors that the node says it has: more tasks than this machine has cores."""

CONFIGURATION: Final = """\
ClusterName=loopback
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillOnBadExit=1
ReturnToService=2
NodeName=localhost NodeAddr=127.0.0.1 CPUs={tasks} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""A job that is queued again may begin when a credential of its last time has expired, so this is
short. A task that fails ends its step, which our script has to turn off."""


class SlurmCluster:
    """A cluster that ends with the block. Its sockets are on loopback."""

    def __enter__(self) -> Self:
        missing = [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]
        if missing:
            pytest.skip(
                f"needs {', '.join(missing)}: apt-get install munge slurmctld slurmd slurm-client"
            )
        with ExitStack() as stack:
            # Not pytest's folder: a socket has to have a short name, and munged refuses a folder
            # that others can write in, or that they cannot enter.
            self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="slurm-")))
            self._folder.chmod(0o711)
            self._configure()
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def run(self, *command: str, **more: str) -> str:
        """Run a command of Slurm; return what it says."""
        done = subprocess.run(
            command, env=self._environment | more, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """Return what the cluster knows of a job, while it does."""
        fields = self.run("scontrol", "show", "job", number).split()
        return dict(field.split("=", 1) for field in fields if "=" in field)

    def _configure(self) -> None:
        for name in ("state", "spool"):
            (self._folder / name).mkdir()
        key = self._folder / "munge.key"
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o400)
        with socket.socket() as one, socket.socket() as other:
            for each in (one, other):
                each.bind(("127.0.0.1", 0))
            configuration = CONFIGURATION.format(
                controller_port=one.getsockname()[1],
                node_port=other.getsockname()[1],
                folder=self._folder,
                user=getpass.getuser(),
                tasks=TASKS,
            )
        file = self._folder / "slurm.conf"
        file.write_text(configuration, encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if "GRADWIRE_" not in name}
        self._environment = kept | {"SLURM_CONF": str(file), "PATH": search_path()}

    def _start(self, stack: ExitStack) -> None:
        def start(*command: str) -> None:
            log = stack.enter_context((self._folder / f"{command[0]}.out").open("w"))
            stack.enter_context(
                Running(command, env=self._environment, stdout=log, stderr=subprocess.STDOUT)
            )

        named = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log",
                 "seed-file": "seed"}  # fmt: skip
        files = [f"--{option}={self._folder}/munge.{suffix}" for option, suffix in named.items()]
        start("munged", "--foreground", "--num-threads=2", *files)
        self._wait((self._folder / "munge.socket").exists, "munged")
        start("slurmctld", "-D")
        start("slurmd", "-D", "-N", "localhost")
        self._wait(
            lambda: "idle" in self.run("sinfo", "--noheader", "--format=%T"), "the node to be idle"
        )

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        logs = self._folder.glob("*.out")
        assert comes_true(condition, seconds=PROCESS), "\n".join(
            [f"waited in vain for {what}", *(log.read_text(encoding="utf-8") for log in logs)]
        )


def search_path() -> str:
    """Return where programs are, daemons of Debian too."""
    return os.pathsep.join([os.environ["PATH"], DAEMON_PATHS])
