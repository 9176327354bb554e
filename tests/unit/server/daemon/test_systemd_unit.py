"""gradwire-master.service: what the unit takes from the master, and that it still can run so."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from gradwire.cli.app import app

UNIT = Path(__file__).parents[4] / "server" / "gradwire-master.service"

EXPOSURE_MAX = 15
"""Tenths, as systemd-analyze counts them; 100 is a service without any hardening. What is left is
the network, code that is compiled while it runs, and the host's root folder, read-only."""


def settings() -> dict[str, list[str]]:
    """Return the values of every setting of the unit, in their order."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


SWITCHED_ON = [
    "DynamicUser",
    "LockPersonality",
    "NoNewPrivileges",
    "PrivateDevices",
    "PrivateIPC",
    "PrivateMounts",
    "PrivateTmp",
    "PrivateUsers",
    "ProtectClock",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
]


@pytest.mark.parametrize("name", SWITCHED_ON)
def test_the_unit_switches_hardening_on(name: str) -> None:
    assert settings()[name] == ["yes"]


def test_the_unit_leaves_the_master_no_rights_of_root() -> None:
    unit = settings()

    assert unit["CapabilityBoundingSet"] == [""]
    assert unit["AmbientCapabilities"] == [""]
    assert unit["ProtectSystem"] == ["strict"]
    assert unit["SystemCallArchitectures"] == ["native"]
    assert unit["SystemCallFilter"] == ["@system-service", "~@privileged @resources"]
    assert set(unit["RestrictAddressFamilies"][0].split()) == {"AF_INET", "AF_INET6", "AF_UNIX"}


def test_the_key_is_a_credential_and_cannot_get_to_a_disk() -> None:
    unit = settings()

    assert unit["LoadCredential"] == ["run.key:/etc/gradwire/run.key"]
    assert unit["LimitCORE"] == ["0"]
    assert unit["MemorySwapMax"] == ["0"]
    assert not any("key" in value.lower() for value in unit["ExecStart"] + unit["Environment"])


def test_the_command_of_the_unit_has_options_that_exist() -> None:
    [command] = settings()["ExecStart"]
    program, *arguments = command.split()
    asks_for_help = [*arguments, "--help"]

    assert program.endswith("/bin/gradwire")
    with pytest.raises(SystemExit) as ended:
        get_command(app)(asks_for_help)
    assert ended.value.code == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_itself_finds_little_that_is_left_open() -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}"]

    done = subprocess.run([*command, str(UNIT)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="MemoryDenyWriteExecute= is of Linux")
def test_memory_must_be_executable_for_the_compiler() -> None:
    """The reason why the unit has no MemoryDenyWriteExecute=; without it, the line can be added."""
    code = """
import ctypes, sys
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
if ctypes.CDLL(None).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
    sys.exit("a kernel before 6.3")
import numba
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    if "a kernel before 6.3" in done.stderr:
        pytest.skip("needs PR_SET_MDWE, Linux 6.3")
    assert "cannot allocate executable memory" in done.stderr
    assert "MemoryDenyWriteExecute" not in settings()
