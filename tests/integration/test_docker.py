"""docker/: the images' install steps, the composition, and Prometheus's file, by its own tool.

There is no Docker engine here. The steps of the Dockerfile are run as they are written, in a fresh
virtual environment; of the rest, what names things that have to exist is compared with them.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from support.local_master import MasterProcess
from support.prometheus import program_path
from support.waiting import PROCESS

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = (REPOSITORY / "docker" / "Dockerfile").read_text(encoding="utf-8")
COMPOSITION = yaml.safe_load((REPOSITORY / "docker" / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSITION["services"]
PINS = dict(
    re.findall(
        r"^([\w-]+)==([\w.]+)",
        (REPOSITORY / "constraints.txt").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)

TOKEN_SECRET = "gradwire_http_token"
OPERATOR_SECRET = "gradwire_http_operator_token"


def instructions(kind: str) -> list[str]:
    """Return what stands behind every instruction of a kind, with its continuation lines."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{kind} +(.*)$", joined, re.MULTILINE)


def scrape_file(folder: Path) -> Path:
    """Write our file for Prometheus with a token file in it that this machine has."""
    written = (REPOSITORY / "docker" / "prometheus.yml").read_text(encoding="utf-8")
    secret = f"/run/secrets/{TOKEN_SECRET}"
    assert "master:40124" in written
    assert secret in written
    token_file = folder / TOKEN_SECRET
    token_file.touch(mode=0o600)
    file = folder / "prometheus.yml"
    written = written.replace(secret, str(token_file))
    file.write_text(written.replace("[prometheus/", f"[{REPOSITORY}/docker/prometheus/"))
    return file


@pytest.mark.deep("install steps of the Dockerfile")
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
        "PIP_NO_COMPILE": "1",  # half the time, and nothing here depends on it
    }
    environ.pop("PYTHONPATH", None)
    *steps, workers = [step for step in instructions("RUN") if not step.startswith("useradd")]
    assert "[demo,dns]" in workers

    for step in steps:
        subprocess.run(["sh", "-euc", step], cwd=source, env=environ, check=True)
    # The worker's packages are 200 MB more, which `make test` has installed for itself already.
    resolved = subprocess.run(
        ["sh", "-euc", workers.replace("pip install", "pip install --dry-run")],
        cwd=source,
        env=environ,
        check=True,
        capture_output=True,
        text=True,
    )

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
    ours = subprocess.run(
        ["python", "-c", "import gradwire; print(gradwire.__file__)"],
        cwd=tmp_path,
        env=environ,
        check=True,
        capture_output=True,
        text=True,
    )
    assert str(tmp_path / "venv") in ours.stdout, "it is the installed one, not the sources"
    [would] = re.findall(r"^Would install (.*)$", resolved.stdout, re.MULTILINE)
    assert f"torch-{PINS['torch']}" in would
    assert f"matplotlib-{PINS['matplotlib']}" in would


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


@pytest.mark.deep("a real Prometheus, which is downloaded")
def test_prometheus_has_nothing_to_say_against_our_metrics_and_our_file(tmp_path: Path) -> None:
    with (
        MasterProcess() as master,
        urlopen(f"http://{master.announcement['http']}/metrics", timeout=PROCESS) as response,
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
    file = scrape_file(tmp_path)
    checked = subprocess.run([promtool, "check", "config", file], capture_output=True, check=False)

    assert ours.count(b"# TYPE ") > 30
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, b"")
    assert checked.returncode == 0, checked.stderr


def test_the_composition_names_what_exists() -> None:
    builds = [service["build"]["target"] for service in SERVICES.values() if "build" in service]
    volumes = [each for service in SERVICES.values() for each in service.get("volumes", [])]
    sources = {volume.split(":")[0] for volume in volumes}
    mounted = sources - COMPOSITION["volumes"].keys()

    assert COMPOSITION["volumes"].keys() <= sources
    assert set(builds) <= set(re.findall(r"FROM \S+ AS (\w+)", DOCKERFILE))
    assert mounted
    assert all((REPOSITORY / "docker" / path).exists() for path in mounted)
    assert SERVICES["worker-one"]["environment"]["GRADWIRE_MASTER"] == "master:40123"


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_has_a_root_that_cannot_be_written_and_no_rights_of_root(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] > 0
    assert "privileged" not in service


