"""What a worker writes to stderr: what is logged, and how an error of ours ends a script.

A library leaves logging to its user. Most training scripts set up none, and a worker that looks for
its master, waits for others or has lost them would then be silent. So `join` gives the ``gradwire``
logger a handler, if neither that logger nor the root logger has one. If the script sets up logging
afterwards, the handler goes.

A traceback through our files tells nobody what to change, and has the cause at its end. So where
the script has set no hook of its own, an error of ours that nothing catches is shown as one line
with the cause, and the lines of the script that led there. All other errors are shown as ever; of
Ctrl-C in the middle of a wait, our own lines are left out.
"""

import logging
import sys
import traceback
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import Final

from gradwire.errors import GradwireError

LOGGER: Final = logging.getLogger("gradwire")

PACKAGES: Final = frozenset(
    {"gradwire", "gradwire_codecs", "gradwire_protocol", "gradwire_udp", "gradwire_server"}
)


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


def show_causes_first() -> None:
    """Have our errors shown so, unless something else shows errors already."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    is_alone = error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
    is_ours = isinstance(error, GradwireError) and is_alone
    frames = traceback.extract_tb(trace)
    folders = _folders()
    theirs = list(takewhile(lambda frame: not _is_in(frame.filename, folders), frames))
    is_within = len(theirs) < len(frames)
    if not theirs or not (is_ours or (kind is KeyboardInterrupt and is_within)):
        sys.__excepthook__(kind, error, trace)
        return
    lines = [f"gradwire: {kind.__name__}: {error}" if is_ours else kind.__name__]
    lines += getattr(error, "__notes__", [])
    lines += [
        f"  at {frame.filename}, line {frame.lineno}: {frame.line}".removesuffix(": ")
        for frame in reversed(theirs)
    ]
    sys.stderr.write("\n".join(lines) + "\n")


def _folders() -> list[Path]:
    """Return the folders of our packages, as far as they are imported."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in PACKAGES)
    return [Path(file).parent for file in files if file]


def _is_in(file: str, folders: list[Path]) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in folders)
