"""``gradwire doctor`` against a real master, and where something is wrong."""

import json
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradwire.cli.app import main
from gradwire_protocol import Keyring, RunKey
from gradwire_protocol.crypto.keys import SECRET_BYTES
from gradwire_udp.files.keys import write_key
from support.local_master import LocalMaster
from support.sessions import RUN_KEY, join
from support.waiting import SOON
from support.wording import naming

OTHER_KEY = RunKey(bytes(range(1, 1 + SECRET_BYTES)))

IN_VAIN = SOON / 20
"""To wait for an answer that does not come."""

Doctor = Callable[..., tuple[int, dict[str, dict[str, Any]]]]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.key"
    write_key(path, RUN_KEY.format())
    return path


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Run the command; return exit status and its checks by their names."""
    logger = logging.getLogger("gradwire")
    before = list(logger.handlers)

    def run(
        *arguments: object, answer_seconds: float = SOON
    ) -> tuple[int, dict[str, dict[str, Any]]]:
        monkeypatch.setattr("gradwire.cli.probes.ANSWER_SECONDS", answer_seconds)
        monkeypatch.setattr("gradwire.cli.probes.PROBES", 5)
        status = main(["doctor", "--json", *map(str, arguments)])
        logger.handlers[:] = before  # the command's would write to a stderr that is no more
        found = json.loads(capsys.readouterr().out)
        return status, {check["name"]: check for check in found["checks"]}

    return run


def states(checks: dict[str, dict[str, Any]], *names: str) -> list[str]:
    return [checks[name]["state"] for name in names]


def test_without_a_master_this_machine_is_looked_at(doctor: Doctor) -> None:
    status, checks = doctor()

    assert list(checks) == ["version", "buffers"]
    assert status == (1 if "slow" in {check["state"] for check in checks.values()} else 0)


def test_a_master_that_lets_us_in_is_found(
    doctor: Doctor, keyed_master: LocalMaster, key_file: Path
) -> None:
    status, checks = doctor("--master", keyed_master.address, "--key-file", key_file)

    assert status in (0, 1)
    assert states(checks, "key", "name", "port") == ["ok"] * 3
    assert checks["key"]["text"] == naming("run key", RUN_KEY.fingerprint.hex())
    assert checks["port"]["text"] == naming("UDP", keyed_master.address)
    assert checks["round trip"]["text"] == naming("ms", "handshakes")
    assert checks["loss"]["text"] == naming("datagrams")


@pytest.fixture
def worker_key(tmp_path: Path) -> Path:
    path = tmp_path / "gpu7.key"
    write_key(path, RUN_KEY.worker_key("gpu7").format())
    return path


def test_a_worker_that_trains_with_the_key_is_not_disturbed(
    doctor: Doctor, keyed_master: LocalMaster, worker_key: Path
) -> None:
    worker = join(keyed_master, key=RUN_KEY.worker_key("gpu7"))

    _, checks = doctor("--master", keyed_master.address, "--key-file", worker_key)

    assert checks["port"]["state"] == "ok"
    assert checks["key"]["text"] == naming("worker gpu7", RUN_KEY.fingerprint.hex())
    worker.step()
    worker.finish()


def test_where_only_tcp_leads_to_the_master_that_is_slow(doctor: Doctor, key_file: Path) -> None:
    with LocalMaster(keyring=Keyring([RUN_KEY]), transport="tcp") as master:
        status, checks = doctor(
            *("--master", master.address, "--key-file", key_file), answer_seconds=SOON / 8
        )

    assert status == 1
    assert checks["port"]["state"] == "slow"
    assert checks["port"]["text"] == naming("only TCP", master.address)


@pytest.mark.parametrize(("key", "named"), [(OTHER_KEY, "with this key"), (None, "without a key")])
def test_a_key_that_is_not_accepted_is_said_to_be(
    doctor: Doctor, keyed_master: LocalMaster, tmp_path: Path, key: RunKey | None, named: str
) -> None:
    options: list[object] = ["--master", keyed_master.address]
    if key is not None:
        path = tmp_path / "other.key"
        write_key(path, key.worker_key("gpu7").format())
        options += ["--key-file", path]

    status, checks = doctor(*options, answer_seconds=IN_VAIN)

    assert status == 5
    assert checks["port"]["state"] == "broken"
    assert checks["port"]["text"] == naming(named, keyed_master.address)
    assert checks["port"]["remedy"]
    assert "loss" not in checks


def test_a_port_where_nothing_listens_is_broken(doctor: Doctor) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]

        status, checks = doctor("--master", f"127.0.0.1:{port}", answer_seconds=IN_VAIN)

    assert status == 5
    assert checks["port"]["state"] == "broken"
    assert checks["port"]["text"] == naming("nothing listens", f"127.0.0.1:{port}")


def test_a_key_file_that_is_none_is_broken(doctor: Doctor, tmp_path: Path) -> None:
    path = tmp_path / "missing.key"

    status, checks = doctor("--master", "127.0.0.1:9", "--key-file", path)

    assert (status, checks["key"]["state"]) == (5, "broken")
    assert checks["key"]["text"] == naming(path)
