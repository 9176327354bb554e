"""What fails beside other tests is tried again alone, and only what fails twice fails the run."""

import os
import subprocess
import sys
from pathlib import Path

from support.again_plugin import PASSED_ALONE

TESTS = Path(__file__).parents[2]

SUITE = """
import os
import pytest
from support.processes import children_of

@pytest.mark.parametrize("number", range(4))
def test_fine(number): ...

def test_alone():
    assert len(children_of(os.getppid())) == 1, "other processes run tests"
"""

PLUGINS = 'pytest_plugins = ["support.tier_plugin", "support.again_plugin"]'

ALWAYS = """
def test_always():
    assert not "fails always"
"""


def run(folder: Path) -> tuple[int, list[str]]:
    """Run the tests of a folder in two processes; return the exit status and the lines."""
    kept = {name: os.environ[name] for name in os.environ if name not in ("DEEP", "SLICE")}
    (folder / "conftest.py").write_text(PLUGINS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "."],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_what_fails_beside_others_alone_is_listed_and_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)

    status, lines = run(tmp_path)

    assert status == 0, lines
    assert lines[-1] == "passed alone: test_suite.py::test_alone"
    assert (tmp_path / PASSED_ALONE).read_text() == "test_suite.py::test_alone\n"


def test_what_fails_twice_fails(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE + ALWAYS)

    status, lines = run(tmp_path)

    assert status == 1, lines
    assert lines[-1] == "passed alone: test_suite.py::test_alone"
    assert "FAILED test_suite.py::test_always" in "\n".join(lines)
