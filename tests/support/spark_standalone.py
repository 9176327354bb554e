"""A standalone cluster of Spark: processes on addresses of loopback, as on hosts of their own."""

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyspark

from support.processes import Running, with_tests
from support.spark import SHORT_LIVED
from support.waiting import PROCESS, wait_until

SPARK_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"

PACKAGE: Final = "org.apache.spark.deploy"


class Standalone:
    """A cluster; executors are started and ended by `start_host` and `end_host`.

    Parameters
    ----------
    folder : Path
        For logs and what executors write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._hosts: dict[str, Running] = {}
        log = self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0",
                          "--webui-port", "0")  # fmt: skip
        self.address = ""

        def is_up() -> bool:
            found = re.search(r"(spark://127\.0\.0\.1:\d+)", log.read_text())
            self.address = found[1] if found else ""
            return bool(found)

        wait_until(is_up, "a master of Spark", seconds=PROCESS)

    def start_host(self, host: str) -> None:
        """Start a worker of Spark, with one core, on an address of loopback."""
        log = self._start(host, "worker.Worker", "--host", host, "--cores", "1", "--memory", "1g",
                          "--webui-port", "0", "--work-dir", str(self._folder / f"work-{host}"),
                          self.address)  # fmt: skip
        wait_until(
            lambda: "Successfully registered" in log.read_text(),
            f"the worker of {host}",
            seconds=PROCESS,
        )

    def end_host(self, host: str) -> None:
        """End a worker of Spark, with its executors, as when a machine is taken away."""
        self._hosts.pop(host).terminate()

    def close(self) -> None:
        """End all processes."""
        self._stack.close()

    def _start(self, name: str, what: str, *options: str) -> Path:
        log = self._folder / f"{name}.log"
        out = self._stack.enter_context(log.open("w"))
        command = [str(SPARK_CLASS), f"{PACKAGE}.{what}", *options]
        environ = with_tests(
            SPARK_LOCAL_IP="127.0.0.1",
            SPARK_DAEMON_JAVA_OPTS=SHORT_LIVED,
            PYSPARK_PYTHON=sys.executable,
        )
        running = Running(command, stdout=out, stderr=out, env=environ)
        self._hosts[name] = self._stack.enter_context(running)
        return log


@contextmanager
def standalone(folder: Path) -> Iterator[Standalone]:
    """Start a cluster without hosts; end it after the block."""
    folder.mkdir(parents=True, exist_ok=True)
    started = Standalone(folder)
    try:
        yield started
    finally:
        started.close()
