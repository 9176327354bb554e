"""A server of Spark Connect with executors, and processes of their own for it and for its client.

A process that has a `SparkContext` cannot be a client, and other tests have one.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyspark

from support.processes import Running, children_of, has_ended
from support.spark import EXECUTORS, settings_in
from support.waiting import wait_until

SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"

STARTED: Final = re.compile(r"Spark Connect server started at: \S*:(\d+)")
"""The line of its log that names the port: it has asked the system for a free one."""

START_SECONDS_MAX: Final = 90.0
END_SECONDS_MAX: Final = 30.0


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Start a server with `EXECUTORS` executors; yield its address; kill all of them at the end.

    Parameters
    ----------
    folder : Path
        For all that Spark writes.
    """
    home = Path(pyspark.__file__).parent
    settings = settings_in(folder) | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.executor.cores": "1",  # `workersPerNode` divides them
        "spark.log.level": "INFO",  # below it, the log has no port
    }
    command = [str(home / "bin" / "spark-submit"), "--class", SERVER]
    command += ["--master", f"local-cluster[{EXECUTORS},1,1024]"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    log = folder / "server.log"
    environment = os.environ | {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    with (
        log.open("wb") as output,
        Running(
            [*command, "spark-internal"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        ) as server,
    ):
        try:
            yield f"sc://127.0.0.1:{_port(server, log)}"
        finally:
            family = [server.pid, *_descendants(server.pid)]
            # Executors are in the group. Daemons of Python end with their executor.
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            wait_until(lambda: all(map(has_ended, family)), "Spark to end", seconds=END_SECONDS_MAX)


def _port(server: Running, log: Path) -> int:
    """Wait until the server listens; return its port."""

    def said() -> re.Match[str] | None:
        return STARTED.search(log.read_text(encoding="utf-8", errors="replace"))

    # Without asking for its status: a process that was asked for is none that can be killed.
    wait_until(lambda: said() or has_ended(server.pid), "Spark Connect", seconds=START_SECONDS_MAX)
    found = said()
    assert found is not None, log.read_text(encoding="utf-8", errors="replace")[-4_000:]
    return int(found[1])


def _descendants(pid: int) -> Iterator[int]:
    for child in children_of(pid):
        yield child
        yield from _descendants(child)
