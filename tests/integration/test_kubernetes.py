"""docker/kubernetes: real schemas, what gradwire really has, and the commands as real processes.

There is no cluster here. kubectl builds the manifests, Kubernetes' published schemas check them,
and the commands of master and workers run on loopback, with the files that the kubelet would give
them.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from gradwire import Settings
from gradwire.cli.app import app
from gradwire.cli.commands import Commands, DeferredCommand
from gradwire_protocol.settings import declared_settings
from support.kubernetes import (
    built,
    container_of,
    environment,
    expanded,
    pod_of,
    variables,
    write_secret,
)
from support.processes import Running

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "docker" / "kubernetes"
HEADER = (FOLDER / "kustomization.yaml").read_text(encoding="utf-8").split("\napiVersion")[0]
DOCKERFILE = (REPOSITORY / "docker" / "Dockerfile").read_text(encoding="utf-8")
MONITOR = yaml.safe_load((FOLDER / "service-monitor.yaml").read_text(encoding="utf-8"))

VERSIONS: Final = ("1.29.0", kubernetes_validate.latest_version())
"""The oldest that the manifests are for, and the newest whose schemas we have."""

INDEX_ANNOTATION: Final = "batch.kubernetes.io/job-completion-index"
SECRETS: Final = "/run/secrets/gradwire"

Objects = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def objects() -> Objects:
    return built(FOLDER)


@pytest.fixture(scope="module")
def master(objects: Objects) -> dict[str, Any]:
    return objects["StatefulSet", "gradwire-master"]


@pytest.fixture(scope="module")
def workers(objects: Objects) -> dict[str, Any]:
    return objects["Job", "gradwire-workers"]


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_own_schemas_know_every_field(objects: Objects, version: str) -> None:
    for each in objects.values():
        kubernetes_validate.validate(each, version, strict=True)

    kinds = sorted(kind for kind, _ in objects)
    assert kinds == ["Job", *2 * ["NetworkPolicy"], *2 * ["Service"], "StatefulSet"]


def test_a_field_that_kubernetes_does_not_know_would_be_found(master: dict[str, Any]) -> None:
    wrong = json.loads(json.dumps(master))
    pod_of(wrong)["containers"][0]["readOnlyRootFilesystem"] = (
        True  # in securityContext it is right
    )

    with pytest.raises(kubernetes_validate.ValidationError, match="readOnlyRootFilesystem"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_options_and_variables_are_those_of_gradwire(
    master: dict[str, Any], workers: dict[str, Any]
) -> None:
    group = get_command(app)
    assert isinstance(group, Commands)
    deferred = group.get_command(None, "master")
    assert isinstance(deferred, DeferredCommand)
    parameters = deferred.load().params
    options = {option for each in parameters for option in each.opts}
    of_master = {each.envvar for each in parameters} | {"GRADWIRE_LOG_FORMAT"}
    of_worker = {f"GRADWIRE_{name.upper()}" for name in declared_settings(Settings)}
    command, *arguments = container_of(master)["args"]

    assert command == "master"
    assert {each for each in arguments if each.startswith("--")} <= options
    assert {each["name"] for each in container_of(master)["env"]} <= of_master
    given = {each["name"] for each in container_of(workers)["env"]}
    assert {name for name in given if name.startswith("GRADWIRE_")} <= of_worker


def test_images_and_scripts_are_what_the_first_lines_build(
    master: dict[str, Any], workers: dict[str, Any], objects: Objects
) -> None:
    images = re.findall(r"--target (\w+) -t ([\w-]+) ", HEADER)
    secrets = {
        name: {Path(file).name for file in re.findall(r"--from-file=(\S+)", files)}
        for each in told()
        for name, files in re.findall(r"create secret generic ([\w-]+)(.*)", each)
    }
    scripts = dict(re.findall(r"create configmap ([\w-]+) --from-file=(\S+)", HEADER))
    volumes = pod_of(master)["volumes"] + pod_of(workers)["volumes"]
    mounted = {each["secret"]["secretName"] for each in volumes if "secret" in each}
    mounted |= {
        source["secret"]["name"]
        for each in volumes
        for source in each.get("projected", {}).get("sources", [])
    }

    assert dict(images) == {"master": "gradwire", "worker": "gradwire-worker"}
    assert container_of(master)["image"] == "gradwire:latest"
    assert container_of(workers)["image"] == "gradwire-worker:latest"
    assert mounted == secrets.keys()
    for each in volumes:
        for source in each.get("projected", {}).get("sources", []):
            keys = {item["key"] for item in source["secret"]["items"]}
            assert keys == secrets[source["secret"]["name"]]
    [script] = [each["configMap"]["name"] for each in volumes if "configMap" in each]
    assert (REPOSITORY / scripts[script]).name == Path(container_of(workers)["command"][-1]).name
    assert (REPOSITORY / scripts[script]).exists()


def test_every_pod_ends_as_a_plain_user_with_a_root_that_cannot_be_written(
    master: dict[str, Any], workers: dict[str, Any]
) -> None:
    [uid] = map(int, re.findall(r"useradd --uid (\d+)", DOCKERFILE))

    for workload in (master, workers):
        pod, container = pod_of(workload), container_of(workload)
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == uid
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["automountServiceAccountToken"] is False
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]
        writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
        assert {"/tmp", "/home/gradwire/.cache"} <= writable
        assert writable <= {"/tmp", "/home/gradwire/.cache", "/var/lib/gradwire"}


def test_kubernetes_gives_no_pod_variables_that_begin_like_ours(
    master: dict[str, Any], workers: dict[str, Any], objects: Objects
) -> None:
    """For a service gradwire it would set GRADWIRE_PORT and more, of which gradwire warns."""
    assert ("Service", "gradwire") in objects
    assert pod_of(master)["enableServiceLinks"] is False
    assert pod_of(workers)["enableServiceLinks"] is False


def test_workers_reach_the_master_by_the_services(
    objects: Objects, master: dict[str, Any], workers: dict[str, Any]
) -> None:
    ports = {each["name"]: each for each in container_of(master)["ports"]}
    options = dict(zip(*2 * [iter(container_of(master)["args"][1:])], strict=True))
    labels = master["spec"]["template"]["metadata"]["labels"]
    host, port = variables(container_of(workers), {INDEX_ANNOTATION: "0"})["GRADWIRE_MASTER"].split(
        ":"
    )
    headless = objects["Service", master["spec"]["serviceName"]]["spec"]
    dialled = objects["Service", host]["spec"]

    assert master["spec"]["replicas"] == 1
    for service in (headless, dialled):
        assert service["selector"].items() <= labels.items()
        for each in service["ports"]:
            target = ports[each["targetPort"]]
            assert (each["port"], each["protocol"]) == (target["containerPort"], target["protocol"])
    assert headless["clusterIP"] == "None"
    assert "clusterIP" not in dialled, "its address outlives the master's pod"
    for service in (headless, dialled):
        found = {(each["name"], each["protocol"], each["port"]) for each in service["ports"]}
        assert {("gradwire", "UDP", int(port)), ("gradwire-tcp", "TCP", int(port))} <= found
    assert options["--listen"] == f"0.0.0.0:{ports['gradwire']['containerPort']}"
    assert options["--http"] == f"0.0.0.0:{ports['http']['containerPort']}"
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container_of(master)[name]["httpGet"] == {"path": "/healthz", "port": "http"}


def test_the_number_of_workers_is_the_same_wherever_it_stands(workers: dict[str, Any]) -> None:
    job = workers["spec"]
    number = int(variables(container_of(workers), {INDEX_ANNOTATION: "0"})["GRADWIRE_WORKERS"])
    keys = re.findall(r"--from-file=\S+/worker-(\d+)\.key", HEADER)

    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"] == number
    assert [int(key) for key in keys] == list(range(number))


def test_policies_let_in_workers_and_prometheus_at_ports_that_exist(
    objects: Objects, master: dict[str, Any], workers: dict[str, Any]
) -> None:
    policy = objects["NetworkPolicy", "gradwire-master"]["spec"]
    ports = {(each["name"], each["protocol"]) for each in container_of(master)["ports"]}
    allowed = [{(p["port"], p["protocol"]) for p in rule["ports"]} for rule in policy["ingress"]]
    [peer] = policy["ingress"][0]["from"]
    of_workers = objects["NetworkPolicy", "gradwire-workers"]["spec"]

    assert set.union(*allowed) == ports
    assert allowed[1] == {("http", "TCP")}
    labels = workers["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"] == labels == of_workers["podSelector"]["matchLabels"]
    assert policy["podSelector"]["matchLabels"] == master["spec"]["selector"]["matchLabels"]
    assert of_workers["policyTypes"] == ["Ingress"]
    assert "ingress" not in of_workers


def test_the_monitor_scrapes_one_service_with_the_masters_token(
    objects: Objects, master: dict[str, Any]
) -> None:
    [endpoint] = MONITOR["spec"]["endpoints"]
    wanted = MONITOR["spec"]["selector"]["matchLabels"].items()
    selected = [
        each
        for (kind, _), each in objects.items()
        if kind == "Service" and wanted <= each["metadata"]["labels"].items()
    ]
    token = endpoint["authorization"]["credentials"]
    [secrets] = [each["projected"] for each in pod_of(master)["volumes"] if "projected" in each]
    items = {s["secret"]["name"]: s["secret"]["items"] for s in secrets["sources"]}

    assert [each["metadata"]["name"] for each in selected] == ["gradwire-master"]
    assert endpoint["port"] in [each["name"] for each in selected[0]["spec"]["ports"]]
    assert token["key"] in [item["key"] for item in items[token["name"]]]
    assert selected[0]["metadata"]["labels"][MONITOR["spec"]["jobLabel"]] == "gradwire"


def test_no_key_gets_into_an_image_or_the_repository() -> None:
    ignored = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    [folder] = [each.split()[-1] for each in told() if each.startswith("mkdir")]
    asked = subprocess.run(
        ["git", "check-ignore", "--quiet", f"{folder}/run.key"], cwd=REPOSITORY, check=False
    )

    assert folder in ignored
    assert asked.returncode == 0


def told() -> list[str]:
    """Return the commands of the first lines."""
    lines = HEADER.replace("\n#", "\n").replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line.startswith("   ")]


def keys_as_told(folder: Path) -> Path:
    """Type the commands of the first lines that make keys and the token; return their folder."""
    typed = [each for each in told() if re.match(r"mkdir|gradwire|\(umask", each)]
    assert len(typed) == 4
    (folder / "docker" / "kubernetes").mkdir(parents=True)
    gradwire = f"{sys.executable} -m gradwire "
    for command in typed:
        command = re.sub(r"^gradwire ", gradwire, command)
        subprocess.run(["sh", "-euc", command], cwd=folder, check=True, capture_output=True)
    return folder / "docker" / "kubernetes" / "keys"


def secrets_of(master: dict[str, Any], keys: Path, folder: Path) -> None:
    """Lay out the master's secrets."""
    [projected] = [each["projected"] for each in pod_of(master)["volumes"] if "projected" in each]
    items = [item for source in projected["sources"] for item in source["secret"]["items"]]
    write_secret(folder, {item["path"]: keys / item["key"] for item in items})


