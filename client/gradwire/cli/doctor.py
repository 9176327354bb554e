"""``gradwire doctor``: says what is wrong with this machine, or between it and a master."""

import asyncio
import json as json_text
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final

import typer

from gradwire.cli.probes import ANSWER_SECONDS, Answer, Reached, probe, repeat_handshake
from gradwire.errors import UnreachableError, UsageError
from gradwire.settings.credentials import credentials_of
from gradwire.threads.lookup import Lookup
from gradwire_protocol import CloseCode, Credentials, IssuingKey, Role, RunKey, WorkerKey
from gradwire_protocol.crypto.keys import FINGERPRINT_BYTES
from gradwire_protocol.wire.packets import VERSION
from gradwire_udp import open_socket, show_address
from gradwire_udp.files.keys import WORKER_CREDENTIAL, credential, read_keys
from gradwire_udp.sockets import Destination
from gradwire_udp.udp.kernel_features import BUFFER_BYTES, granted_buffers, sysctl_line


class State(StrEnum):
    """The verdict of a check."""

    OK = "ok"
    SLOW = "slow"
    """It works, but costs speed or accuracy."""
    BROKEN = "broken"
    """No worker can train like this."""


RTT_SECONDS_MAX: Final = 0.1
SPREAD_SECONDS_MIN: Final = 0.005
"""A smaller spread is due to the two processes, not to the path."""

