"""The command line: ``gradwire <command>``.

Data goes to stdout, logs and messages to stderr. Exit status: 0 done, 2 wrong usage, 3 address in
use, 4 refused by the other side, 5 unreachable. Commands of other parts, such as ``master``, are
found through the entry points of the group ``gradwire.commands``: the client does not import the
server.
"""

import io
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from typing import Annotated, Final, Literal

import typer

from gradwire.demo.command import demo
from gradwire.errors import GradwireError, RefusedError, TransportError
from gradwire.estimate.command import estimate_command
from gradwire.keygen_command import keygen
from gradwire.logs import JsonFormatter, RepeatFilter, TextFormatter
from gradwire.operate_command import operate
from gradwire.processes import MasterEndedError
from gradwire.run_command import run

EXIT_USAGE: Final = 2
EXIT_REFUSED: Final = 4
EXIT_UNREACHABLE: Final = 5

app = typer.Typer(
    name="gradwire",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(show: bool) -> None:
    if show:
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
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(RepeatFilter())
    root = logging.getLogger("gradwire")
    root.setLevel(log_level.upper())
    root.addHandler(handler)


app.command("run")(run)
app.command("demo")(demo)
app.command("keygen")(keygen)
app.command("operate")(operate)
app.command("estimate")(estimate_command)

for entry_point in sorted(entry_points(group="gradwire.commands"), key=lambda e: e.name):
    app.command(entry_point.name)(entry_point.load())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Workers print what they like, and the terminal's encoding may not have it.
            stream.reconfigure(errors="backslashreplace")
    try:
        app(args=arguments, standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except RefusedError as error:
        typer.echo(f"gradwire: {error}", err=True)
        return EXIT_REFUSED
    except TransportError as error:
        typer.echo(f"gradwire: {error}", err=True)
        return EXIT_UNREACHABLE
    except MasterEndedError as error:
        typer.echo(f"gradwire: {error}", err=True)
        return error.status or EXIT_USAGE
    except GradwireError as error:
        typer.echo(f"gradwire: {error}", err=True)
        return EXIT_USAGE
    return 0
