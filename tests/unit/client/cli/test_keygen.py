"""``gradwire keygen``: what it writes, what it refuses, and that it shows no key."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire.cli.app import main
from gradwire.cli.master_http import read_token
from gradwire_protocol.crypto.keys import Keyring, Role, WorkerKey
from gradwire_protocol.limits import RUN_KEYS_MAX
from gradwire_server.http.access import find_token
from gradwire_udp.files.keys import read_keys, read_run_keys
from support.wording import naming


class Keygen:
    """Runs the command in a folder of its own and looks at what it says."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self.shown = ""

    def __call__(self, *arguments: str) -> tuple[int, list[str], str]:
        """Return exit status, lines of stdout, and stderr."""
        status = main(["keygen", *arguments])
        out, err = self._capture.readouterr()
        self.shown += out + err
        return status, out.splitlines(), err


@pytest.fixture
def keygen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Keygen]:
    """Run in a folder of its own; whatever was written there, nothing of it may be shown."""
    monkeypatch.chdir(tmp_path)
    keygen = Keygen(capsys)
    yield keygen
    for path in tmp_path.rglob("*.key"):
        keys = read_keys(path)
        for key in keys if isinstance(keys, list) else [keys]:
            assert key.format().rpartition(":")[2] not in keygen.shown
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def worker_key(path: str) -> WorkerKey:
    key = read_keys(Path(path))
    assert isinstance(key, WorkerKey)
    return key


# A token.


def test_a_token_is_a_file_that_a_master_takes_and_only_its_owner_reads(keygen: Keygen) -> None:
    path = Path("http.token")

    status, out, err = keygen("--token", str(path))
    again = keygen("--token", str(path))

    assert (status, out) == (0, ["http.token"])
    assert err == naming("--http-operator-token-file http.token", "--token-file http.token")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = path.read_text(encoding="utf-8").strip()
    token = find_token(path)
    assert token is not None
    assert token.matches(secret)
    assert read_token(path) == secret
    assert secret not in keygen.shown
    assert (again[0], again[1]) == (2, [])


# A run key.


@pytest.mark.parametrize(("arguments", "path"), [((), "run.key"), (("my.key",), "my.key")])
def test_a_run_key_is_written_where_asked_and_its_path_is_all_of_stdout(
    keygen: Keygen, arguments: tuple[str, ...], path: str
) -> None:
    status, out, err = keygen(*arguments)

    assert (status, out) == (0, [path])
    assert len(read_run_keys(Path(path))) == 1
    assert err == naming(f"gradwire keygen --worker NAME --from {path}")


# Keys of workers.


@pytest.mark.parametrize("role", sorted(set(Role) - {Role.STANDBY, Role.RELAY}))
def test_a_worker_key_follows_from_the_run_key(keygen: Keygen, role: Role) -> None:
    keygen()

    status, out, _ = keygen("--worker", "gpu7", "--from", "run.key", "--role", role.name.lower())

    [run_key] = read_run_keys(Path("run.key"))
    assert (status, out) == (0, ["gpu7.key"])
    assert worker_key("gpu7.key") == run_key.worker_key("gpu7", role)
    keyring = Keyring([run_key])
    assert keyring.secret_of(worker_key("gpu7.key").key_id) == worker_key("gpu7.key").secret


