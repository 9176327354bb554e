"""What a master announces: which options are refused, and what is said of it."""

import logging
from pathlib import Path

import pytest

from gradwire_protocol import Keyring, RunKey, UnreachableError, UsageError
from gradwire_protocol.crypto.keys import SECRET_BYTES
from gradwire_server.config import MasterConfig
from gradwire_server.daemon import announcing
from gradwire_server.daemon.announcing import Announcing, Description, address_for
from gradwire_server.metrics import ServerMetrics
from gradwire_server.runs.runs import Runs
from gradwire_udp.discovery.file import FilePlace
from gradwire_udp.discovery.zookeeper import ZooKeeperPlace
from support.wording import naming

FILE = FilePlace(Path("/shared/run.json"))
ENSEMBLE = ZooKeeperPlace(("10.0.0.1:2181",), "/run")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("host:40123", naming("--announce host:40123", "zk://host:2181/path")),
        ("dns+srv://a.b", naming("--announce dns+srv://a.b", "zone")),
        ("http://host/run", naming("HTTP")),
    ],
)
def test_a_place_where_no_master_can_announce_itself_is_refused(text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Announcing.of(text, None, {}, None)


def test_a_credential_is_for_zookeeper_and_for_its_owner_alone(tmp_path: Path) -> None:
    secret = tmp_path / "auth"
    secret.write_text("user:swordfish\n")
    secret.chmod(0o600)
    assert Announcing.of(ENSEMBLE.text, secret, {}, None).credential == "user:swordfish"

    with pytest.raises(UsageError, match=naming("--announce-auth-file", secret, "ZooKeeper")):
        Announcing.of(FILE.text, secret, {}, None)
    secret.chmod(0o640)
    with pytest.raises(UsageError, match=naming(secret, "0640", "chmod 600")):
        Announcing.of(ENSEMBLE.text, secret, {}, None)
    secret.chmod(0o600)
    secret.write_text("swordfish")
    with pytest.raises(UsageError, match=naming(secret, "USER:PASSWORD")) as refused:
        Announcing.of(ENSEMBLE.text, secret, {}, None)
    assert "swordfish" not in str(refused.value)


def test_settings_for_workers_are_announced_and_nothing_personal(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        '[session]\nthreshold = 0.01\nrun = "other"\nrank = 3\nkey_file = "run.key"\n'
        'master = "a:1"\nquiet = true\n'
    )

    announcing = Announcing.of(FILE.text, None, {"run": "digits", "mode": None}, path)

    assert announcing.settings == {"threshold": 0.01, "run": "digits"}
    path.write_text("[session]\nstart_timeout_seconds = inf\n")
    with pytest.raises(UsageError, match=naming("JSON")):
        Announcing.of(FILE.text, None, {}, path)


def test_of_its_keys_a_master_announces_the_fingerprints() -> None:
    key = RunKey(bytes(range(SECRET_BYTES)))
    config = MasterConfig()
    announcing = Announcing(FILE, None, {"run": "digits"})
    runs = Runs(config, ServerMetrics())
    keyrings: list[Keyring | None] = [None, Keyring([key])]
    describe = Description(announcing, config, runs, lambda: keyrings[0])
    for keys in ((), (key.fingerprint.hex(),)):
        announcement, workers = describe()
        keyrings.pop(0)

        assert announcement is not None
        assert (announcement.master, announcement.keys) == ("", keys), "the address comes later"
        assert bytes(range(SECRET_BYTES)).hex() not in announcement.pack().decode()
        assert workers == {}


def test_a_master_that_is_not_in_charge_announces_nothing() -> None:
    config = MasterConfig(standby="b:1")
    runs = Runs(config, ServerMetrics())
    describe = Description(Announcing(FILE, None, {}), config, runs, lambda: None)
    assert describe() == (None, {})

    runs.first.terms.take_charge(1)

    announcement, _ = describe()
    assert announcement is not None
    assert (announcement.others, announcement.term) == (("b:1",), 1)


def test_of_masters_that_share_the_parameters_all_are_announced() -> None:
    config = MasterConfig(shard="1/2", shards="a:1,b:2")
    describe = Description(
        Announcing(FILE, None, {}), config, Runs(config, ServerMetrics()), lambda: None
    )

    announcement, _ = describe()

    assert announcement is not None
    assert announcement.master == "a:1,b:2"


def test_the_address_is_one_that_workers_reach(caplog: pytest.LogCaptureFixture) -> None:
    here = ZooKeeperPlace(("127.0.0.1:2181",), "/run")
    assert address_for(FILE, "0.0.0.0", 7, "host:8") == "host:8"
    assert address_for(FILE, "10.0.0.9", 7, None) == "10.0.0.9:7"
    assert address_for(here, "0.0.0.0", 7, None) == "127.0.0.1:7", "from where it is reached"
    with pytest.raises(UsageError, match=naming("0.0.0.0:7", "--advertise")):
        address_for(FILE, "0.0.0.0", 7, None)
    assert address_for(here, "127.0.0.1", 7, None) == "127.0.0.1:7"
    assert caplog.messages == []

    with caplog.at_level(logging.WARNING):
        address_for(ENSEMBLE, "127.0.0.1", 7, None)

    assert caplog.messages == [naming(ENSEMBLE.text, "127.0.0.1", "--advertise")]


def test_every_server_may_tell_the_address_and_loopback_is_the_last_choice(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = {"near:2181": "127.0.0.1", "far:2181": "10.0.0.9"}

    def way(server: str) -> str:
        if server not in ways:
            raise UnreachableError(f"no host {server}")
        return ways[server]

    monkeypatch.setattr(announcing, "local_address_towards", way)

    def address(*servers: str) -> str:
        return address_for(ZooKeeperPlace(servers, "/run"), "0.0.0.0", 7, None)

    assert address("unknown:2181", "near:2181", "far:2181") == "10.0.0.9:7"
    with pytest.raises(UnreachableError, match=naming("unknown:2181")):
        address("unknown:2181")
    assert caplog.messages == []

    assert address("near:2181") == "127.0.0.1:7"

    assert caplog.messages == [naming("zk://near:2181/run", "127.0.0.1", "--advertise")]
