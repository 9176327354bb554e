"""The command line of the daemon: where options come from, and how it ends."""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from gradwire_protocol.keys import SECRET_BYTES, RunKey
from gradwire_server.command import master
from gradwire_udp.key_files import write_key

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
    return tmp_path / "gradwire.toml"


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
    ("arguments", "says"),
    [
        (["--workers-max", "0"], "workers_max=0; it is 1 to 4092"),
        (["--datagram-bytes", "100"], "datagram_bytes=100; it is a multiple of 4 from 1200 to"),
        (["--idle-timeout-seconds", "0"], "idle_timeout_seconds=0.0; it is 0.001 to 3600"),
        (["--relay-backlog-mib-max", "0"], "relay_backlog_bytes_max=0; it has to be above 0"),
        (["--conflation-mib-max", "0"], "conflation_bytes_max=0; it has to be above 0"),
        (["--slow-seconds", "0"], "slow_seconds=0.0; it has to be above 0"),
        (["--reassembly-mib-max", "1"], "reassembly_bytes_max=1048576 is too little for"),
        (["--loop", "trio"], "loop='trio'; it is 'auto', 'uvloop' or 'asyncio'"),
        (["--processes", "65"], "processes=65; it is 1 to 64"),
        (["--outlier-norm-multiple", "0"], "outlier_norm_multiple=0.0; it is finite and at least"),
        (["--update-rate-max", "-1"], "update_rate_max=-1.0; it has to be above 0"),
        (["--checkpoint-seconds", "0"], "checkpoint_seconds=0.0; it has to be above 0"),
        (["--checkpoint-keep", "0"], "checkpoint_keep=0; it is 1 to 100000"),
        (["--checkpoint", "/dev/null"], "--checkpoint /dev/null: File exists"),
        (["--resume", "auto"], "--resume auto goes on from the folder of --checkpoint: say that"),
        (["--resume", "/dev"], "--resume: there is no checkpoint in /dev"),
        (["--standby-of", "a:1", "--resume", "/dev"], "--resume with --standby-of: a standby"),
        (["--standby-of", "a:1", "--standby", "b:1"], "standby='b:1' and standby_of='a:1': "),
        (["--standby-of", "a:1", "--transport", "tcp"], "a standby reaches its primary over UDP"),
        (["--processes", "2", "--transport", "tcp"], "processes=2; over TCP alone it is 1"),
        (["--listen", "127.0.0.1:x"], "address '127.0.0.1:x': the port 'x' is not 0 to 65535"),
        (["--http", ":80"], "address ':80' has no host"),
        (["--network", "10.0.0.0/33"], "network '10.0.0.0/33': "),
        (["--advertise", "[::1"], "address '[::1'; an IPv6 address is written [host]:port"),
    ],
)
def test_a_value_that_cannot_work_is_named_and_the_status_is_2(
    arguments: list[str], says: str
) -> None:
    free = ["--listen", "127.0.0.1:0", "--http", "off"]

    status, err = invoke(*free, *arguments)

    assert status == 2
    assert err.startswith(f"gradwire master: {says}")


@pytest.mark.parametrize("arguments", [["--workers-max", "many"], ["--nonsense"], ["one", "more"]])
def test_what_is_no_option_or_no_value_of_it_is_status_2(arguments: list[str]) -> None:
    status, err = invoke(*arguments)

    assert status == 2
    assert arguments[0] in err


# Where options come from. A value that is refused shows which one was taken.


def test_a_flag_comes_before_the_environment_and_that_before_the_file(config: Path) -> None:
    config.write_text("[master]\nworkers_max = -1\n")
    environ = {"GRADWIRE_WORKERS_MAX": "-2"}

    from_file = invoke("--config", str(config))
    from_environment = invoke("--config", str(config), environ=environ)
    from_flag = invoke("--config", str(config), "--workers-max", "-3", environ=environ)

    assert from_file == (2, "gradwire master: workers_max=-1; it is 1 to 4092")
    assert from_environment == (2, "gradwire master: workers_max=-2; it is 1 to 4092")
    assert from_flag == (2, "gradwire master: workers_max=-3; it is 1 to 4092")


def test_a_flag_counts_wherever_the_file_is_named(config: Path) -> None:
    config.write_text("[master]\nworkers_max = -1\n")

    assert invoke("--workers-max", "-3", "--config", str(config)) == (
        2,
        "gradwire master: workers_max=-3; it is 1 to 4092",
    )


def test_the_file_can_be_named_in_the_environment(config: Path) -> None:
    config.write_text("[master]\nworkers_max = -1\n")

    assert invoke(environ={"GRADWIRE_CONFIG": str(config)}) == (
        2,
        "gradwire master: workers_max=-1; it is 1 to 4092",
    )