def test_an_issuing_key_follows_from_the_run_key_and_worker_keys_from_it(keygen: Keygen) -> None:
    keygen()

    status, out, err = keygen("--issuing", "cluster.key", "--from", "run.key", "--role", "observer")
    keygen("--worker", "eyes", "--from", "cluster.key", "--role", "observer")

    [run_key] = read_run_keys(Path("run.key"))
    assert (status, out) == (0, ["cluster.key"])
    assert err == naming("observer", "--worker NAME --from cluster.key")
    assert read_keys(Path("cluster.key")) == run_key.issuing_key(Role.OBSERVER)
    assert worker_key("eyes.key") == run_key.worker_key("eyes", Role.OBSERVER)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--worker", "gpu7", "--from", "cluster.key"), ("cluster.key", "observer", "worker")),
        (
            ("--issuing", "a.key", "--from", "cluster.key"),
            ("cluster.key", "observer", "run key"),
        ),
        (("--issuing", "a.key"), ("--issuing a.key", "--from PATH")),
        (("--issuing", "a.key", "--worker", "b"), ("--worker", "--issuing", "one thing")),
        (("--issuing", "a.key", "--from", "run.key", "--out", "b.key"), ("--out", "--worker")),
    ],
)
def test_an_issuing_key_makes_keys_of_its_role_alone(
    keygen: Keygen, arguments: tuple[str, ...], named: tuple[str, ...]
) -> None:
    keygen()
    keygen("--issuing", "cluster.key", "--from", "run.key", "--role", "observer")

    status, out, err = keygen(*arguments)

    assert (status, out, err) == (2, [], naming(*named))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--worker", "gpu7"), ("--worker gpu7", "--from PATH")),
        (
            ("--worker", "gpu7", "--from", "worker.key"),
            ("worker.key", "worker", "gpu6"),
        ),
        (("--worker", "gpu7", "--from", "none.key"), ("none.key", "No such file")),
        (("--worker", "gpu 7", "--from", "run.key"), ("'gpu 7'", "printable")),
        (("--worker", "x" * 64, "--from", "run.key"), ("name", 64, 1, 63)),
        (
            ("--worker", "../gpu7", "--from", "run.key"),
            ("'../gpu7'", "--out PATH"),
        ),
        (("--worker", "a", "--worker", "a", "--from", "run.key"), ("name", "twice")),
        (
            ("--worker", "a", "--worker", "b", "--from", "run.key", "--out", "a.key"),
            ("--out a.key", "2 keys", "folder"),
        ),
        (("run.key", "--worker", "a"), ("PATH", "--worker")),
        (("--rotate", "a", "--retire", "b"), ("--rotate", "--retire")),
        (("--from", "run.key"), ("--from", "--out", "--worker NAME")),
        (("--rotate", "worker.key"), ("worker.key", "worker", "gpu6")),
        (("--retire", "none.key"), ("none.key", "No such file")),
    ],
)
def test_what_cannot_be_done_is_named_and_nothing_written(
    keygen: Keygen, arguments: tuple[str, ...], named: tuple[object, ...]
) -> None:
    keygen()
    keygen("--worker", "gpu6", "--from", "run.key", "--out", "worker.key")
    before = sorted(Path().iterdir())

    assert keygen(*arguments) == (2, [], naming("gradwire:", *named))
    assert sorted(Path().iterdir()) == before


def test_of_several_keys_none_is_written_where_one_exists(keygen: Keygen) -> None:
    keygen()
    keygen("--worker", "b", "--from", "run.key")

    status, _, err = keygen("--worker", "a", "--worker", "b", "--from", "run.key")

    assert (status, err) == (2, naming("gradwire:", "b.key", "exists"))
    assert not Path("a.key").exists()


# Another run key.


def test_a_rotation_puts_a_new_key_first_and_keeps_the_others(keygen: Keygen) -> None:
    keygen()
    before = read_run_keys(Path("run.key"))

    status, out, err = keygen("--rotate", "run.key")

    after = read_run_keys(Path("run.key"))
    assert (status, out) == (0, ["run.key"])
    assert after[1:] == before
    assert after[0] not in before
    assert err == naming("kill -HUP", "gradwire keygen --retire run.key")


def test_there_is_a_limit_and_the_way_out_is_named(keygen: Keygen) -> None:
    keygen()
    for _ in range(RUN_KEYS_MAX - 1):
        assert keygen("--rotate", "run.key")[0] == 0
    before = read_run_keys(Path("run.key"))

    status, _, err = keygen("--rotate", "run.key")

    assert (status, err) == (2, naming(RUN_KEYS_MAX, "gradwire keygen --retire run.key"))
    assert read_run_keys(Path("run.key")) == before


def test_retiring_leaves_the_newest_alone(keygen: Keygen) -> None:
    keygen()
    keygen("--rotate", "run.key")
    newest, _ = read_run_keys(Path("run.key"))

    status, out, err = keygen("--retire", "run.key")
    again = keygen("--retire", "run.key")

    assert (status, out) == (0, ["run.key"])
    assert "kill -HUP" in err
    assert read_run_keys(Path("run.key")) == [newest]
    assert again == (0, ["run.key"], naming("run.key", "one run key", "retire"))
