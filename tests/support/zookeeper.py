"""A real ZooKeeper server, Debian's, as a process of the test's own on loopback."""

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

import pytest

from support.processes import Running, stands_still
from support.waiting import SILENCE, SOON, wait_for_process

JAR: Final = Path("/usr/share/java/zookeeper.jar")

TICK_MILLISECONDS: Final = 500
"""Sessions end in steps of it, and last at least two: those of tests end as soon as they can."""

needs_zookeeper = pytest.mark.skipif(
    not JAR.exists() or shutil.which("java") is None or find_spec("kazoo") is None,
    reason="needs kazoo, and Debian's ZooKeeper: apt-get install --no-install-recommends zookeeper",
)


def free_port() -> int:
    """Return a TCP port of loopback where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


class ZooKeeperServer:
    """One server, whose data are in a folder and outlive its process.

    Parameters
    ----------
    folder : Path
        Empty, or of a server before.
    ensemble : str
        Lines of the configuration, of a server that is one of several.
    """

    def __init__(self, folder: Path, ensemble: str = "", number: int = 1) -> None:
        self._folder = folder
        self.port = free_port()
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "data" / "myid").write_text(str(number), encoding="utf-8")
        (folder / "zoo.cfg").write_text(
            f"tickTime={TICK_MILLISECONDS}\n"
            f"dataDir={folder}/data\n"
            "clientPortAddress=127.0.0.1\n"
            f"clientPort={self.port}\n"
            f"maxSessionTimeout={int(1e3 * SILENCE)}\n"
            "admin.enableServer=false\n" + ensemble,
            encoding="utf-8",
        )
        self._process: Running | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the process, and wait until it serves."""
        self.launch()
        wait_for_process(self.serves, "ZooKeeper to serve")

    def launch(self) -> None:
        """Start the process."""
        assert self._process is None
        log = (self._folder / "log").open("a", encoding="utf-8")
        with log:
            self._process = Running(
                [
                    "java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                    "-cp", f"/etc/zookeeper/conf:{JAR}", "-Dzookeeper.log.dir=/dev",
                    "-Dzookeeper.root.logger=OFF", "-Dlog4j.threshold=OFF",
                    "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                    str(self._folder / "zoo.cfg"),
                ],
                stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self) -> None:
        """End the process without a word."""
        if self._process is not None:
            self._process.end()
            self._process = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let the process do nothing at all inside the block: clients are connected, and wait."""
        assert self._process is not None
        pid = self._process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_for_process(lambda: stands_still(pid), "the server to stop")
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextmanager
    def client(self, credential: str | None = None) -> Iterator[Any]:
        """Yield a client of the test's own."""
        from kazoo.client import KazooClient  # not installed everywhere

        client = KazooClient(
            self.address, auth_data=[("digest", credential)] if credential else None
        )
        client.start()
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def serves(self) -> bool:
        """Return whether it answers clients."""
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text(encoding="utf-8")
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=SOON) as connection,
        ):
            connection.sendall(b"srvr")
            return b"Zookeeper version" in connection.recv(4096)
        return False


def ensemble_of(stack: ExitStack, folder: Path, n: int) -> list[ZooKeeperServer]:
    """Return servers that elect a leader among them, once they serve."""
    lines = "initLimit=20\nsyncLimit=10\n" + "".join(
        f"server.{number}=127.0.0.1:{free_port()}:{free_port()}\n" for number in range(1, n + 1)
    )
    servers = [ZooKeeperServer(folder / str(i), lines, i) for i in range(1, n + 1)]
    for server in servers:
        server.launch()
        stack.callback(server.kill)
    for server in servers:
        wait_for_process(server.serves, "the ensemble to serve")
    return servers