def test_other_tables_of_the_file_are_none_of_its_business(config: Path) -> None:
    config.write_text("[session]\nnonsense = 1\n[master]\nworkers_max = -1\n")

    status, err = invoke("--config", str(config))

    assert (status, err) == (2, "gradwire master: workers_max=-1; it is 1 to 4092")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[master]\nworkers = 1\nnonsense = 2\n", "unknown settings nonsense, workers"),
        ("[master\n", "Expected ']'"),
        ("[master]\nworkers_max = 'many'\n", "'--workers-max'"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(config: Path, text: str, says: str) -> None:
    config.write_text(text)

    status, err = invoke("--config", str(config))

    assert status == 2
    assert says in err


def test_a_token_that_others_can_read_is_refused_and_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("correct-horse-battery")
    file.chmod(0o644)
    says = f"gradwire master: the HTTP token in {file} can be read or changed by others"

    by_option = invoke("--listen", "127.0.0.1:0", "--http-token-file", str(file))
    by_variable = invoke(environ={"GRADWIRE_HTTP_TOKEN_FILE": str(file)})

    assert by_option == by_variable
    assert by_option[0] == 2
    assert by_option[1].startswith(says)
    assert "correct-horse" not in by_option[1]


def test_a_file_that_does_not_exist_is_named(config: Path) -> None:
    status, err = invoke("--config", str(config))

    assert status == 2
    assert str(config) in err
    assert "No such file" in err


# Checkpoints.


def test_folders_may_stand_in_the_file_and_are_let_go_in_the_end(
    tmp_path: Path, config: Path
) -> None:
    config.write_text(
        f'[master]\ncheckpoint = "{tmp_path}"\nresume = "auto"\ncheckpoint_keep = 2\n'
        "checkpoint_seconds = 5.0\n"
    )
    (tmp_path / "run-000001.gradwire").write_bytes(b"damaged")

    for _ in range(2):
        status, err = invoke("--listen", "127.0.0.1:0", "--config", str(config))

        assert status == 2
        assert "--resume: no checkpoint in" in err
        assert "it is no checkpoint: it begins with b'damaged'" in err


# Addresses.


def test_an_address_in_use_is_status_3() -> None:
    with busy_port() as port:
        status, err = invoke("--listen", f"127.0.0.1:{port}", "--http", "off")

    assert status == 3
    assert err.startswith(f"gradwire master: UDP address 127.0.0.1:{port} is in use: ")
    assert err.endswith("choose another port with --listen")


def test_the_host_may_come_from_a_network_and_the_port_is_that_of_listen() -> None:
    with busy_port() as port:
        status, err = invoke(
            "--listen", f"203.0.113.7:{port}", "--network", "127.0.0.0/8", "--http", "off"
        )

    assert status == 3
    assert f"UDP address 127.0.0.1:{port} is in use" in err


def test_gradwire_ip_overrides_every_other_host() -> None:
    with busy_port() as port:
        status, err = invoke(
            *("--listen", f"203.0.113.7:{port}", "--network", "198.51.100.0/24", "--http", "off"),
            environ={"GRADWIRE_IP": "127.0.0.1"},
        )

    assert status == 3
    assert f"UDP address 127.0.0.1:{port} is in use" in err


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"master = 3", "'master' is not a table"), (b"[master]\nrun = '\xff'", "can't decode")],
)
def test_a_file_that_is_no_table_or_no_text_is_refused(
    config: Path, content: bytes, says: str
) -> None:
    config.write_bytes(content)

    status, err = invoke("--config", str(config))

    assert status == 2
    assert says in err


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
    status, err = started()

    assert status == 2
    assert err.startswith("gradwire master: without a key, anyone who can reach 0.0.0.0:")
    for way_out in ("gradwire keygen run.key", "--key-file run.key", "--insecure"):
        assert way_out in err


def test_with_a_key_or_when_told_to_it_does(key_file: Path) -> None:
    folder = str(key_file.parent)

    assert started("--key-file", str(key_file))[0] == 3
    assert started(environ={"GRADWIRE_KEY_FILE": str(key_file)})[0] == 3
    assert started(environ={"CREDENTIALS_DIRECTORY": folder})[0] == 3
    assert started("--insecure")[0] == 3
    assert started("--insecure", environ={"CREDENTIALS_DIRECTORY": folder})[0] == 3


def test_insecure_with_a_key_is_refused(key_file: Path) -> None:
    status, err = started("--insecure", "--key-file", str(key_file))

    assert (status, "leave one of them out" in err) == (2, True)


@pytest.mark.parametrize("deny", [["--deny", "a", "--deny", "b:c"], ["--deny", "a,b:c"]])
def test_names_to_deny_are_checked(key_file: Path, deny: list[str]) -> None:
    as_options = started("--key-file", str(key_file), *deny)
    in_environment = started("--key-file", str(key_file), environ={"GRADWIRE_DENY": "a b:c"})

    assert as_options == in_environment
    assert as_options[0] == 2
    assert as_options[1].startswith("gradwire master: --deny: name 'b:c'; it is printable")


def test_names_to_deny_may_stand_in_the_file(key_file: Path, config: Path) -> None:
    config.write_text(f'[master]\nkey_file = "{key_file}"\ndeny = ["a", "b:c"]\n')

    status, err = started("--config", str(config))

    assert (status, "--deny: name 'b:c'" in err) == (2, True)


def test_a_key_that_cannot_be_used_is_named_and_not_repeated(key_file: Path) -> None:
    worker_key = RUN_KEY.worker_key("gpu7").format()
    for text, mode, says in (
        (RUN_KEY.format(), 0o644, f"key file {key_file} has mode 0644"),
        (worker_key, 0o600, f"key file {key_file} holds the key of worker 'gpu7'"),
        (RUN_KEY.format()[:-1], 0o600, f"key file {key_file}: line 1: the key is damaged"),
    ):
        key_file.write_text(text)
        key_file.chmod(mode)

        status, err = started("--key-file", str(key_file))

        assert status == 2
        assert err.startswith(f"gradwire master: {says}")
        assert text.rpartition(":")[2] not in err
