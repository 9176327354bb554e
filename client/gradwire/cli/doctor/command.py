"""``gradwire doctor``: the command."""

import asyncio
import json as json_text
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gradwire.cli.doctor import verdicts
from gradwire.cli.doctor.checks import EXIT_STATUS, Check, State, show, worst
from gradwire.cli.doctor.probes import Destination, probe, repeat_handshake
from gradwire.errors import UnreachableError, UsageError
from gradwire.settings.credentials import credentials_of
from gradwire_protocol import Credentials, Role
from gradwire_udp import open_socket, resolve_all
from gradwire_udp.files.keys import WORKER_CREDENTIAL, credential, read_keys
from gradwire_udp.udp.socket_buffers import BUFFER_BYTES, granted_buffers


def doctor(
    *,
    master: Annotated[
        str | None,
        typer.Option(
            envvar="GRADWIRE_MASTER",
            metavar="HOST:PORT",
            help="A master. Without it, only this machine is checked.",
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(envvar="GRADWIRE_KEY_FILE", help="A worker's key, or a run key."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what is wrong with this machine, or between it and a master, and what to do about it.

    Each line is ok, slow or broken. A running training is not disturbed. It takes some ten
    seconds. Exit status: 0 all is ok, 1 something is slow, 2 wrong usage, 5 something is broken.
    """
    with open_socket(("127.0.0.1", 0)) as sock:
        checks = [verdicts.versions(), verdicts.judge_buffers(*granted_buffers(sock, BUFFER_BYTES))]
    if master is None:
        checks.append(Check("network", State.UNMEASURED, "say --master HOST:PORT"))
    else:
        checks += _network_checks(master, key_file)
    if json:
        plain = {"verdict": worst(checks).value, "checks": [asdict(check) for check in checks]}
        typer.echo(json_text.dumps(plain, indent=2))
    else:
        show(checks)
    raise typer.Exit(EXIT_STATUS[worst(checks)])


def _network_checks(master: str, key_file: Path | None) -> list[Check]:
    """Check the key, and the path to a master."""
    path = key_file or credential(os.environ, WORKER_CREDENTIAL)
    try:
        found = None if path is None else read_keys(path)
    except UsageError as error:
        remedy = "make a key with `gradwire keygen`, or name another file"
        return [Check("key", State.BROKEN, str(error), remedy)]
    key = found[0] if isinstance(found, list) else found
    checks = [verdicts.judge_key(key)]
    try:
        destinations = resolve_all(master)
    except UnreachableError as error:
        remedy = "check the spelling and the DNS server of this machine, or write the IP address"
        return [*checks, Check("name", State.BROKEN, str(error), remedy)]
    checks.append(verdicts.judge_names(master, destinations))
    credentials = credentials_of(key, "", "auto", role=Role.WORKER)
    return [*checks, *asyncio.run(_path_checks(destinations, credentials))]


async def _path_checks(
    destinations: Sequence[Destination], credentials: Credentials | None
) -> list[Check]:
    """Check the path to a master."""
    # One by one: a master tells the attempts with one key apart by their times.
    reached = [await probe(each, credentials) for each in destinations]
    checks = [verdicts.judge_reached(reached, has_key=credentials is not None)]
    best = verdicts.best_of(reached)
    if best.transport == "udp":
        answers = await repeat_handshake(best.destination, credentials)
        checks += [verdicts.judge_round_trip(answers), verdicts.judge_loss(answers)]
    return checks
