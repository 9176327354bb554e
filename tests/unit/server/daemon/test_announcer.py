"""Where a master may announce itself, and what workers read there."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradwire_protocol import UsageError
from gradwire_server.daemon.announcer import Announcing
from gradwire_server.daemon.zookeeper_board import Listed
from support.wording import naming

pytest.importorskip("kazoo", reason="needs kazoo: pip install 'gradwire[zookeeper]'")

NEAR = "zk://localhost:2181,127.0.0.1:2182,[::1]:1/run"
FAR = "zk://zk1:2181/run"


def announcing(
    text: str = NEAR,
    auth_file: Path | None = None,
    config: Path | None = None,
    address: str = "127.0.0.1:0",
    **own: Any,
) -> Announcing:
    return Announcing.of(text, auth_file, config, own, address)


def test_settings_come_from_the_table_of_workers_and_the_master_s_own_count_more(
    tmp_path: Path,
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        '[session]\nrun = "theirs"\nthreshold = 1e-3\nrank = 2\nkey_file = "k"\n[master]\n'
        'listen = "127.0.0.1:1"\n'
    )

    found = announcing(config=config, run="digits", mode=None)

    assert found.settings == {"run": "digits", "threshold": 1e-3}


@pytest.mark.parametrize(
    ("text", "address", "named"),
    [
        ("host:2181", "10.0.0.4:1", naming("host:2181", "zk://host:2181/path")),
        ("dns+srv://a.b", "10.0.0.4:1", naming("dns+srv://a.b", "zk://host:2181/path")),
        (FAR, "0.0.0.0:40123", naming(FAR, "0.0.0.0:40123", "--advertise")),
        (NEAR, "[::]:40123", naming("[::]:40123", "--advertise")),
        (FAR, "127.0.0.1:40123", naming(FAR, "127.0.0.1:40123", "--advertise")),
    ],
)
def test_what_no_worker_could_use_is_not_announced(text: str, address: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        announcing(text, address=address)


@pytest.mark.parametrize("address", ["10.0.0.4:40123", "gpu7:40123", "[fd00::1]:1"])
def test_an_address_that_others_can_reach_is_announced(address: str) -> None:
    assert announcing(FAR, address=address).place.text == FAR


@pytest.mark.parametrize("text", ["", "operator", ":secret", "operator:", "a:b\nc:d"])
def test_a_file_that_has_no_credential_is_named_and_not_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "auth"
    file.write_text(text)
    file.chmod(0o600)

    with pytest.raises(UsageError, match=naming(file, "USER:PASSWORD")) as refused:
        announcing(auth_file=file)

    assert "secret" not in str(refused.value)
    file.write_text("operator:correct horse\n")
    assert announcing(auth_file=file).credential == "operator:correct horse"
    file.chmod(0o644)
    with pytest.raises(UsageError, match=naming(file)):
        announcing(auth_file=file)


def test_a_run_whatever_its_name_has_nodes_of_its_own() -> None:
    assert Listed("a/b", 3, "w", "live").node == "a%2Fb:3"
    assert Listed("a:3", 3, "w", "live").node != Listed("a", 33, "w", "live").node
    assert json.loads(Listed("run", 0, "w", "live").pack()) == {
        "run": "run", "rank": 0, "name": "w", "phase": "live",
    }  # fmt: skip
