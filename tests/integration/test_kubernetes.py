"""docker/kubernetes: Kubernetes' schemas, what gradwire really has, and the pods' commands.

There is no cluster here: the commands of the masters run on loopback, with the variables and files
that their pods would have.
"""

import os
import re
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest
import yaml

from gradwire import Settings
from gradwire.cli.app import main
from gradwire_protocol.settings import declared_settings
from gradwire_server.daemon.command import OPTIONS
from gradwire_udp.discovery.places import place_of
from support.driven_worker import ask_all, check_applied, finish, start
from support.local_master import free_address
from support.processes import Running
from support.waiting import PROCESS, SILENCE, wait_for_process

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "docker" / "kubernetes"
HEADER = re.sub(r" *\\?\n#? *", " ", (FOLDER / "master.yaml").read_text(encoding="utf-8"))
OBJECTS: Final[dict[str, dict[str, Any]]] = {
    each["kind"]: each
    for file in sorted(FOLDER.glob("*.yaml"))
    for each in yaml.safe_load_all(file.read_text(encoding="utf-8"))
}
MASTER, WORKERS = OBJECTS["StatefulSet"], OBJECTS["Job"]
NAME: Final = "_gradwire._udp.gradwire.test."

WORKLOADS = pytest.mark.parametrize("workload", [MASTER, WORKERS], ids=["master", "workers"])


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = workload["spec"]["template"]["spec"]
    return found


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    [found] = pod_of(workload)["containers"]
    return dict(found)


def variables(workload: dict[str, Any]) -> dict[str, str | None]:
    """Return the variables of a container; None for what Kubernetes fills in."""
    return {each["name"]: each.get("value") for each in container_of(workload)["env"]}


@pytest.mark.parametrize("kind", OBJECTS)
def test_kubernetes_own_schemas_know_every_field(kind: str) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="needs Kubernetes' schemas: pip install kubernetes-validate"
    )

    for version in ("1.29.0", validate.latest_version()):
        validate.validate(OBJECTS[kind], version, strict=True)


def test_options_and_variables_are_those_of_gradwire() -> None:
    options = {f"--{name.replace('_', '-')}" for name in OPTIONS}
    of_master = {f"GRADWIRE_{name.upper()}" for name in OPTIONS} | {"GRADWIRE_LOG_FORMAT"}
    of_worker = {f"GRADWIRE_{name.upper()}" for name in declared_settings(Settings)}

    assert set(re.findall(r"--[a-z-]+", container_of(MASTER)["command"][-1])) - {"--"} <= options
    assert {n for n in variables(MASTER) if n.startswith("GRADWIRE_")} <= of_master
    assert {n for n in variables(WORKERS) if n.startswith("GRADWIRE_")} <= of_worker


@WORKLOADS
def test_images_scripts_and_secrets_are_what_the_first_lines_make(workload: dict[str, Any]) -> None:
    images = set(re.findall(r"--target \w+ -t ([\w-]+) ", HEADER))
    made = dict(re.findall(r"create secret generic ([\w-]+) ((?:--from-file=\S+ )+)", HEADER))
    scripts = dict(re.findall(r"create configmap ([\w-]+) --from-file=(\S+)", HEADER))

    assert container_of(workload)["image"] in images
    [secret] = [v["secret"]["secretName"] for v in pod_of(workload)["volumes"] if "secret" in v]
    files = {
        Path(value).name for value in variables(workload).values() if value and "/run/" in value
    }
    assert files == set(re.findall(r"--from-file=(\S+)", made[secret]))
    for volume in pod_of(workload)["volumes"]:
        if "configMap" in volume:
            script = REPOSITORY / scripts[volume["configMap"]["name"]]
            assert script.exists()
            assert script.name == Path(container_of(workload)["command"][-1]).name


@WORKLOADS
def test_pods_run_as_a_plain_user_with_a_root_that_cannot_be_written(
    workload: dict[str, Any],
) -> None:
    dockerfile = (REPOSITORY / "docker" / "Dockerfile").read_text(encoding="utf-8")
    [uid] = map(int, re.findall(r"useradd --uid (\d+)", dockerfile))
    pod, container = pod_of(workload), container_of(workload)
    context = pod["securityContext"]

    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == uid
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False


