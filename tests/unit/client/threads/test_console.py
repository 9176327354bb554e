"""What a worker writes to stderr, and when it leaves that to its script."""

import io
import logging
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gradwire.threads import console
from gradwire.threads.console import LOGGER


@pytest.fixture(autouse=True)
def nothing_set_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the logger a root without the handlers of pytest."""
    monkeypatch.setattr(LOGGER, "parent", logging.RootLogger(logging.WARNING))
    monkeypatch.setattr(LOGGER, "handlers", [logging.NullHandler()])
    before = LOGGER.level
    LOGGER.setLevel(logging.NOTSET)
    yield
    LOGGER.setLevel(before)


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr("gradwire.threads.console.sys", SimpleNamespace(stderr=stream))
    return stream


logger = logging.getLogger("gradwire.session")


def test_where_no_logging_is_set_up_lines_go_to_stderr(stderr: io.StringIO) -> None:
    console.set_up("info")

    logger.info("rank %d joined", 3)
    logger.debug("too much")

    assert stderr.getvalue() == "gradwire: rank 3 joined\n"


def test_the_cause_of_an_error_is_shown(stderr: io.StringIO) -> None:
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
def test_a_script_with_logging_of_its_own_keeps_it(stderr: io.StringIO, of_root: bool) -> None:
    own = script_s_own(LOGGER.parent if of_root else LOGGER)

    console.set_up("info")
    logger.warning("lost")

    assert LOGGER.level == logging.NOTSET
    assert stderr.getvalue() == ""
    assert own.getvalue() == "lost\n"


def test_a_script_that_sets_up_logging_later_has_it_from_then_on(stderr: io.StringIO) -> None:
    console.set_up("info")
    own = script_s_own(LOGGER.parent)

    logger.warning("lost")
    logger.info("back")  # the root logger's level counts again

    assert stderr.getvalue() == ""
    assert own.getvalue() == "lost\n"


def test_without_stderr_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under pythonw."""
    monkeypatch.setattr("gradwire.threads.console.sys", SimpleNamespace(stderr=None))
    console.set_up("info")

    logger.warning("lost")


def test_what_cannot_be_written_ends_no_training(
    stderr: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    console.set_up("info")
    stderr.close()

    logger.warning("lost")
