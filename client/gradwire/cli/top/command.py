"""``gradwire top``: the command."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from gradwire.cli.launch.signals import run_until_signal
from gradwire.errors import UsageError
from gradwire_protocol.messages.layout import NAME_CHARACTERS_MAX

HTTP: Final = "127.0.0.1:40124"
"""Where a master serves its page unless told otherwise."""


def top(
    context: typer.Context,
    *,
    http: Annotated[
        str | None,
        typer.Option(
            envvar="GRADWIRE_HTTP",
            metavar="HOST:PORT",
            help="Where the master serves its page, as its own --http says; also a URL such as "
            f"https://master.example. Without it, {HTTP}.",
            show_default=False,
        ),
    ] = None,
    http_token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="GRADWIRE_HTTP_TOKEN_FILE",
            metavar="FILE",
            help="File with the bearer token of the master's --http-token-file.",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The run to show; all without it.", show_default=False),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Show one picture with all workers, and end.")
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="With --once: write the documents of the master's API as one JSON object.",
        ),
    ] = False,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Ask as an operator instead, where workers reach the master: for masters whose "
            "page cannot be reached. Shows what `gradwire operate status` does.",
            show_default=False,
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="GRADWIRE_KEY_FILE",
            metavar="PATH",
            help="With --master: the key of an operator (gradwire keygen --role operator), or a "
            "run key.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show a master's runs and workers, live: speed, loss, states, what has happened.

    In a terminal the picture changes until q or Ctrl-C end it; the arrows, page up and page down
    scroll, tab shows another run. Where stdout is no terminal, there is a line for each run about
    once a second. A master that stops answering is asked again, and its last picture stays. Exit
    status: 0 done, 2 wrong usage, 4 refused, 5 no answer.
    """
    from gradwire.cli.top.viewing import Viewing  # after --help

    if json and not once:
        raise UsageError("--json is for one picture: write --once --json")
    check_run(run)
    if master is not None and is_typed(context, "http"):
        raise UsageError(
            f"--master {master} asks as an operator, and --http {http} the master's page: leave "
            "one of them out"
        )
    console = Console(highlight=False, markup=False, emoji=False)

    async def show(viewing: Viewing) -> None:
        if json:
            await viewing.show_json()
        elif once:
            await viewing.show_once()
        elif console.is_terminal and not console.is_dumb_terminal:
            await viewing.watch()
        else:
            await viewing.print_lines()

    if master is not None:
        from gradwire.cli.top.order_reader import OrderReader
        from gradwire.settings.settings import resolve_settings

        settings = resolve_settings({"master": master, "key_file": key_file}, os.environ)
        run_until_signal(show(Viewing(OrderReader(settings), run, console)))
        return

    from gradwire.cli.top.http_reader import HttpReader
    from gradwire_udp.files.tokens import read_token

    token = None if http_token_file is None else read_token(http_token_file)
    reader = HttpReader(http or HTTP, token)

    async def show_from_page() -> None:
        async with reader:
            await show(Viewing(reader, run, console))

    run_until_signal(show_from_page())


def check_run(run: str | None) -> None:
    """Refuse what can be no name of a run."""
    from gradwire.cli.top.documents import is_name
    from gradwire.cli.top.text import plain

    if run is None:
        return
    if not 0 < len(run) <= NAME_CHARACTERS_MAX:
        raise UsageError(
            f"--run has {len(run)} characters; names of runs have 1 to {NAME_CHARACTERS_MAX}"
        )
    if not is_name(run):
        raise UsageError(f"--run {plain(run)!r} is no UTF-8, which names of runs are")


def is_typed(context: typer.Context, name: str) -> bool:
    """Return whether an option stands on the command line, and not in the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
