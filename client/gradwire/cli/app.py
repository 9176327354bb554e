"""The command line: ``gradwire <command>``, and its log.

Data goes to stdout, logs and messages to stderr. Exit status: 0 done, 2 wrong usage, 3 address in
use, 4 refused by the other side, 5 unreachable.

`commands` imports a command only when it runs: some load a compiler or a web server, and every
process of a run starts here.
"""

import atexit
import gc
import io
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import typer

from gradwire.cli.commands import Commands
from gradwire.cli.launch.master import MasterEndedError
from gradwire.errors import GradwireError, RefusedError, TransportError

EXIT_USAGE: Final = 2
EXIT_REFUSED: Final = 4
EXIT_UNREACHABLE: Final = 5

app = typer.Typer(
    name="gradwire",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TEXT: Final = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")

REPEAT_SECONDS: Final = 1.0
"""Least time between two warnings or errors of one class: a peer that can provoke them could
otherwise fill a disk."""


def _show_version(show: bool) -> None:
    if show:
        from importlib.metadata import version

        typer.echo(version("gradwire"))
        raise typer.Exit


@app.callback()
def configure(
    *,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(envvar="GRADWIRE_LOG_LEVEL", help="Least severe message to log."),
    ] = "info",
    log_format: Annotated[
        Literal["text", "json"],
        typer.Option(envvar="GRADWIRE_LOG_FORMAT", help="For people, or one object per line."),
    ] = "text",
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Train one model on several machines over the network you have."""
    del show_version
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TEXT)
    handler.addFilter(RepeatFilter())
    root = logging.getLogger("gradwire")
    root.setLevel(log_level.upper())
    root.addHandler(handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    # At its end Python collects garbage in all modules, which takes longer than most commands.
    # Frozen objects are left out.
    atexit.register(gc.freeze)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Workers may print characters that the terminal's encoding does not have.
            stream.reconfigure(errors="backslashreplace")
    try:
        app(args=arguments, standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except GradwireError as error:
        typer.echo(f"gradwire: {error}", err=True)
        return _exit_status(error)
    return 0


def _exit_status(error: GradwireError) -> int:
    match error:
        case RefusedError():
            return EXIT_REFUSED
        case TransportError():
            return EXIT_UNREACHABLE
        case MasterEndedError():
            return error.status or EXIT_USAGE
    return EXIT_USAGE


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class RepeatFilter(logging.Filter):
    """Lets one warning or error of each class through every second, and counts the others.

    A class is a logger, a level, and a text without its values; so there are at most as many as
    lines of code that log. The next line of a class says how many were left out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be logged."""
        if record.levelno < logging.WARNING:
            return True
        key = (record.name, record.levelno, str(record.msg))
        now = self._clock()
        at, left_out = self._said.get(key, (float("-inf"), 0))
        if now - at < REPEAT_SECONDS:
            self._said[key] = at, left_out + 1
            return False
        self._said[key] = now, 0
        if left_out:
            record.msg = f"{record.getMessage()} (and {left_out} more like this before)"
            record.args = ()
        return True
