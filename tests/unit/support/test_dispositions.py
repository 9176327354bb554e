"""What tests start reacts to signals, whatever the tests themselves were started to ignore."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import with_tests

DEAF = ("sh", "-c", 'trap "" HUP INT QUIT; exec "$@"', "sh")
"""As nohup starts a program, and a script one in the background."""

A_TEST = """
import os, signal, subprocess, sys

def test_it():
    os.kill(os.getpid(), signal.SIGHUP)
    child = subprocess.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 1)"])
    assert child.returncode == -1
"""
"""That passes where this process does nothing about SIGHUP, and its child ends by it."""


def play(folder: Path, *options: str) -> str:
    (folder / "test_it.py").write_text(A_TEST, encoding="utf-8")
    done = subprocess.run(
        [*DEAF, sys.executable, "-m", "pytest", *options, str(folder)],
        env=with_tests(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("workers", [(), ("-p", "xdist.plugin", "--numprocesses", "1")])
def test_children_react_to_what_the_tests_were_told_to_ignore(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    assert "1 passed" in play(tmp_path, "-p", "support.dispositions", *workers)


def test_they_would_ignore_it_themselves(tmp_path: Path) -> None:
    assert "assert 0 == -1" in play(tmp_path)


def test_it_is_done_for_all_tests(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.has_plugin("support.dispositions")
