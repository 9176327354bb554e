"""The command line of a relay: what it takes of a master's, and what it refuses."""

import gc
import re
import warnings
from inspect import signature
from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from gradwire_server.daemon import relay_daemon
from gradwire_server.daemon.relay_command import DEFAULTS, TAKEN, relay
from support.wording import naming

app = typer.Typer(add_completion=False)
app.command()(relay)


def invoke(*arguments: str) -> tuple[int, str]:
    """Run the command; return exit status and what it wrote to stderr, on one line."""
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.stdout == ""
    return result.exit_code, re.sub(r"[\s│╭╮╰╯─]+", " ", result.stderr).strip()


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in signature(relay).parameters:
        monkeypatch.delenv(f"GRADWIRE_{option.upper()}", raising=False)
    for name in ("GRADWIRE_MASTER", "GRADWIRE_IP", "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


def test_it_has_the_options_that_it_says_and_each_has_a_help_text() -> None:
    options = {parameter.name: parameter for parameter in get_command(app).params}

    assert len(options) == len(TAKEN) + 2, "and --of and --replica"
    assert all(option.help for option in options.values())  # type: ignore[attr-defined]
    assert {name: options[name].default for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), ("--of",)),
        (("--of", "http://10.0.0.1:40123"), ("HTTP", "host:port")),
        (("--of", "10.0.0.1:40123", "--transport", "tcp"), ("UDP", "leave out --transport tcp")),
        (("--of", "10.0.0.1:40123", "--transport", "smoke"), ("smoke", "--transport")),
        (("--of", "10.0.0.1:40123", "--insecure", "--key-file", "run.key"), ("--insecure",)),
        (("--of", "10.0.0.1:40123", "--key-file", "none.key"), ("none.key",)),
        (("--of", "10.0.0.1:40123", "--listen", "127.0.0.1:0"), ("--listen 0.0.0.0",)),
        (("--of", "10.0.0.1:40123", "--listen", "0.0.0.0:0"), ("--insecure", "run.key")),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_do(
    arguments: tuple[str, ...],
    what: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(relay_daemon, "local_address_towards", lambda address: "10.0.0.2")

    gc.collect()
    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always", ResourceWarning)
        status, error = invoke(*arguments)
        gc.collect()

    assert status == 2
    assert re.search(naming(*what), error), error
    assert not left_open
