"""What is misspelt in a file or in the environment is named, with the nearest name."""

import re
from pathlib import Path

import pytest

from gradwire.settings.settings import Settings
from gradwire_protocol import UsageError
from gradwire_protocol.settings import declared_settings
from gradwire_server.daemon.command import OPTIONS
from gradwire_udp.files.configuration import (
    MASTER_SETTINGS,
    PREFIX,
    SESSION_SETTINGS,
    VARIABLES_ONLY,
    read_table,
    unknown_variables,
)
from support.wording import naming

REPOSITORY = Path(__file__).parents[4]


def test_both_sides_know_every_setting_of_the_other_side() -> None:
    assert set(declared_settings(Settings)) == SESSION_SETTINGS
    assert set(OPTIONS) == MASTER_SETTINGS


def test_every_variable_that_the_code_names_is_known() -> None:
    named = {
        name
        for package in ("client", "protocol", "server")
        for path in (REPOSITORY / package).rglob("*.py")
        for name in re.findall(r'"GRADWIRE_([A-Z_]+[A-Z])"', path.read_text(encoding="utf-8"))
    }

    assert "KEY_FILE" in named
    assert {name.lower() for name in named} <= SESSION_SETTINGS | MASTER_SETTINGS | VARIABLES_ONLY


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("GRADWIRE_TARGT_DENSITY", "GRADWIRE_TARGET_DENSITY"),
        ("GRADWIRE_WORKER_MAX", "GRADWIRE_WORKERS_MAX"),
        ("GRADWIRE_KEY_FIL", "GRADWIRE_KEY_FILE"),
    ],
)
def test_a_misspelt_variable_is_named_with_the_nearest_one(variable: str, nearest: str) -> None:
    assert unknown_variables({variable: "1"}) == naming(variable, f"(did you mean {nearest}?)")


def test_a_variable_that_is_like_no_other_is_named_alone() -> None:
    variable = f"{PREFIX}QQQQQQQQQQQQQQQQ"

    said = unknown_variables({variable: "1"})

    assert said == naming(variable)
    assert "did you mean" not in said


def test_what_is_read_empty_or_of_others_is_not_warned_of() -> None:
    known = SESSION_SETTINGS | MASTER_SETTINGS | VARIABLES_ONLY
    environ = {PREFIX + name.upper(): "1" for name in known}

    assert unknown_variables(environ | {"GRADWIRE_TYPO": "", "PATH": "/bin"}) is None


@pytest.mark.parametrize(
    ("text", "table", "named"),
    [
        ("[session]\nrun = 'a'\n\n[master]\nworker_max = 3\n", "master",
         ("[master]", "worker_max (did you mean workers_max?)")),
        ("[master]\nrun = 'a'\n[session]\n  targt_density = 3\n", "session",
         ("[session]", "targt_density (did you mean target_density?)")),
        ("[session]\nlisten = 'x:1'\n", "session", ("listen", "belongs into [master]")),
        ("session = { targt_density = 3 }\n", "session", ("targt_density (did you mean",)),
    ],
)  # fmt: skip
def test_an_unknown_key_is_an_error(
    tmp_path: Path, text: str, table: str, named: tuple[str, ...]
) -> None:
    path = tmp_path / "my.toml"
    path.write_text(text)

    with pytest.raises(UsageError, match=naming(repr(str(path)), *named)):
        read_table(path, table)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[session]\nrun = 'a'\n[sesion]\nrank = 1\n", "sesion (did you mean session?)"),
        ("[session]\nrun = 'a'\n[master.tls]\n[logs.x]\n", "logs;"),
        ("target_density = 0.1\n", "target_density (it belongs into [session])"),
        ("targt_density = 0.1\n", "targt_density (did you mean target_density?)"),
    ],
)
def test_what_stands_in_no_known_table_is_warned_of(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "my.toml"
    path.write_text(text)

    _, warning = read_table(path, "session")

    assert warning == naming(repr(str(path)), named)
    assert read_table(path, "session") == (({"run": "a"} if "run" in text else {}), warning)


def test_what_the_other_side_gets_wrong_is_its_business(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text("[session]\nnonsense = 1\n[master]\nworkers_max = 2\n")

    assert read_table(path, "master") == ({"workers_max": 2}, None)
