"""``gradwire doctor``: the command."""

import asyncio
import json as json_text
import os
from pathlib import Path
from typing import Annotated

import typer

from gradwire.cli.doctor.checks import EXIT_STATUS, Check, State, as_json, show, worst
from gradwire.cli.doctor.machine import machine_checks
from gradwire.cli.doctor.measuring import measure
from gradwire.cli.doctor.reach import (
    Destination,
    best_of,
    judge_loss,
    judge_names,
    judge_reached,
    judge_round_trip,
    probe,
    repeat_handshake,
)
from gradwire.cli.doctor.serving import serve as serve_until_told
from gradwire.errors import ConnectionLostError, UnreachableError, UsageError
from gradwire.session.discovery import find_master
from gradwire.settings.credentials import credentials_of
from gradwire.settings.settings import Settings
from gradwire_protocol import Credentials, IssuingKey, Role, RunKey, WorkerKey
from gradwire_protocol.crypto.keys import FINGERPRINT_BYTES
from gradwire_protocol.messages.admission import split_masters
from gradwire_udp import resolve_all
from gradwire_udp.discovery.announcement import AnnouncementError
from gradwire_udp.files.keys import WORKER_CREDENTIAL, credential, read_keys
from gradwire_udp.sockets import PORT


def doctor(
    *,
    master: Annotated[
        str | None,
        typer.Option(
            envvar="GRADWIRE_MASTER",
            metavar="HOST:PORT",
            help="A master, or where one is announced, or another machine's `gradwire doctor "
            "--serve`. Without it, only this machine is checked.",
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="GRADWIRE_KEY_FILE",
            metavar="PATH",
            help="A worker's key, or a run key. --serve takes a run key.",
        ),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Be the other end until Ctrl-C, where there is no master."),
    ] = False,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where --serve listens.")
    ] = f"0.0.0.0:{PORT}",
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Let --serve listen without a key."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what is wrong with this machine, or between it and a master, and what to do about it.

    Each line is ok, slow or broken. A running training is not disturbed. It takes some ten seconds;
    with --serve at the other end it sends up to 64 MiB each way. Exit status: 0 all is ok, 1
    something is slow, 2 wrong usage, 5 something is broken.
    """
    if serve:
        asyncio.run(serve_until_told(listen, key_file, insecure=insecure))
        return
    checks = list(machine_checks())
    if master is None:
        checks.append(Check("network", State.UNMEASURED, "say --master HOST:PORT"))
    else:
        checks += _network_checks(master, key_file)
    if json:
        typer.echo(json_text.dumps(as_json(checks), indent=2))
    else:
        show(checks)
    raise typer.Exit(EXIT_STATUS[worst(checks)])


def _network_checks(master: str, key_file: Path | None) -> list[Check]:
    """Check the key, and the path to a master."""
    path = key_file or credential(os.environ, WORKER_CREDENTIAL)
    try:
        key = None if path is None else _first(read_keys(path))
    except UsageError as error:
        remedy = "make a key with `gradwire keygen`, or name another file"
        return [Check("key", State.BROKEN, str(error), remedy)]
    checks = [judge_key(key)]
    try:
        found, master = _looked_up(master)
    except (AnnouncementError, UnreachableError) as error:
        remedy = "start the master with --announce, or say --master HOST:PORT"
        return [*checks, Check("announcement", State.BROKEN, str(error), remedy)]
    checks += found
    try:
        destinations = resolve_all(master)
    except UnreachableError as error:
        remedy = "check the spelling and the DNS server of this machine, or write the IP address"
        return [*checks, Check("name", State.BROKEN, str(error), remedy)]
    checks.append(judge_names(master, destinations))
    credentials = credentials_of(key, "", "auto", role=Role.WORKER)
    return [*checks, *asyncio.run(_path_checks(destinations, credentials))]


def _looked_up(master: str) -> tuple[list[Check], str]:
    """Return what was announced at a place, and the address there; no check for an address."""
    _, found = find_master(Settings(master=master), waits_for_start=False)
    if found is None:
        return [], master
    said = found.announcement
    check = Check(
        "announcement",
        State.OK,
        f"{said.master}, {said.age_text()}",
        figures={"master": said.master, "others": list(said.others), "keys": said.keys},
    )
    return [check], split_masters(said.master)[0].address


async def _path_checks(
    destinations: list[Destination], credentials: Credentials | None
) -> list[Check]:
    """Check the path to a master."""
    # One by one: a master tells the attempts with one key apart by their times.
    reached = [await probe(each, credentials) for each in destinations]
    checks = [judge_reached(reached, has_key=credentials is not None)]
    best = best_of(reached)
    if best.transport is None:
        return checks
    if best.transport == "udp":
        answers = await repeat_handshake(best.destination, credentials)
        checks += [judge_round_trip(answers), judge_loss(answers)]
    try:
        return [*checks, *await measure(best.destination, best.transport, credentials)]
    except ConnectionLostError as error:
        remedy = "run it again; if that does not help, see the master's log for its reason"
        return [*checks, Check("connection", State.BROKEN, str(error), remedy)]


def judge_key(key: WorkerKey | IssuingKey | RunKey | None) -> Check:
    """Say which name, role and run the key has."""
    if key is None:
        return Check("key", State.OK, "none: packets are not sealed", figures={"role": None})
    if isinstance(key, RunKey):
        run = key.fingerprint.hex()
        figures = {"run": run, "role": "run", "name": None}
        return Check("key", State.OK, f"run key of run {run}", figures=figures)
    if isinstance(key, IssuingKey):
        run, role = key.fingerprint.hex(), key.role.name.lower()
        figures = {"run": run, "role": role, "name": None}
        return Check("key", State.OK, f"issuing key of role {role}, run {run}", figures=figures)
    run, role = key.key_id[1 : 1 + FINGERPRINT_BYTES].hex(), key.role.name.lower()
    figures = {"run": run, "role": role, "name": key.name}
    return Check("key", State.OK, f"of {role} {key.name}, run {run}", figures=figures)


def _first(keys: list[RunKey] | IssuingKey | WorkerKey) -> RunKey | IssuingKey | WorkerKey:
    return keys[0] if isinstance(keys, list) else keys
