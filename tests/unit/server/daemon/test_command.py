"""The command line of the daemon: where options come from, and how it ends."""

import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from gradwire_protocol.crypto.keys import SECRET_BYTES, RunKey
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_server.daemon.command import master
from gradwire_udp.files.keys import write_key
from support.wording import naming

RUN_KEY = RunKey(bytes(range(SECRET_BYTES)))

app = typer.Typer(add_completion=False)
app.command()(master)


def invoke(*arguments: str, environ: dict[str, str] | None = None) -> tuple[int, str]:
    """Run the command; return exit status and what it wrote to stderr, on one line."""
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", **(environ or {})})
    assert result.stdout == ""
    return result.exit_code, re.sub(r"[\s│╭╮╰╯─]+", " ", result.stderr).strip()


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in signature(master).parameters:
        monkeypatch.delenv(f"GRADWIRE_{option.upper()}", raising=False)
    monkeypatch.delenv("GRADWIRE_IP", raising=False)
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "my.toml"


@contextmanager
def busy_port() -> Iterator[int]:
    """Yield a UDP port of 127.0.0.1 that is in use."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        yield other.getsockname()[1]


# Options.


def test_every_option_has_a_help_text_and_an_environment_variable() -> None:
    options = {parameter.name: parameter for parameter in get_command(app).params}

    assert set(options) == set(signature(master).parameters)
    for name, option in options.items():
        assert option.opts == ["--" + name.replace("_", "-")]
        assert option.envvar == f"GRADWIRE_{name.upper()}"
        assert str(getattr(option, "help", "")).endswith("."), name


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--workers-max 0", ("workers_max", 0, 1, WORKERS_MAX)),
        ("--idle-timeout-seconds 0", ("idle_timeout_seconds", 0.0, 0.001, 3600)),
        ("--relay-backlog-mib-max 0", ("relay_backlog_bytes_max", 0)),
        ("--conflation-mib-max 0", ("conflation_bytes_max", 0)),
        ("--slow-seconds 0", ("slow_seconds", 0.0)),
        ("--reassembly-mib-max 1", ("reassembly_bytes_max", 2**20, "--reassembly-mib-max")),
        ("--outlier-norm-multiple 0", ("outlier_norm_multiple", 0.0, 1)),
        ("--update-rate-max -1", ("update_rate_max", -1.0, 0)),
        ("--checkpoint-seconds 0", ("checkpoint_seconds", 0.0)),
        ("--checkpoint-keep 0", ("checkpoint_keep", 0, 1, 100000)),
        ("--checkpoint /dev/null", ("--checkpoint", "/dev/null", "name a folder")),
        ("--resume auto", ("--resume", "auto", "--checkpoint")),
        ("--resume /dev", ("--resume", "/dev", "no checkpoint")),
        ("--standby-of a:1 --resume /dev", ("--resume", "--standby-of")),
        ("--standby-of a:1 --standby b:1", ("standby", "b:1", "standby_of", "a:1")),
        ("--standby-of a:1 --transport tcp", ("standby", "UDP")),
        ("--listen 127.0.0.1:x", ("127.0.0.1:x", "port", "'x'", 0, 65535)),
        ("--http :80", ("':80'", "host")),
        ("--network 10.0.0.0/33", ("network", "10.0.0.0/33")),
        ("--advertise [::1", ("'[::1'", "IPv6", "[host]:port")),
    ],
)
def test_a_value_that_cannot_work_is_named_and_the_status_is_2(
    arguments: str, named: tuple[object, ...]
) -> None:
    free = ["--listen", "127.0.0.1:0", "--http", "off"]

    assert invoke(*free, *arguments.split()) == (2, naming("gradwire master:", *named))


# Where options come from. A value that is refused shows which one was taken.


@pytest.mark.parametrize(
    ("arguments", "environ", "counts"),
    [
        ("--config my.toml", {}, -1),
        ("--config my.toml", {"GRADWIRE_WORKERS_MAX": "-2"}, -2),
        ("--config my.toml --workers-max -3", {"GRADWIRE_WORKERS_MAX": "-2"}, -3),
        ("--workers-max -3 --config my.toml", {}, -3),
        ("", {"GRADWIRE_CONFIG": "my.toml"}, -1),
    ],
    ids=["file", "environment", "flag behind the file", "flag before it", "file by environment"],
)
def test_a_flag_comes_before_the_environment_and_that_before_the_file(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    environ: dict[str, str],
    counts: int,
) -> None:
    config.write_text("[master]\nworkers_max = -1\n")
    monkeypatch.chdir(config.parent)

    assert invoke(*arguments.split(), environ=environ) == (2, naming("workers_max", counts))


def test_names_that_nobody_reads_are_warned_of(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config.write_text("[mastr]\nrun = 'a'\n[master]\nworkers_max = -1\n")

    found = invoke("--config", str(config), environ={"GRADWIRE_LISTN": "0.0.0.0"})

    assert found == (2, naming("workers_max", -1))
    file, variable = caplog.messages
    assert file == naming("my.toml", "mastr", "master?")
    assert variable == naming("GRADWIRE_LISTN", "GRADWIRE_LISTEN?")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, ("my.toml", "No such file")),
        (b"[master]\nworkers = 1\nnonsense = 2\n", ("nonsense", "workers")),
        (b"[master\n", ("my.toml", "Expected ']'")),
        (b"[master]\nworkers_max = 'many'\n", ("--workers-max",)),
        (b"master = 3", ("my.toml", "'master'")),
        (b"[master]\nrun = '\xff'", ("my.toml", "can't decode")),
    ],
    ids=["missing", "unknown settings", "no TOML", "no number", "no table", "no text"],
)
def test_a_file_that_cannot_be_used_is_refused(
    config: Path, content: bytes | None, named: tuple[str, ...]
) -> None:
    if content is not None:
        config.write_bytes(content)

    assert invoke("--config", str(config)) == (2, naming(*named))


def test_a_token_that_others_can_read_is_refused_and_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("correct-horse-battery")
    file.chmod(0o644)

    by_option = invoke("--listen", "127.0.0.1:0", "--http-token-file", str(file))
    by_variable = invoke(environ={"GRADWIRE_HTTP_TOKEN_FILE": str(file)})

    assert by_option == by_variable == (2, naming("gradwire master:", file, "0644", "chmod 600"))
    assert "correct-horse" not in by_option[1]


# Checkpoints.


def test_folders_may_stand_in_the_file_and_are_let_go_in_the_end(
    tmp_path: Path, config: Path
) -> None:
    config.write_text(
        f'[master]\ncheckpoint = "{tmp_path}"\nresume = "auto"\ncheckpoint_keep = 2\n'
        "checkpoint_seconds = 5.0\n"
    )
    (tmp_path / "alpha-000001.safetensors").write_bytes(b"damaged")

    for _ in range(2):
        ended = invoke("--listen", "127.0.0.1:0", "--config", str(config))

        assert ended == (2, naming("--resume", tmp_path, "b'damaged'"))


# Addresses.


@pytest.mark.parametrize(
    ("listen", "arguments", "environ"),
    [
        ("127.0.0.1", [], {}),
        ("203.0.113.7", ["--network", "127.0.0.0/8"], {}),
        ("203.0.113.7", ["--network", "198.51.100.0/24"], {"GRADWIRE_IP": "127.0.0.1"}),
    ],
    ids=["listen", "a network before listen", "GRADWIRE_IP before both"],
)
def test_an_address_in_use_is_named_and_the_status_is_3(
    listen: str, arguments: list[str], environ: dict[str, str]
) -> None:
    with busy_port() as port:
        ended = invoke(
            *("--listen", f"{listen}:{port}", "--http", "off", *arguments), environ=environ
        )

    assert ended == (3, naming("gradwire master:", "UDP", f"127.0.0.1:{port}", "--listen"))


# Keys. What comes of them is shown by the error that an address in use is.


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.key"
    write_key(path, RUN_KEY.format())
    return path


def started(*arguments: str, environ: dict[str, str] | None = None) -> tuple[int, str]:
    """Start a master where others can reach it; where it would begin, the address is in use."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("0.0.0.0", 0))
        listen = f"0.0.0.0:{other.getsockname()[1]}"
        return invoke("--listen", listen, "--http", "off", *arguments, environ=environ)


