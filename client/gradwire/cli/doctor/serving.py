"""``gradwire doctor --serve``: the other end, where there is no master yet.

It answers handshakes as a master does, with the same keys, over UDP and TCP. Then it sends HELLO,
receives FILLs, and sends FILLs on request.
"""

import asyncio
import json
import logging
import os
import signal
from contextlib import ExitStack, suppress
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from time import time_ns
from typing import Final

import typer

from gradwire.cli.doctor.talk import (
    CONTROL_STREAM,
    FILL,
    FILL_STREAM,
    RATE_BYTES,
    Filler,
    TalkKind,
    TimerlessApplication,
)
from gradwire.errors import UnreachableError, UsageError
from gradwire_protocol import (
    CloseCode,
    Connected,
    Connection,
    ConnectionConfig,
    Credentials,
    Disconnected,
    Endpoint,
    Event,
    Keyring,
    MessageDelivered,
    MessageReceived,
    Priority,
)
from gradwire_udp import (
    Drivers,
    SocketCounters,
    TcpCounters,
    TcpDriver,
    UdpDriver,
    open_listener,
    open_socket,
    resolve,
    show_address,
    source_of,
)
from gradwire_udp.files.keys import read_run_keys

logger = logging.getLogger("gradwire.doctor")

CONNECTIONS_MAX: Final = 8


class Server(TimerlessApplication):
    """The application of a serving doctor."""

    def __init__(self) -> None:
        self._fillers: dict[Connection, Filler] = {}
        """Fillers of the connections that have sent ASK, which each may do once."""
        self._received: dict[Connection, int] = {}

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act on what a connection reports."""
        match event:
            case Connected():
                identity = connection.identity
                name = "a machine without a key" if identity is None else identity.name
                logger.info("%s has connected from %s", name, show_address(connection.address))
                self._received[connection] = 0
                hello = {"gradwire": version("gradwire"), "unix_time": time_ns() / 1e9}
                self._send_control(connection, 0, TalkKind.HELLO, hello)
            case MessageReceived():
                self._receive(connection, event, now)
            case MessageDelivered() if event.stream == FILL_STREAM:
                filler = self._fillers[connection]
                filler.on_delivered(event.number, now)
                if filler.over:
                    done = {"bytes": filler.delivered_bytes, "seconds": filler.seconds}
                    self._send_control(connection, 1, TalkKind.DONE, done)
            case Disconnected():
                self._fillers.pop(connection, None)
                self._received.pop(connection, None)

    def _receive(self, connection: Connection, event: MessageReceived, now: float) -> None:
        connection.release(event.charge)
        self._received[connection] += len(memoryview(event.payload))
        if self._received[connection] > RATE_BYTES + len(FILL):
            connection.close(CloseCode.VIOLATION, f"more than {RATE_BYTES} bytes", now)
        elif event.kind == TalkKind.ASK and connection not in self._fillers:
            self._fillers[connection] = filler = Filler(connection, now)
            filler.fill(now)

    def _send_control(
        self, connection: Connection, number: int, kind: TalkKind, data: object
    ) -> None:
        text = json.dumps(data).encode()
        connection.send(CONTROL_STREAM, number, kind, text, Priority.CONTROL)


async def serve(listen: str, key_file: Path | None, *, insecure: bool) -> None:
    """Serve until SIGINT or SIGTERM.

    `UnreachableError` if it cannot listen at the address, `UsageError` if it needs a key for that.
    """
    family, address = resolve(listen)
    credentials = None
    if key_file is not None:
        keyring = Keyring(read_run_keys(key_file))
        credentials = Credentials(keyring=keyring, unix_time_ns=time_ns)
    elif not insecure and not ip_address(address[0]).is_loopback:
        raise UsageError(
            f"without a key, any machine that reaches {listen} could fill this one's link: say "
            "--key-file run.key, with a key made by `gradwire keygen run.key`, or --insecure"
        )
    loop = asyncio.get_running_loop()
    config = ConnectionConfig()
    udp, tcp = (
        Endpoint(
            each, random_bytes=os.urandom, connections_max=CONNECTIONS_MAX,
            credentials=credentials, source_of=source_of,
        )
        for each in (config, config.over_tcp)
    )  # fmt: skip
    with ExitStack() as opened:
        try:
            sock = opened.enter_context(open_socket(address, family))
            listener = open_listener(sock.getsockname(), family)
        except OSError as error:
            raise UnreachableError(
                f"cannot listen at {listen}: {error.strerror or error}"
            ) from None
        opened.pop_all()
    where = show_address(sock.getsockname())
    drivers = Drivers(Server(), loop)
    drivers.add(lambda shared: UdpDriver(sock, udp, shared, loop, SocketCounters()))
    drivers.add(lambda shared: TcpDriver(tcp, shared, loop, TcpCounters(), listener))
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # not on Windows
            loop.add_signal_handler(number, stopped.set)
    typer.echo(json.dumps({"address": where}))
    key = "" if key_file is None else " --key-file FILE"
    logger.info("listening at %s; on the other machine: gradwire doctor --master HOST:%s%s",
                where, where.rpartition(":")[2], key)  # fmt: skip
    try:
        await stopped.wait()
    finally:
        drivers.close()