def test_the_master_writes_checkpoints_to_a_volume_that_is_its_own_and_goes_on_from_them() -> None:
    master = SERVICES["master"]
    folder = master["environment"]["GRADWIRE_CHECKPOINT"]
    [user] = [step for step in instructions("RUN") if step.startswith("useradd")]

    assert master["volumes"] == [f"checkpoints:{folder}"]
    assert master["environment"]["GRADWIRE_RESUME"] == "auto"
    assert re.search(rf"install -d -m 700 -o gradwire -g gradwire {folder}$", user.strip())


def test_our_images_end_as_a_plain_user_who_can_write_only_in_memory_and_volumes() -> None:
    ours = [service for service in SERVICES.values() if "build" in service]
    [uid] = re.findall(r"useradd --uid (\d+)", DOCKERFILE)
    steps = instructions("RUN")

    assert ours
    for service in ours:
        [cache] = [
            entry for entry in service["tmpfs"] if entry.startswith("/home/gradwire/.cache:")
        ]
        assert f"uid={uid}" in cache.partition(":")[2].split(",")
    assert "gradwire warm-up --system --cpu generic" in steps, "and nothing is mounted over that"
    assert instructions("USER")[-1] == "gradwire"
    stages = re.split(r"^FROM .*$", DOCKERFILE, flags=re.MULTILINE)[2:]
    assert all(
        re.findall(r"^USER (.*)$", stage, re.MULTILINE)[-1] == "gradwire" for stage in stages
    )


def test_every_container_is_given_its_own_key_and_no_other() -> None:
    secrets = {name: service.get("secrets", []) for name, service in SERVICES.items()}
    keys = {name: SERVICES[name]["environment"]["GRADWIRE_KEY_FILE"] for name in secrets
            if "build" in SERVICES[name]}  # fmt: skip

    assert secrets["master"] == ["gradwire_run_key", TOKEN_SECRET, OPERATOR_SECRET]
    assert secrets["prometheus"] == [TOKEN_SECRET]
    assert len(set(keys.values())) == len(keys) == 3
    for name, path in keys.items():
        assert path == f"/run/secrets/{secrets[name][0]}"
    assert secrets["grafana"] == ["grafana_password"]
    given = {each for several in secrets.values() for each in several}
    assert given == COMPOSITION["secrets"].keys()


def test_no_key_gets_into_an_image_or_the_repository() -> None:
    files = [secret["file"] for secret in COMPOSITION["secrets"].values()]
    ignored = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()

    assert all(file.startswith("./keys/") for file in files)
    assert "docker/keys" in ignored
    for file in files:
        path = (REPOSITORY / "docker" / file).relative_to(REPOSITORY)
        asked = subprocess.run(
            ["git", "check-ignore", "--quiet", path], cwd=REPOSITORY, check=False
        )
        assert asked.returncode == 0, f"{path} could be committed"
    assert not re.search(r"^(COPY|ENV|ARG).*(key|token)", DOCKERFILE, re.MULTILINE | re.IGNORECASE)


def test_the_masters_image_takes_only_packages_whose_hashes_we_know() -> None:
    stages = re.split(r"^FROM .*$", DOCKERFILE, flags=re.MULTILINE)
    installs = re.findall(r"^RUN pip install (.*)$", stages[1] + stages[2], re.MULTILINE)

    assert len(installs) == 3
    from_the_network = [each for each in installs if "--no-deps --no-index" not in each]
    assert len(from_the_network) == 2
    assert all("--require-hashes" in each for each in from_the_network)