def test_without_a_key_it_does_not_start_where_others_can_reach_it() -> None:
    ways_out = ("gradwire keygen run.key", "--key-file run.key", "--insecure")

    assert started() == (2, naming("gradwire master:", "0.0.0.0", *ways_out))


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [
        ("--key-file run.key", {}),
        ("", {"GRADWIRE_KEY_FILE": "run.key"}),
        ("", {"CREDENTIALS_DIRECTORY": "."}),
        ("--insecure", {}),
        ("--insecure", {"CREDENTIALS_DIRECTORY": "."}),
    ],
)
def test_with_a_key_or_when_told_to_it_does(
    key_file: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, environ: dict[str, str]
) -> None:
    monkeypatch.chdir(key_file.parent)

    assert started(*arguments.split(), environ=environ)[0] == 3


@pytest.mark.parametrize("deny", [["--deny", "a", "--deny", "b:c"], ["--deny", "a,b:c"]])
def test_names_to_deny_are_checked(key_file: Path, deny: list[str]) -> None:
    as_options = started("--key-file", str(key_file), *deny)
    in_environment = started("--key-file", str(key_file), environ={"GRADWIRE_DENY": "a b:c"})

    assert as_options == in_environment == (2, naming("--deny", "'b:c'", "printable"))


@pytest.mark.parametrize(
    ("text", "mode", "named"),
    [
        (RUN_KEY.format(), 0o644, ("0644",)),
        (RUN_KEY.worker_key("gpu7").format(), 0o600, ("worker", "gpu7")),
        (RUN_KEY.format()[:-1], 0o600, ("line 1", "damaged")),
    ],
    ids=["open to others", "of a worker", "damaged"],
)
def test_a_key_that_cannot_be_used_is_named_and_not_repeated(
    key_file: Path, text: str, mode: int, named: tuple[str, ...]
) -> None:
    key_file.write_text(text)
    key_file.chmod(mode)

    status, err = started("--key-file", str(key_file))

    assert (status, err) == (2, naming("gradwire master:", key_file, *named))
    assert text.rpartition(":")[2] not in err


def test_event_files_take_a_package_that_the_error_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gradwire_server.daemon.event_files", None)

    status, said = invoke("--tensorboard", str(tmp_path))

    assert status == 2
    assert said == naming("--tensorboard", tmp_path, "'gradwire[tensorboard]'")
