"""``gradwire operate``: an order to a running master, whose answer goes to stdout."""

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from gradwire.cli.master_http import HTTP_DEFAULT, HttpUrl, MasterHttp, read_token
from gradwire.errors import UsageError

STATUS: Final = "status"


def operate(
    action: Annotated[
        str,
        typer.Argument(
            help="What to do. status: show the workers. drain: admit no more workers, and stop "
            "when the last one has left. resume: admit workers again. deny NAME: accept no key of "
            "this name. admit NAME: accept such keys again. release NAME: end a quarantine. expel "
            "NAME: close a connection. checkpoint: write one. stop-training: tell all scripts to "
            "end; those with a loop of their own have to look at session.stopping. pause-items, "
            "resume-items: grant no items of session.items(), grant them again. pause-items "
            "EPOCHS: none of later epochs. end-run: send the workers away; the next one to join "
            "begins another run.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Which worker, by the name in its key; for release and expel, also by rank. For "
            "pause-items, how many epochs.",
            show_default=False,
        ),
    ] = None,
    *,
    run: Annotated[
        str | None,
        typer.Option(
            envvar="GRADWIRE_RUN",
            metavar="NAME",
            help="Which run, for orders about a run or its workers, where the master serves "
            "several.",
            show_default=False,
        ),
    ] = None,
    http: HttpUrl = HTTP_DEFAULT,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="GRADWIRE_TOKEN_FILE",
            metavar="FILE",
            help="The token of the master's --http-operator-token-file; for status, that of its "
            "--http-token-file is enough. A master without keys on this machine asks for none.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Give a running master an order.

    Shows the master's answer; the status is JSON. Changes last until the master ends.
    Exit status: 0 done, 4 refused, 5 no answer.
    """
    master = MasterHttp(http, read_token(token_file))
    if action != STATUS:
        typer.echo(master.order(action, name or "", run))
        return
    if name is not None:
        raise UsageError(f"{STATUS} takes no name: leave out {name!r}")
    typer.echo(json.dumps(master.overview(), ensure_ascii=False))
