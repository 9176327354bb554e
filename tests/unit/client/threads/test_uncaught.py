"""An error of ours that a script does not catch: its cause first, and no frame of ours."""

import subprocess
import sys

import pytest

ERROR = """
import gradwire
from gradwire.errors import UsageError
from gradwire.threads.console import show_causes_first
show_causes_first()
def train():
    gradwire.join(object(), master="127.0.0.1:9")
"""


def stderr_of(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stderr.splitlines()


def test_the_cause_is_the_first_line_and_the_scripts_own_lines_follow() -> None:
    cause, *places = stderr_of(ERROR + "train()")

    assert cause.startswith("gradwire: UsageError: the target has to be")
    assert [place.partition(": ")[0] for place in places] == [
        "  at <string>, line 7",
        "  at <string>, line 8",
    ]


@pytest.mark.parametrize(
    "code",
    [
        ERROR + "raise LookupError('theirs')",
        ERROR + "raise UsageError('ours, with a cause') from LookupError('theirs')",
        ERROR + "try: train()\nfinally: raise UsageError('ours, after another')",
        ERROR + "import sys; sys.excepthook = lambda *error: sys.__excepthook__(*error); train()",
    ],
    ids=["another error", "a cause", "after another", "a hook of its own"],
)
def test_everything_else_is_shown_as_ever(code: str) -> None:
    assert any(line.startswith("Traceback") for line in stderr_of(code))


def test_ctrl_c_in_the_middle_of_a_wait_shows_where_the_script_was() -> None:
    code = (
        ERROR
        + """
from gradwire.cli.launch.processes import how
class Status:
    def __sub__(self, other): raise KeyboardInterrupt
how(Status())
"""
    )

    said = stderr_of(code)

    assert said[0] == "KeyboardInterrupt"
    assert said[1:] == ["  at <string>, line 12"]
