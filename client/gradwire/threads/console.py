"""`Console`: what a worker logs goes to stderr, where its script has set up no logging.

A library leaves logging to its user. Most training scripts set up none, and a worker that looks for
its master, waits for others or has lost them would then be silent. So `join` gives the ``gradwire``
logger a handler, if neither that logger nor the root logger has one. If the script sets up logging
afterwards, the handler goes.
"""

import logging
import os
import sys
from typing import Final, TextIO

LOGGER: Final = logging.getLogger("gradwire")

COLOURS: Final = {logging.WARNING: "33", logging.ERROR: "31"}
"""Of lines in a terminal, by level; none where NO_COLOR is set, as https://no-color.org asks."""

COLUMNS: Final = 80
"""Of a terminal that does not say how wide it is."""

ERASE_LINE: Final = "\r\x1b[2K"


class Console(logging.Handler):
    """Writes lines and, in a terminal, one line below them that changes."""

    def __init__(self) -> None:
        super().__init__()
        self._status = ""
        """What the line that changes shows; empty if there is none."""
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
        try:
            self._write(self._line(record) + "\n")
        except Exception:
            self.handleError(record)

    def show(self, status: str) -> None:
        """Show a text in the line that changes; an empty one takes the line away."""
        self.acquire()
        try:
            self._status = status and self._clipped(f"gradwire: {status}")
            self._write("", erase=True)
        except (OSError, ValueError):  # stderr is closed
            self._status = ""
        finally:
            self.release()

    # Private.

    def _write(self, lines: str, *, erase: bool = False) -> None:
        stream: TextIO | None = sys.stderr
        if stream is not None:
            erase = erase or bool(self._status)
            stream.write(ERASE_LINE * erase + lines + self._status)
            stream.flush()

    def _line(self, record: logging.LogRecord) -> str:
        severe = record.levelno >= logging.WARNING
        name = f"{record.levelname.lower()}: " if severe else ""
        line = f"gradwire: {name}{record.getMessage()}"
        if record.exc_info:
            line += "\n" + logging.Formatter().formatException(record.exc_info)
        colour = COLOURS.get(record.levelno)
        if colour and is_terminal() and not os.environ.get("NO_COLOR"):
            line = f"\x1b[{colour}m{line}\x1b[0m"
        return line

    def _clipped(self, text: str) -> str:
        """Return as much of a text as one line of the terminal takes."""
        try:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
        except (OSError, ValueError):
            columns = COLUMNS
        return text[: max(columns - 1, 1)]


def is_terminal() -> bool:
    """Return whether stderr is one, so that a line can change."""
    return sys.stderr is not None and sys.stderr.isatty()


def set_up(level: str) -> None:
    """Write what is logged to stderr from now on, unless the script has set up logging.

    Parameters
    ----------
    level : str
        The least severe one that is written, as logging names it.
    """
    console = current()
    if console is None:
        if _handlers():
            return
        console = Console()
        LOGGER.addHandler(console)
    console.set_level(level)


def current() -> Console | None:
    """Return the handler, if there is one."""
    return next((each for each in LOGGER.handlers if isinstance(each, Console)), None)


def _handlers(without: Console | None = None) -> list[logging.Handler]:
    """Return the handlers that write what we log."""
    root = LOGGER.parent
    found = [*LOGGER.handlers, *(root.handlers if root is not None else ())]
    return [each for each in found if each is not without
            and not isinstance(each, logging.NullHandler)]  # fmt: skip