def test_workers_find_both_masters_by_the_headless_service() -> None:
    service = OBJECTS["Service"]
    name = service["metadata"]["name"]
    ports = {each["name"]: each for each in container_of(MASTER)["ports"]}

    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == MASTER["spec"]["template"]["metadata"]["labels"]
    assert MASTER["spec"]["serviceName"] == name
    for each in service["spec"]["ports"]:
        port = ports[each["targetPort"]]
        assert (each["port"], each["protocol"]) == (port["containerPort"], port["protocol"])
    place = place_of(str(variables(WORKERS)["GRADWIRE_MASTER"]))
    assert place is not None
    # Kubernetes: _PORT-NAME._PROTOCOL.SERVICE
    assert place.text == f"dns+srv://_{ports['gradwire']['name']}._udp.{name}"
    pods = {f"{MASTER['metadata']['name']}-{n}.{name}:40123" for n in range(2)}
    assert set(re.findall(r"\S+:40123", container_of(MASTER)["command"][-1])) == {
        *pods,
        "0.0.0.0:40123",
    }
    number = WORKERS["spec"]["completions"]
    assert (
        WORKERS["spec"]["parallelism"] == number == int(str(variables(WORKERS)["GRADWIRE_WORKERS"]))
    )


class Pod:
    """The command of a master's pod, on loopback; its volumes outlive it."""

    def __init__(self, number: int, addresses: list[str], folder: Path) -> None:
        command = list(container_of(MASTER)["command"])
        script = command[-1].replace("exec gradwire", f"exec {sys.executable} -m gradwire")
        for other, address in enumerate(addresses):
            script = script.replace(f"gradwire-{other}.gradwire:40123", address)
        self.http = free_address()
        script = script.replace("0.0.0.0:40123", addresses[number])
        quick = f"--idle-timeout-seconds {SILENCE} --takeover-seconds 1 --recovery-seconds 4"
        script = script.replace('0.0.0.0:40124 "', f'{self.http} {quick} "')
        checkpoints = folder / f"pod-{number}"
        checkpoints.mkdir(mode=0o700, exist_ok=True)
        places = {"/var/lib/gradwire": str(checkpoints), "/run/secrets/gradwire": str(folder)}
        environ = {name: str(value or "") for name, value in variables(MASTER).items()}
        for inside, outside in places.items():
            environ = {k: v.replace(inside, outside) for k, v in environ.items()}
        environ["POD"] = f"gradwire-{number}"
        self._token = (folder / "http-token").read_text().strip()
        self._log = (folder / f"log-{number}").open("a")
        self.process = Running([*command[:-1], script], env=os.environ | environ, stderr=self._log)
        assert self.process.read_line("a master's announcement")

    def __enter__(self) -> "Pod":
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.end()
        self._log.close()

    def wait_until_in_charge(self, workers: int) -> None:
        """Wait until it is the master of so many workers."""
        request = Request(
            f"http://{self.http}/metrics", headers={"Authorization": f"Bearer {self._token}"}
        )

        def is_master() -> bool:
            with urlopen(request, timeout=PROCESS) as response:
                lines = response.read().decode().splitlines()
            samples = dict(line.rsplit(" ", 1) for line in lines if line.startswith("gradwire_"))
            live = [float(n) for name, n in samples.items() if name.startswith("gradwire_workers")]
            return samples["gradwire_in_charge"] == "1.0" and sum(live) == workers

        wait_for_process(is_master, "this master to have the workers")


@pytest.mark.deep("two masters, which are started again")
def test_a_standby_s_pod_goes_on_and_both_come_back_with_their_volumes(tmp_path: Path) -> None:
    dns_server = pytest.importorskip("support.dns_server", exc_type=ImportError)
    for arguments in (
        ["keygen", str(tmp_path / "run.key")],
        ["keygen", "--issuing", str(tmp_path / "workers.key"), "--from", str(tmp_path / "run.key")],
        ["keygen", "--token", str(tmp_path / "http-token")],
    ):
        assert main(arguments) == 0
    addresses = [free_address(), free_address()]
    with ExitStack() as stack:
        first, second = (stack.enter_context(Pod(n, addresses, tmp_path)) for n in range(2))
        dns = stack.enter_context(dns_server.DnsServer())
        dns.records = [
            (NAME, "SRV", f"0 50 {port} {host}.")
            for host, port in (address.split(":") for address in addresses)
        ]
        key: dict[str, Any] = {"key_file": str(tmp_path / "workers.key")}
        workers = start(
            stack, f"dns+srv://{dns.address}/{NAME}", 2, idle_timeout_seconds=SILENCE, **key
        )
        ask_all(workers, "step", times=3)
        first.wait_until_in_charge(2)

        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait() == 0
        second.wait_until_in_charge(2)
        ask_all(workers, "step", times=3)
        first = stack.enter_context(Pod(0, addresses, tmp_path))
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait() == 0
        second = stack.enter_context(Pod(1, addresses, tmp_path))

        first.wait_until_in_charge(2)
        ask_all(workers, "step", times=3)
        check_applied(finish(workers))
