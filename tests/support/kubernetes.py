"""What Kubernetes makes of our manifests, as a process sees it: files, variables, commands."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml


def built(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what `kubectl apply -k` would send, by kind and name."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl: apt-get install kubernetes-client")
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def pod_of(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification of the pods of a StatefulSet or Job."""
    specification: dict[str, Any] = workload["spec"]["template"]["spec"]
    return specification


def container_of(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the only container of these pods."""
    [container] = pod_of(workload)["containers"]
    return dict(container)


def variables(container: Mapping[str, Any], annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a container: one can stand in those that come after it."""
    found: dict[str, str] = {}
    for each in container["env"]:
        if "valueFrom" in each:
            path = each["valueFrom"]["fieldRef"]["fieldPath"]
            [annotation] = re.findall(r"^metadata\.annotations\['(.*)'\]$", path)
            found[each["name"]] = annotations[annotation]
        else:
            found[each["name"]] = expanded(each["value"], found)
    return found


def expanded(text: str, known: Mapping[str, str]) -> str:
    """Return a text with ``$(NAME)`` replaced; what is not known stays, as Kubernetes leaves it."""
    return re.sub(r"\$\((\w+)\)", lambda found: known.get(found[1], found[0]), text)


def write_secret(folder: Path, files: Mapping[str, Path]) -> None:
    """Lay out a volume with a secret as the kubelet does: links, and files of mode 0440.

    The mode in the manifest is 0400; with ``fsGroup`` the group gets a right to read.
    """
    version = folder / "..2026_11_27_12_00_00.1"
    version.mkdir(parents=True)
    (folder / "..data").symlink_to(version.name)
    for name, source in files.items():
        (version / name).write_bytes(source.read_bytes())
        (version / name).chmod(0o440)
        (folder / name).symlink_to(Path("..data") / name)


def environment(adapted: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process that has only these variables of ours."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
    return ours | dict(adapted)