EXIT_STATUS: Final = {State.BROKEN: 5, State.SLOW: 1, State.OK: 0}
"""Exit status by the worst verdict; 5 means an unreachable master in every command."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    state: State
    text: str
    """The result in words."""
    remedy: str = ""
    """What to do about it; not empty where the state is slow or broken."""


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
        checks = [versions(), judge_buffers(*granted_buffers(sock, BUFFER_BYTES))]
    if master is not None:
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
    checks = [judge_key(key)]
    try:
        destinations = Lookup(master).first(ANSWER_SECONDS, 0.0).destinations
    except UnreachableError as error:
        remedy = "check the spelling and the DNS server of this machine, or write the IP address"
        return [*checks, Check("name", State.BROKEN, str(error), remedy)]
    checks.append(judge_names(master, destinations))
    credentials = credentials_of(key, "", role=Role.WORKER)
    return [*checks, *asyncio.run(_path_checks(destinations, credentials))]


async def _path_checks(
    destinations: Sequence[Destination], credentials: Credentials | None
) -> list[Check]:
    """Check the path to a master."""
    # One by one: a master tells the attempts with one key apart by their times.
    reached = [await probe(each, credentials) for each in destinations]
    checks = [judge_reached(reached, has_key=credentials is not None)]
    best = best_of(reached)
    if best.transport == "udp":
        answers = await repeat_handshake(best.destination, credentials)
        checks += [judge_round_trip(answers), judge_loss(answers)]
    return checks


def worst(checks: Sequence[Check]) -> State:
    """Return the worst state among checks."""
    states = {check.state for check in checks}
    return next(state for state in EXIT_STATUS if state in states)


def show(checks: Sequence[Check]) -> None:
    """Print each check to stdout in a line, with its remedy below."""
    width = max(len(check.name) for check in checks)
    for check in checks:
        typer.echo(f"{check.state:<6}  {check.name:<{width}}  {check.text}")
        if check.remedy:
            typer.echo(f"{'':6}  {'':{width}}  -> {check.remedy}")


def versions() -> Check:
    """Say which versions run here."""
    release, python = version("gradwire"), platform.python_version()
    system = f"{platform.system()} {platform.release()}"
    text = f"gradwire {release}, protocol {VERSION}, Python {python}, {system}"
    return Check("version", State.OK, text)


def judge_buffers(receive: int, send: int) -> Check:
    """Say whether the socket buffers that the system grants are large enough."""
    text = f"{receive / 2**20:.3g} MiB to receive, {send / 2**20:.3g} MiB to send"
    if min(receive, send) >= BUFFER_BYTES:
        return Check("buffers", State.OK, text)
    text += f", and {BUFFER_BYTES / 2**20:.3g} are wanted: datagrams are lost at high rates"
    return Check("buffers", State.SLOW, text, sysctl_line(BUFFER_BYTES))


def judge_key(key: WorkerKey | IssuingKey | RunKey | None) -> Check:
    """Say which name, role and run the key has."""
    if key is None:
        text = "none: packets are not sealed"
    elif isinstance(key, WorkerKey):
        run = key.key_id[1 : 1 + FINGERPRINT_BYTES].hex()
        text = f"of {key.role.name.lower()} {key.name}, run {run}"
    elif isinstance(key, IssuingKey):
        text = f"issuing key of role {key.role.name.lower()}, run {key.fingerprint.hex()}"
    else:
        text = f"run key of run {key.fingerprint.hex()}"
    return Check("key", State.OK, text)


def judge_names(text: str, destinations: Sequence[Destination]) -> Check:
    """Say which addresses a name has."""
    shown = [show_address(address) for _, address in destinations]
    return Check("name", State.OK, f"{text} is {', '.join(shown)}")


def judge_reached(reached: Sequence[Reached], *, has_key: bool) -> Check:
    """Say which transport a master answers, at the best of its addresses."""
    best = best_of(reached)
    where = show_address(best.destination[1])
    silent = [show_address(r.destination[1]) for r in reached if r.transport is None]
    beside = f" (nothing at {', '.join(silent)})" if silent and best.transport else ""
    if best.transport == "udp":
        return Check("port", State.OK, f"UDP is answered at {where}{beside}")
    if best.transport == "tcp":
        text = f"only TCP is answered at {where}, UDP is not{beside}"
        remedy = (
            "let UDP pass to this port in both directions, in the firewall, the security group and "
            "the container's -p PORT:PORT/udp"
        )
        return Check("port", State.SLOW, text, remedy)
    answers = [best.udp] if best.tcp is None else [best.udp, best.tcp]
    other = next((a.reason for a in answers if a.code == CloseCode.VERSION), None)
    if other is not None:
        text = f"{where} speaks protocol version {other}, this gradwire {VERSION}"
        remedy = "install the same version of gradwire on both"
    elif best.port == "open":
        which = "with this key" if has_key else "without a key"
        text = f"something listens at TCP {where}, and answers no handshake {which}"
        remedy = (
            "the key is derived from another run key, its name is denied, the master has no key at "
            "all, or the clock here was set back: compare the run in the line `key` with that of "
            "the master's key file, and make a new key with "
            "`gradwire keygen --worker NAME --from run.key`"
            if has_key
            else "say --key-file: a master with a run key does not answer without a key. Otherwise "
            "something other than gradwire listens there"
        )
    elif best.port == "refused":
        text = f"nothing listens at TCP {where}, and UDP is not answered"
        remedy = (
            "start `gradwire master --listen 0.0.0.0:PORT --key-file run.key` there, and check the "
            "port. For a master with --transport udp, check that the key here is derived from its "
            "run key"
        )
    else:
        text = f"neither UDP nor TCP is answered at {where}"
        remedy = "ping the host, check the address, let UDP and TCP pass the firewall to this port"
    return Check("port", State.BROKEN, text, remedy)


def judge_round_trip(answers: Sequence[Answer]) -> Check:
    """Say how long a round trip takes, and how much that varies."""
    seconds = sorted(a.seconds for a in answers if a.seconds is not None and a.sent == 1)
    if not seconds:
        text = f"none of {len(answers)} handshakes was answered at the first try"
        return Check("round trip", State.SLOW, text, "something loses datagrams: see the next line")
    least, median = seconds[0], seconds[len(seconds) // 2]
    spread = seconds[(9 * len(seconds)) // 10 - (len(seconds) % 10 == 0)] - least
    text = (
        f"{1e3 * median:.3g} ms, at least {1e3 * least:.3g}, nine of ten within "
        f"{1e3 * spread:.3g} more ({len(seconds)} handshakes)"
    )
    remedy = ""
    if median > RTT_SECONDS_MAX:
        remedy = "run the master closer to the workers; `gradwire estimate --rtt` says the cost"
    elif spread > max(SPREAD_SECONDS_MIN, 2 * least):
        remedy = (
            "something on the way queues, or a machine is busy: look for other traffic, Wi-Fi, or "
            "processes that take all cores"
        )
    return Check("round trip", State.SLOW if remedy else State.OK, text, remedy)


def judge_loss(answers: Sequence[Answer]) -> Check:
    """Say how many datagrams of the handshakes, or answers to them, were lost."""
    sent = sum(a.sent for a in answers)
    lost = sent - sum(a.seconds is not None for a in answers)
    text = f"{lost} of {sent} datagrams, there or back"
    if not lost:
        return Check("loss", State.OK, text)
    remedy = (
        "gradwire keeps its rate up to some percent; look for a full link, Wi-Fi or a bad cable"
    )
    return Check("loss", State.SLOW, text, remedy)


def best_of(reached: Sequence[Reached]) -> Reached:
    """Return the address with the best transport, then the best TCP port; the first of equals."""
    order = ("udp", "tcp", None)
    ports = ("open", "refused", "silent")
    return min(reached, key=lambda r: (order.index(r.transport), ports.index(r.port)))
