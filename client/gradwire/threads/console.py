"""`Console`: what a worker logs goes to stderr, where its script has set up no logging.

A library leaves logging to its user. Most training scripts set up none, and a worker that looks for
its master, waits for others or has lost them would then be silent. So `join` gives the ``gradwire``
logger a handler, if neither that logger nor the root logger has one. If the script sets up logging
afterwards, the handler goes.
"""

import logging
import sys
from typing import Final

LOGGER: Final = logging.getLogger("gradwire")


class Console(logging.Handler):
    """Writes lines to stderr."""

    def __init__(self) -> None:
        super().__init__()
        self._sets_level = LOGGER.level == logging.NOTSET

    def set_level(self, level: str) -> None:
        """Let lines be logged from this level on, unless the script has chosen one itself."""
        if self._sets_level:
            LOGGER.setLevel(level.upper())

    def remove(self) -> None:
        """Leave logging to the script."""
        LOGGER.removeHandler(self)
        if self._sets_level:
            LOGGER.setLevel(logging.NOTSET)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a record, unless the script has set up logging meanwhile."""
        if _handlers(without=self):
            self.remove()  # the others write this record as well
            return
        if sys.stderr is None:  # as under pythonw
            return
        try:
            sys.stderr.write(f"{_line(record)}\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def set_up(level: str) -> None:
    """Write what is logged to stderr from now on, unless the script has set up logging.

    Parameters
    ----------
    level : str
        The least severe one that is written, as logging names it.
    """
    console = next((each for each in LOGGER.handlers if isinstance(each, Console)), None)
    if console is None:
        if _handlers():
            return
        console = Console()
        LOGGER.addHandler(console)
    console.set_level(level)


def _line(record: logging.LogRecord) -> str:
    severe = record.levelno >= logging.WARNING
    name = f"{record.levelname.lower()}: " if severe else ""
    line = f"gradwire: {name}{record.getMessage()}"
    if record.exc_info:
        line += "\n" + logging.Formatter().formatException(record.exc_info)
    return line


def _handlers(without: Console | None = None) -> list[logging.Handler]:
    """Return the handlers that write what we log."""
    root = LOGGER.parent
    found = [*LOGGER.handlers, *(root.handlers if root is not None else ())]
    return [each for each in found if each is not without
            and not isinstance(each, logging.NullHandler)]  # fmt: skip
