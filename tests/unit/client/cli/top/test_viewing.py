"""`Viewing` beside log lines, failures of its own, and more runs than are read."""

import asyncio
import io
import logging
from collections.abc import Iterator

import pytest
from rich.console import Console

from gradwire.cli.top.documents import RUNS_MAX, Documents, run_names
from gradwire.cli.top.figures import Picture, loss_name
from gradwire.cli.top.keys import Key
from gradwire.cli.top.viewing import Viewing
from support.api_documents import a_run, documents, overview, worker

HALF = "\ud800"
"""Half of a character, which JSON can write, and UTF-8 cannot."""


class LoggingReader:
    """Logs as sessions do, and fails in the end."""

    place = "127.0.0.1:40123"
    every_seconds = 0.0

    def __init__(self, found: Documents, reads: int) -> None:
        self._found = found
        self._reads = reads

    async def read(self, run: str | None, *, details: bool = True) -> Documents:
        logging.getLogger("gradwire.join").warning("joined")
        if self._reads == 0:
            raise ZeroDivisionError
        self._reads -= 1
        return self._found


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Return what a handler of ``gradwire`` writes, as the command has one."""
    lines = io.StringIO()
    logger = logging.getLogger("gradwire")
    handler = logging.StreamHandler(lines)
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def viewing(found: Documents, reads: int = 3) -> tuple[Viewing, io.StringIO]:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=80, height=24, color_system=None)
    return Viewing(LoggingReader(found, reads), None, console), shown


@pytest.mark.parametrize("way", ["watch", "print_lines"])
async def test_log_lines_stay_out_and_a_failure_ends_the_picture(
    way: str,
    lines: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    view, shown = viewing(documents(a_run("bert", [worker(0)])))

    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(getattr(view, way)(), 10)

    assert "bert" in shown.getvalue()
    assert lines.getvalue() == capsys.readouterr().err == ""

    logging.getLogger("gradwire.join").warning("afterwards")
    assert lines.getvalue() == "afterwards\n"


def test_a_name_that_cannot_be_sent_is_left_out() -> None:
    runs = [a_run("bert", []), a_run(f"x{HALF}", [])]

    assert run_names(overview(runs)) == ["bert"]
    assert [run.key for run in Picture.of(Documents(overview(runs))).runs] == ["bert"]
    assert loss_name([f"loss/{HALF}", "train/loss"]) == "train/loss"


async def test_a_run_that_was_not_read_cannot_be_chosen() -> None:
    names = [f"run{n}" for n in range(RUNS_MAX + 4)]
    found = documents(*(a_run(name, [worker(0)]) for name in names))
    for name in names[RUNS_MAX:]:
        del found.runs[name]
    view, _ = viewing(found)
    await view.show_once()

    for _ in names[:RUNS_MAX]:
        view._on_key(Key.NEXT)
        assert view._view.workers
    assert view._view.run == names[RUNS_MAX - 1]

    view._on_key(Key.NEXT)
    assert view._view.run is None
