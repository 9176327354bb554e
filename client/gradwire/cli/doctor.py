"""``gradwire doctor``: says what is wrong with this machine, or between it and a master.

A master is probed by handshakes that end with its answer, and connections over TCP. The answer
shows that the key is accepted. Only the packet after it opens the connection at a master, which
then closes an older one with the same key. So a probe disturbs no worker with this key.
"""

import asyncio
import json as json_text
import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Annotated, Final, TypeAlias

import typer

from gradwire.errors import UnreachableError, UsageError
from gradwire.settings.credentials import credentials_of
from gradwire_protocol import (
    CloseCode,
    Connected,
    Connection,
    ConnectionConfig,
    Credentials,
    Disconnected,
    Endpoint,
    Event,
    IssuingKey,
    Role,
    RunKey,
    WorkerKey,
)
from gradwire_protocol.crypto.keys import FINGERPRINT_BYTES
from gradwire_protocol.limits import DATAGRAM_BYTES_MIN
from gradwire_protocol.wire.packets import VERSION
from gradwire_udp import (
    SocketCounters,
    TcpCounters,
    TcpDriver,
    UdpDriver,
    open_socket,
    resolve_all,
    show_address,
)
from gradwire_udp.files.keys import WORKER_CREDENTIAL, credential, read_keys
from gradwire_udp.sockets import SocketAddress, wildcard
from gradwire_udp.udp.kernel_features import BUFFER_BYTES, granted_buffers, sysctl_line

Destination: TypeAlias = tuple[socket.AddressFamily, SocketAddress]

ANSWER_SECONDS: Final = 3.0
"""Time for one answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one handshake."""

    came: bool
    reason: str = ""
    """Why none came."""
    code: int = CloseCode.UNREACHABLE


@dataclass(frozen=True, slots=True)
class Reached:
    """What answers at one address."""

    destination: Destination
    udp: Answer
    tcp: Answer | None
    """None where UDP was answered, or the TCP port is not open."""
    port: str
    """State of the TCP port: ``"open"``, ``"refused"`` or ``"silent"``."""

    @property
    def transport(self) -> str | None:
        """Transport that was answered: ``"udp"``, ``"tcp"`` or None."""
        if self.udp.came:
            return "udp"
        return "tcp" if self.tcp is not None and self.tcp.came else None


async def probe(destination: Destination, credentials: Credentials | None) -> Reached:
    """Find out which transports one address answers."""
    port, udp = await asyncio.gather(_tcp_port(destination), handshake(destination, credentials))
    tcp = None
    if not udp.came and port == "open":
        tcp = await handshake(destination, credentials, tcp=True)
    return Reached(destination, udp, tcp, port)


async def handshake(
    destination: Destination, credentials: Credentials | None, *, tcp: bool = False
) -> Answer:
    """Do a handshake with a master, and send nothing after it."""
    family, address = destination
    config = ConnectionConfig(
        connect_timeout_seconds=ANSWER_SECONDS, datagram_bytes=DATAGRAM_BYTES_MIN
    )
    endpoint = Endpoint(
        config.over_tcp if tcp else config, random_bytes=os.urandom, credentials=credentials
    )
    loop, application = asyncio.get_running_loop(), _Handshake()
    driver: TcpDriver | UdpDriver
    try:
        if tcp:
            driver = TcpDriver(endpoint, application, loop, TcpCounters())
            endpoint.connect(driver.dial(address, family), monotonic())
        else:
            sock = open_socket(wildcard(family), family)
            driver = UdpDriver(sock, endpoint, application, loop, SocketCounters())
            endpoint.connect(address, monotonic())
    except OSError as error:
        return Answer(False, error.strerror or str(error))
    application.driver = driver
    driver.turn()
    event = await application.over
    if isinstance(event, Disconnected):
        return Answer(False, event.reason, event.code)
    return Answer(True)


class _Handshake:
    """An application that closes its driver at the first event."""

    def __init__(self) -> None:
        self.over: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self.driver: UdpDriver | TcpDriver | None = None

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Note the first event, and send nothing more."""
        if isinstance(event, Connected | Disconnected) and not self.over.done():
            self.over.set_result(event)
            assert self.driver is not None
            self.driver.close()

    def handle_timer(self, now: float) -> None:
        """Do nothing."""

    def next_timer(self) -> float | None:
        """Return None."""
        return None


async def _tcp_port(destination: Destination) -> str:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(*destination[1][:2])
    except TimeoutError:
        return "silent"
    except OSError as error:
        return "refused" if isinstance(error, ConnectionRefusedError) else "silent"
    writer.close()
    return "open"


class State(StrEnum):
    """The verdict of a check."""

    OK = "ok"
    SLOW = "slow"
    """It works, but costs speed or accuracy."""
    BROKEN = "broken"
    """No worker can train like this."""


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

    Each line is ok, slow or broken. A running training is not disturbed. Exit status: 0 all is ok,
    1 something is slow, 2 wrong usage, 5 something is broken.
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
        destinations = resolve_all(master)
    except UnreachableError as error:
        remedy = "check the spelling and the DNS server of this machine, or write the IP address"
        return [*checks, Check("name", State.BROKEN, str(error), remedy)]
    checks.append(judge_names(master, destinations))
    credentials = credentials_of(key, "", role=Role.WORKER)
    reached = asyncio.run(_probe_all(destinations, credentials))
    return [*checks, judge_reached(reached, has_key=credentials is not None)]


async def _probe_all(
    destinations: Sequence[Destination], credentials: Credentials | None
) -> list[Reached]:
    """Probe the addresses one by one: a master tells attempts with one key apart by their times."""
    return [await probe(each, credentials) for each in destinations]


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


def best_of(reached: Sequence[Reached]) -> Reached:
    """Return the address with the best transport, then the best TCP port; the first of equals."""
    order = ("udp", "tcp", None)
    ports = ("open", "refused", "silent")
    return min(reached, key=lambda r: (order.index(r.transport), ports.index(r.port)))
