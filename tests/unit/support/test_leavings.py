"""What a test leaves behind ends with it and is charged to it, and to no test after it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import has_ended, with_tests

INNOCENT = """
import gc

def test_innocent():
    gc.collect()
"""

STARTS = """
import subprocess, sys
import support.leavings

support.leavings.LAST_SECONDS_MAX = 0.1  # nothing here ends by itself

def start(*arguments):
    child = subprocess.Popen([sys.executable, "-c", *arguments], stdout=subprocess.PIPE, text=True)
    print("started", child.stdout.readline())
    return child

SLEEPS = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
"""


def play(folder: Path, test: str) -> str:
    """Run a test, and an innocent one after it; return what pytest says of them."""
    (folder / "test_it.py").write_text(STARTS + test + INNOCENT, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-W", "error", "-p", "support.leavings"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-rA", "--rootdir", str(folder), str(folder)],
        env=with_tests(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert re.search(r"^PASSED .*::test_innocent$", done.stdout, re.MULTILINE), done
    started = re.findall(r"^started (\d+)$", done.stdout, re.MULTILINE)
    assert all(has_ended(int(pid)) for pid in started), "a process lives on"
    assert all(f"process {pid}: " in done.stdout for pid in started), done.stdout
    return done.stdout


def test_a_failed_test_is_charged_with_what_it_has_not_got_to(tmp_path: Path) -> None:
    said = play(
        tmp_path,
        """
def test_it():
    file = open(__file__)
    itself = [file]
    itself.append(itself)
    child = start(SLEEPS)
    assert child is file
""",
    )

    assert "1 failed, 1 passed" in said
    assert "signal.pause()" in said


def test_a_test_that_forgets_a_process_fails_for_it(tmp_path: Path) -> None:
    said = play(
        tmp_path,
        """
children = []

def test_it():
    children.append(start(SLEEPS))
""",
    )

    assert "2 passed, 1 error" in said
    assert "the test has left behind:" in said


def test_children_of_children_count(tmp_path: Path) -> None:
    said = play(
        tmp_path,
        """
def test_it():
    middle = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
    child = start(middle, SLEEPS)
    child.wait()
    child.stdout.close()
""",
    )

    assert "2 passed, 1 error" in said


def test_what_a_fixture_of_the_module_has_started_lives_on(tmp_path: Path) -> None:
    said = play(
        tmp_path,
        """
import pytest

@pytest.fixture(scope="module")
def child():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.communicate()

def test_it(child):
    pass

def test_it_again(child):
    assert child.poll() is None
""",
    )

    assert "3 passed" in said


@pytest.mark.parametrize("fails", [False, True])
def test_a_session_that_is_left_open_is_closed(tmp_path: Path, fails: bool) -> None:
    said = play(
        tmp_path,
        f"""
import gradwire.threads.signals

class Session:
    def close(self, reason):
        gradwire.threads.signals.forget(self)
    def __repr__(self):
        return "a session of somebody"

def test_it():
    gradwire.threads.signals.close_at_exit(Session(), lambda: None)
    assert not {fails}
""",
    )

    assert ("1 failed, 1 passed" if fails else "2 passed, 1 error") in said
    assert "an open session: a session of somebody" in said