def adapted(given: dict[str, str], places: dict[str, str]) -> dict[str, str]:
    """Return variables with the places of a container replaced by those of this machine."""
    for there, here in places.items():
        given = {name: value.replace(there, here) for name, value in given.items()}
    return environment(given)


def start_workers(
    workers: dict[str, Any], keys: Path, folder: Path, address: str, stack: ExitStack
) -> Iterator[Running]:
    """Start each worker as its pod would, with its own key alone."""
    container = container_of(workers)
    [mount] = [each for each in container["volumeMounts"] if "subPathExpr" in each]
    for index in range(workers["spec"]["completions"]):
        given = variables(container, {INDEX_ANNOTATION: str(index)})
        place = folder / f"worker-{index}"
        place.mkdir()
        own = place / Path(mount["mountPath"]).name
        own.write_bytes((keys / expanded(mount["subPathExpr"], given)).read_bytes())
        own.chmod(0o440)
        places = {SECRETS: str(place), "gradwire:40123": address}
        command = [
            {"python": sys.executable}.get(
                each, each.replace("/work", str(REPOSITORY / "docs" / "examples"))
            )
            for each in container["command"]
        ]
        env = adapted(given, places) | {"CREDENTIALS_DIRECTORY": str(place)}
        yield stack.enter_context(Running(command, env=env, stderr=subprocess.PIPE, cwd=place))


