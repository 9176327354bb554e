"""The real Prometheus, as Debian packages it."""

import json
import shutil
import socket
import subprocess
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from support.processes import Running

CACHE = Path(__file__).parents[2] / ".cache" / "prometheus"


def program_path(name: str) -> str:
    """Return `prometheus` or `promtool`: an installed one, or one from Debian's package.

    Unpacking needs no rights; only where apt has no list of packages yet, root has to get one.
    """
    installed = shutil.which(name)
    if installed is not None:
        return installed
    program = CACHE / "usr" / "bin" / name
    if not program.exists():
        if shutil.which("apt-get") is None:
            pytest.skip(f"needs {name} of Prometheus: install it, and put it on the PATH")
        CACHE.mkdir(parents=True, exist_ok=True)
        download = ["apt-get", "download", "--quiet", "prometheus"]
        if subprocess.run(download, cwd=CACHE, check=False, capture_output=True).returncode:
            subprocess.run(["apt-get", "update", "--quiet"], check=True, capture_output=True)
            subprocess.run(download, cwd=CACHE, check=True, capture_output=True)
        [package] = CACHE.glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "--extract", package.name, "."], cwd=CACHE, check=True)
        package.unlink()
    return str(program)


class PrometheusServer:
    """A real Prometheus on loopback, which ends with the block.

    Parameters
    ----------
    file : Path
        Its configuration.
    data : Path
        A folder for what it scrapes, which it makes.
    """

    def __init__(self, file: Path, data: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self._command = [
            program_path("prometheus"),
            f"--config.file={file}",
            f"--web.listen-address={self._address}",
            f"--storage.tsdb.path={data}",
            "--log.level=warn",
        ]

    def __enter__(self) -> Self:
        self._process = Running(self._command, stdout=None)
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.end()

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer; None while it starts."""
        url = f"http://{self._address}/api/v1/{path}?{urlencode(query)}"
        try:
            with urlopen(url, timeout=5) as response:
                return json.load(response)["data"]
        except HTTPError as error:
            with error:
                if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it starts
                    return None
                raise AssertionError(f"{query}: {error.read().decode()}") from None
        except URLError:
            return None

    def health(self) -> list[str]:
        """Return how each target is."""
        targets = (self.ask("targets") or {}).get("activeTargets", [])
        return [target["health"] for target in targets]

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules, with their health."""
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression has now."""
        return list(self.ask("query", query=expression)["result"])
