"""What a worker writes to stderr, and when it leaves that to its script."""

import io
import logging
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gradwire.threads import console
from gradwire.threads.console import ERASE_LINE, LOGGER


class Stream(io.StringIO):
    """What stands for stderr."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture(autouse=True)
def nothing_set_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the logger a root without the handlers of pytest."""
    monkeypatch.setattr(LOGGER, "parent", logging.RootLogger(logging.WARNING))
    monkeypatch.setattr(LOGGER, "handlers", [logging.NullHandler()])
    before = LOGGER.level
    LOGGER.setLevel(logging.NOTSET)
    yield
    LOGGER.setLevel(before)


@pytest.fixture(params=[False, True], ids=["file", "terminal"])
def stderr(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stream:
    stream = Stream(is_terminal=request.param)
    monkeypatch.setattr("gradwire.threads.console.sys", SimpleNamespace(stderr=stream))
    return stream


terminal = pytest.mark.parametrize("stderr", [True], indirect=True)
logger = logging.getLogger("gradwire.session")


def test_where_no_logging_is_set_up_lines_go_to_stderr(stderr: Stream) -> None:
    console.set_up("info")

    logger.info("rank %d joined", 3)
    logger.debug("too much")

    assert stderr.getvalue() == "gradwire: rank 3 joined\n"


def test_the_cause_of_an_error_is_shown(stderr: Stream) -> None:
    console.set_up("info")

    logger.error("failed", exc_info=ValueError("the cause"))

    assert "ValueError: the cause" in stderr.getvalue()


def script_s_own(logger: logging.Logger | None) -> io.StringIO:
    """Give a logger a handler of the script; return where it writes."""
    assert logger is not None
    own = io.StringIO()
    logger.addHandler(logging.StreamHandler(own))
    return own


@pytest.mark.parametrize("of_root", [True, False], ids=["root", "gradwire"])
def test_a_script_with_logging_of_its_own_keeps_it(stderr: Stream, of_root: bool) -> None:
    own = script_s_own(LOGGER.parent if of_root else LOGGER)

    console.set_up("info")
    logger.warning("lost")

    assert console.current() is None
    assert LOGGER.level == logging.NOTSET
    assert stderr.getvalue() == ""
    assert own.getvalue() == "lost\n"


def test_a_script_that_sets_up_logging_later_has_it_from_then_on(stderr: Stream) -> None:
    console.set_up("info")
    own = script_s_own(LOGGER.parent)

    logger.warning("lost")
    logger.info("back")  # the root logger's level counts again

    assert stderr.getvalue() == ""
    assert own.getvalue() == "lost\n"


@terminal
def test_lines_go_above_the_one_that_changes(stderr: Stream) -> None:
    console.set_up("info")
    shown = console.current()
    assert shown is not None

    shown.show("waiting")
    logger.info("rank 3 joined")
    shown.show("")

    waiting = f"{ERASE_LINE}gradwire: waiting"
    assert stderr.getvalue() == (
        f"{waiting}{ERASE_LINE}gradwire: rank 3 joined\ngradwire: waiting{ERASE_LINE}"
    )


@terminal
def test_the_line_that_changes_is_no_longer_than_a_line(stderr: Stream) -> None:
    console.set_up("info")
    shown = console.current()
    assert shown is not None

    shown.show(500 * "x")

    assert len(stderr.getvalue()) == len(ERASE_LINE) + console.COLUMNS - 1


def test_without_stderr_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under pythonw."""
    monkeypatch.setattr("gradwire.threads.console.sys", SimpleNamespace(stderr=None))
    console.set_up("info")

    logger.warning("lost")

    assert not console.is_terminal()


def test_what_cannot_be_written_ends_no_training(
    stderr: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    console.set_up("info")
    stderr.close()

    logger.warning("lost")
    shown = console.current()
    assert shown is not None
    shown.show("waiting")