@pytest.mark.deep("a master and two workers with torch, as their pods start them")
@pytest.mark.timeout(400)
def test_master_and_workers_train_with_the_commands_variables_and_keys_of_the_manifests(
    master: dict[str, Any], workers: dict[str, Any], tmp_path: Path
) -> None:
    keys = keys_as_told(tmp_path)
    secrets, checkpoints = tmp_path / "secrets", tmp_path / "checkpoints"
    secrets_of(master, keys, secrets)
    checkpoints.mkdir()
    container = container_of(master)
    arguments = [re.sub(r"^0\.0\.0\.0:\d+$", "127.0.0.1:0", each) for each in container["args"]]
    places = {SECRETS: str(secrets), "/var/lib/gradwire": str(checkpoints)}
    env = adapted(variables(container, {}), places) | {"CREDENTIALS_DIRECTORY": str(secrets)}

    with ExitStack() as stack:
        command = [sys.executable, "-m", "gradwire", *arguments]
        process = stack.enter_context(Running(command, env=env, stderr=subprocess.PIPE))
        announced = json.loads(process.read_line("the announcement"))
        pods = [*start_workers(workers, keys, tmp_path, announced["master"], stack)]
        outputs = [pod.communicate(timeout=300) for pod in pods]
        probe = container["readinessProbe"]["httpGet"]["path"]
        with urlopen(f"http://{announced['http']}{probe}", timeout=5) as response:
            health = json.load(response)
        token = (keys / "http-token").read_text(encoding="ascii").strip()
        request = Request(
            f"http://{announced['http']}/metrics", headers={"Authorization": f"Bearer {token}"}
        )
        with urlopen(request, timeout=5) as response:
            metrics = response.read().decode()
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)

    assert [pod.returncode for pod in pods] == [0, 0], outputs
    assert [re.findall(r"^rank (\d) of 2$", out, re.MULTILINE) for out, _ in outputs] == [
        ["0"],
        ["1"],
    ]
    replicas = {
        digest for out, _ in outputs for digest in re.findall(r"^replica (\w+)", out, re.MULTILINE)
    }
    assert len(replicas) == 1
    assert not any("nothing reads" in err for _, err in outputs)
    assert health == {"status": "ok"}
    assert 'gradwire_runs_finished_total{run="default"} 1.0' in metrics
    assert process.returncode == 0, log
    assert "worker-0" in log
    assert "worker-1" in log
    assert list(checkpoints.glob("*.safetensors"))
