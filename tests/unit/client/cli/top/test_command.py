"""What ``gradwire top`` refuses before it shows anything."""

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from gradwire.cli.app import EXIT_UNREACHABLE, EXIT_USAGE, main

NOBODY = "127.0.0.1:9"


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--http", NOBODY, "--once"), EXIT_UNREACHABLE, f"no master answers at http://{NOBODY}"),
        (("--http", NOBODY), EXIT_UNREACHABLE, "Connection refused"),
        (("--json",), EXIT_USAGE, "write --once --json"),
        (("--http", "off"), EXIT_USAGE, "--http off"),
        (("--http", NOBODY, "--master", NOBODY), EXIT_USAGE, "leave one of them out"),
        (("--http-token-file", "/nowhere", "--once"), EXIT_USAGE, "/nowhere cannot be read"),
        (("--master", NOBODY, "--key-file", "/nowhere"), EXIT_USAGE, "key file /nowhere"),
        (("--run", "x" * 300, "--once"), EXIT_USAGE, "--run has 300 characters"),
        (("--run", "bert\udcff", "--once"), EXIT_USAGE, "is no UTF-8"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    options: Sequence[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("gradwire")
    before = list(logger.handlers)

    ended = main(["top", *options])

    logger.handlers[:] = before  # the command's would write to a stderr that is no more
    shown = capsys.readouterr()
    assert ended == status
    assert shown.out == ""
    assert said in " ".join(shown.err.split())


def test_a_variable_for_the_master_s_page_does_not_stand_against_an_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADWIRE_HTTP", "10.0.2.4:40124")
    logger = logging.getLogger("gradwire")
    before = list(logger.handlers)

    ended = main(["top", "--master", NOBODY, "--key-file", str(tmp_path / "no.key")])

    logger.handlers[:] = before
    assert ended == EXIT_USAGE
    assert "no.key" in capsys.readouterr().err
