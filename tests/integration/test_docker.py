"""docker/: the images' install steps, the composition, and a real Prometheus with its file.

There is no Docker engine here. The steps of the Dockerfile are run as they are written, in a fresh
virtual environment; of the rest, what names things that have to exist is compared with them.
"""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from support.local_master import MasterProcess
from support.prometheus import program_path
from support.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = (REPOSITORY / "docker" / "Dockerfile").read_text(encoding="utf-8")


def instructions(kind: str) -> list[str]:
    """Return what stands behind every instruction of a kind, with its continuation lines."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{kind} +(.*)$", joined, re.MULTILINE)


@pytest.mark.timeout(600)
def test_the_install_steps_of_the_dockerfile_work_in_a_fresh_environment(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    source = tmp_path / "source"
    tracked = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(
        tracked, cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout
    for name in names.splitlines():
        if not (REPOSITORY / name).exists():
            continue  # deleted, and git has not been told yet
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((REPOSITORY / name).read_bytes())
    environ = os.environ | {
        "DIST": str(tmp_path / "dist"),
        "PATH": f"{tmp_path / 'venv' / 'bin'}:{os.environ['PATH']}",
        "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
        "PIP_NO_COMPILE": "1",  # half the time, and nothing here depends on it
    }
    environ.pop("PYTHONPATH", None)
    steps = [step for step in instructions("RUN") if not step.startswith("useradd")]

    for step in steps:
        subprocess.run(["sh", "-euc", step], cwd=source, env=environ, check=True)

    [entrypoint] = json.loads(instructions("ENTRYPOINT")[0])
    arguments = json.loads(instructions("CMD")[0])
    shown = subprocess.run(
        [entrypoint, *arguments, "--help"],
        cwd=tmp_path,
        env=environ,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "Run the master daemon" in shown.stdout
    torch = subprocess.run(
        ["python", "-c", "import torch, matplotlib, gradwire; print(gradwire.__file__)"],
        cwd=tmp_path,
        env=environ,
        check=True,
        capture_output=True,
        text=True,
    )
    assert str(tmp_path / "venv") in torch.stdout, "it is the installed one, not the sources"


def test_the_health_check_of_the_dockerfile_tells_a_live_master_from_a_dead_one() -> None:
    [check] = [step for step in instructions("HEALTHCHECK") if step != "NONE"]
    command = check.split("CMD", 1)[1].strip()

    def run(http: str) -> int:
        filled_in = command.replace("127.0.0.1:40124", http).replace("python", sys.executable)
        return subprocess.run(filled_in, shell=True, check=False, capture_output=True).returncode

    with MasterProcess() as master:
        http = str(master.announcement["http"])
        alive = run(http)
    dead = run(http)

    assert alive == 0
    assert dead != 0


@pytest.mark.timeout(120)
def test_prometheus_scrapes_a_live_master_with_our_file(tmp_path: Path) -> None:
    written = (REPOSITORY / "docker" / "prometheus.yml").read_text(encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

    def ask(path: str, **query: str) -> Any:
        try:
            with urlopen(f"http://{address}{path}?{urlencode(query)}", timeout=5) as response:
                return json.load(response)["data"]
        except URLError:
            return None

    with MasterProcess() as master:
        assert "master:40124" in written
        file = tmp_path / "prometheus.yml"
        file.write_text(written.replace("master:40124", master.announcement["http"]))
        command = [
            program_path("prometheus"),
            f"--config.file={file}",
            f"--web.listen-address={address}",
        ]
        command += [f"--storage.tsdb.path={tmp_path / 'data'}", "--log.level=warn"]
        with subprocess.Popen(command) as server:
            try:
                wait_until(
                    lambda: (
                        [
                            target["health"]
                            for target in (ask("/api/v1/targets") or {}).get("activeTargets", [])
                        ]
                        == ["up"]
                    ),
                    "the target to be up",
                    seconds=60,
                )
                names = ask("/api/v1/label/__name__/values")
                workers = ask("/api/v1/query", query='gradwire_workers{job="gradwire"}')
            finally:
                server.terminate()

    assert {"gradwire_updates_accepted_total", "gradwire_sent_bytes_total"} <= set(names)
    assert workers["result"][0]["value"][1] == "0"


@pytest.mark.timeout(120)
def test_prometheus_has_nothing_to_say_against_our_metrics_and_our_file() -> None:
    with (
        MasterProcess() as master,
        urlopen(f"http://{master.announcement['http']}/metrics", timeout=5) as response,
    ):
        metrics = response.read()
    ours = b"\n".join(
        line
        for line in metrics.splitlines()
        if line.removeprefix(b"# HELP ").removeprefix(b"# TYPE ").startswith(b"gradwire_")
    )

    promtool = program_path("promtool")
    linted = subprocess.run(
        [promtool, "check", "metrics"], input=ours + b"\n", capture_output=True, check=False
    )
    file = REPOSITORY / "docker" / "prometheus.yml"
    checked = subprocess.run([promtool, "check", "config", file], capture_output=True, check=False)

    assert ours.count(b"# TYPE ") > 30
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, b"")
    assert checked.returncode == 0, checked.stderr


def test_the_composition_names_what_exists() -> None:
    compose = (REPOSITORY / "docker" / "compose.yaml").read_text(encoding="utf-8")

    targets = set(re.findall(r"target: (\w+)", compose))
    mounted = re.findall(r"- (\.\.?/[^:]+):", compose)

    assert targets <= set(re.findall(r"FROM \S+ AS (\w+)", DOCKERFILE))
    assert mounted
    assert all((REPOSITORY / "docker" / path).exists() for path in mounted)
    assert "master:40123" in compose
    assert "40124" in compose
    assert "USER gradwire" in DOCKERFILE.splitlines()
