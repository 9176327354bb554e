"""A removed setting or option is refused, with what to use instead, wherever it stands."""

from pathlib import Path

import pytest
from typer import rich_utils

from gradwire.cli.app import EXIT_USAGE, main
from gradwire.errors import UsageError
from gradwire.settings.settings import Settings, resolve_settings
from gradwire_protocol.removed import REMOVED, removal_of
from gradwire_protocol.settings import declared_settings
from gradwire_server.daemon.command import OPTIONS
from support.wording import naming

SETTINGS = [name for name in REMOVED if " " not in name]


def option(name: str) -> str:
    """Return a setting as an option."""
    return f"--{name.replace('_', '-')}"


def test_nothing_that_exists_counts_as_removed() -> None:
    assert not REMOVED.keys() & (declared_settings(Settings).keys() | OPTIONS.keys())


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("table", ["session", "master"])
def test_a_file_or_variable_of_either_process_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    table: str,
) -> None:
    file = tmp_path / "my.toml"
    file.write_text(f"[{table}]\n{name} = 1\n")
    variable = f"GRADWIRE_{name.upper()}"
    in_file, in_variable = naming(name, REMOVED[name]), naming(variable, REMOVED[name])
    if table == "session":
        with pytest.raises(UsageError, match=in_file):
            resolve_settings({"master": "a:1"}, {}, file)
        with pytest.raises(UsageError, match=in_variable):
            resolve_settings({"master": "a:1"}, {variable: "1"})
        return

    monkeypatch.setattr(rich_utils, "MAX_WIDTH", 1000)  # no line break within what is looked for
    assert main(["master", "--config", str(file)]) == EXIT_USAGE
    assert capsys.readouterr().err == in_file

    monkeypatch.setenv(variable, "1")
    assert main(["master"]) == EXIT_USAGE
    assert capsys.readouterr().err == in_variable


@pytest.mark.parametrize("name", SETTINGS)
def test_a_keyword_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=naming(name, REMOVED[name])):
        resolve_settings({"master": "a:1", name: 1}, {})


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *(("master", option(name)) for name in SETTINGS),
        *(tuple(name.split(" ", 1)) for name in REMOVED if " " in name),
    ],
)
def test_an_option_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", 1000)

    assert main([command, name, "1"]) == EXIT_USAGE
    assert capsys.readouterr().err == naming(name, removal_of(name, command))
