"""``gradwire operate``: an order to a running master, whose answer goes to stdout."""

import os
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final

import typer

from gradwire.cli.operator import Operator
from gradwire.errors import UnreachableError, UsageError
from gradwire.settings.credentials import credentials_of
from gradwire.settings.settings import Settings, resolve_settings
from gradwire.threads.network import NetworkThread
from gradwire_protocol.crypto.keys import Role
from gradwire_protocol.messages.fields import WORKER_NAME_CHARACTERS_MAX
from gradwire_protocol.messages.layout import NAME_CHARACTERS_MAX
from gradwire_protocol.messages.orders import Action, Order
from gradwire_udp import resolve_all, show_addresses

ANSWER_SECONDS: Final = 10.0
"""Time for the answer of a master that is reached: orders are carried out at once."""

KEYLESS_SECONDS: Final = 2.0
"""Time for the first answer of a master on this machine to an operator without a key: one that has
keys says nothing, and one that has none answers at once."""

MAKE_KEY: Final = (
    "make one with `gradwire keygen --worker NAME --role operator --from run.key`, and say "
    "--key-file NAME.key"
)


def operate(
    action: Annotated[
        Action,
        typer.Argument(
            help="What to do. status: show the workers. drain: let no more workers in, and stop "
            "when the last one has left. resume: let workers in again. deny NAME: accept no key of "
            "this name. admit NAME: accept such keys again. release NAME: end a quarantine. expel "
            "NAME: close a connection. checkpoint: write one. stop-training: tell all scripts to "
            "end; those with a loop of their own have to look at session.stopping. pause-items, "
            "resume-items: grant no items of session.items(), grant them again. "
            "end-run: send the workers away; the next one to join "
            "begins another run.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Which worker, by the name in its key; for release and expel, also by rank.",
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
    master: Annotated[
        str,
        typer.Option(
            envvar="GRADWIRE_MASTER",
            metavar="HOST:PORT",
            help="Where the master listens.",
            show_default=False,
        ),
    ],
    key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="GRADWIRE_KEY_FILE",
            metavar="PATH",
            help="The key of an operator (gradwire keygen --role operator), or a run key.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Give a running master an order.

    Shows the master's answer; the status is JSON. Changes last until the master ends.
    Exit status: 0 done, 4 refused, 5 no answer.
    """
    shown = name or ""
    for what, text, most in (
        ("name", shown, WORKER_NAME_CHARACTERS_MAX),
        ("run", run or "", NAME_CHARACTERS_MAX),
    ):
        if len(text) > most or not text.isprintable():
            raise UsageError(
                f"{what} {text[:most]!r}; it has to be printable, with at most {most} characters"
            )
    settings = resolve_settings({"master": master, "key_file": key_file}, os.environ)
    typer.echo(answer_to(Order(action, shown, run), settings))


def answer_to(order: Order, settings: Settings) -> str:
    """Give the master an order, and return its answer.

    Raises
    ------
    UsageError
        If the settings have no operator's key, and the master may want one.
    RefusedError
        If the master does not carry out the order.
    TransportError
        If there is no answer.
    """
    credentials = credentials_of(
        settings.key, settings.key_file, settings.cipher, role=Role.OPERATOR
    )
    addresses = resolve_all(settings.master)
    key = None if credentials is None else credentials.key
    if key is None and not all(ip_address(address[0]).is_loopback for _, address in addresses):
        raise UsageError(
            f"an operator needs a key, but for a master without keys on loopback: {MAKE_KEY}"
        )
    if key is not None and key.role is not Role.OPERATOR:
        raise UsageError(
            f"{key.name} has the key of role {key.role.name.lower()}: orders take one made with "
            "`gradwire keygen --role operator`"
        )
    shown = show_addresses(addresses)
    operator = Operator(order, shown)
    if key is None:
        seconds = min(settings.connect_timeout_seconds, KEYLESS_SECONDS)
        settings = replace(settings, connect_timeout_seconds=seconds)
    network = NetworkThread(settings, operator, operator, credentials)
    try:
        network.start(addresses)
    except OSError as error:
        raise UnreachableError(f"no socket to reach {shown} with: {error}") from None
    try:
        return operator.wait(settings.connect_timeout_seconds + ANSWER_SECONDS)
    except UnreachableError:
        if key is None and not operator.is_refused:
            raise UnreachableError(
                f"the master at {shown} does not answer an operator without a key, as one with "
                f"keys does not: {MAKE_KEY}"
            ) from None
        raise
    finally:
        network.stop()
