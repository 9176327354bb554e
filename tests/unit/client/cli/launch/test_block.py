"""`Block` in a terminal, beside lines of other processes."""

import io

import pyte
import pytest

from gradwire.cli.launch.block import Block

COLUMNS = 40


class Stream(io.StringIO):
    """A terminal, or a file, that passes on what is written."""

    def __init__(self, seen: pyte.Stream, *, is_terminal: bool = True) -> None:
        super().__init__()
        self._seen = seen
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        if self._is_terminal:
            self._seen.feed(text.replace("\n", "\r\n"))
        return super().write(text)


@pytest.fixture
def screen() -> pyte.Screen:
    return pyte.Screen(COLUMNS, 10)


def standard_output(screen: pyte.Screen, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Return it; from now on standard error is the same terminal."""
    stream = pyte.Stream(screen)
    monkeypatch.setattr("sys.stderr", Stream(stream))
    monkeypatch.setattr(Block, "columns", COLUMNS - 1)
    return Stream(stream)


def rows(screen: pyte.Screen) -> list[str]:
    return [row.rstrip() for row in screen.display if row.strip()]


def test_lines_go_above_a_block_that_stays_at_the_foot(
    screen: pyte.Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout = standard_output(screen, monkeypatch)
    block = Block()

    block.show(["step 1", "loss 3"])
    block.write(stdout, "[0] one\n")
    block.write(stdout, f"[1] {'x' * 60}\n")
    block.show(["step 2", "loss 2"])
    block.write(stdout, "[0] two\n")

    long = f"[1] {'x' * 60}"
    assert rows(screen) == ["[0] one", long[:40], long[40:], "[0] two", "step 2", "loss 2"]


def test_a_block_that_becomes_lower_or_goes_leaves_nothing(
    screen: pyte.Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout = standard_output(screen, monkeypatch)
    block = Block()
    block.write(stdout, "[0] one\n")

    block.show(["step 1", "loss 3", "bytes"])
    block.show(["step 2"])
    assert rows(screen) == ["[0] one", "step 2"]

    block.show([])
    block.write(stdout, "[0] two\n")
    assert rows(screen) == ["[0] one", "[0] two"]


def test_a_line_of_the_block_is_no_wider_than_the_terminal(
    screen: pyte.Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    standard_output(screen, monkeypatch)
    block = Block()

    block.show(["y" * 100, "\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 100])
    block.show(["end"])

    assert rows(screen) == ["end"]


def test_a_terminal_that_becomes_narrower_keeps_nothing_of_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    narrow = pyte.Screen(COLUMNS // 2, 10)
    stdout = standard_output(narrow, monkeypatch)
    block = Block()
    block.write(stdout, "[0] one\n")
    # What a terminal makes of long lines when it becomes narrower, this one does at once.
    block.show(["x" * (COLUMNS - 1), "", "step 1"])
    assert rows(narrow) == ["[0] one", "x" * 20, "x" * 19, "step 1"]

    monkeypatch.setattr(Block, "columns", COLUMNS // 2 - 1)
    block.show(["step 2"])

    assert rows(narrow) == ["[0] one", "step 2"]


def test_where_stderr_is_no_terminal_there_is_no_block(
    screen: pyte.Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout = standard_output(screen, monkeypatch)
    file = Stream(pyte.Stream(screen), is_terminal=False)
    monkeypatch.setattr("sys.stderr", file)
    block = Block()

    block.show(["step 1"])
    block.write(stdout, "[0] one\n")
    block.write(file, "said\n")

    assert not block.is_live
    assert file.getvalue() == "said\n"
    assert rows(screen) == ["[0] one"]
