"""``gradwire top``: the command."""

import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from gradwire.cli.master_http import HTTP_DEFAULT, HttpUrl, MasterHttp, read_token
from gradwire.cli.top.watching import print_lines, show_once, watch
from gradwire.errors import UsageError


def top(
    *,
    run: Annotated[
        str | None,
        typer.Option(
            envvar="GRADWIRE_RUN",
            metavar="NAME",
            help="The run to show; all without it.",
            show_default=False,
        ),
    ] = None,
    http: HttpUrl = HTTP_DEFAULT,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="GRADWIRE_TOKEN_FILE",
            metavar="FILE",
            help="The token of the master's --http-token-file.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            help="How often to ask the master: in a terminal every second, elsewhere every ten.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show one picture, and end.")] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="With --once: write what the master says, as one object of JSON."
        ),
    ] = False,
) -> None:
    """Show a master's runs and workers, live: speed, loss, states, events.

    In a terminal the picture changes until q or Ctrl-C; elsewhere there is a line for each run. A
    master that stops answering is asked again. Exit status: 0 done, 2 wrong usage, 4 refused, 5 no
    answer.
    """
    if as_json and not once:
        raise UsageError("--json is for one picture: write --once --json")
    master = MasterHttp(http, read_token(token_file))
    console = Console(highlight=False, markup=False, emoji=False)
    if once:
        show_once(master, run, console, as_json=as_json)
        return
    signal.signal(signal.SIGTERM, _interrupt)  # the terminal is given back as for Ctrl-C
    with suppress(KeyboardInterrupt):
        if console.is_terminal and not console.is_dumb_terminal:
            watch(master, run, console, every or 1.0)
        else:
            print_lines(master, run, console, every or 10.0)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
