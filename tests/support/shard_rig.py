"""The processes of a master but the first, for tests, and workers that dial one of them."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import time_ns
from typing import Any

from gradwire_protocol import Connected, Connection, ConnectionConfig, Credentials, Event
from gradwire_protocol.connection.fair_queue import LinkPacer
from gradwire_protocol.crypto.keys import Keyring, WorkerKey
from gradwire_server.config import MasterConfig
from gradwire_server.shards.figures import Figures
from gradwire_server.shards.steering import open_others
from gradwire_server.shards.supervisor import Supervisor
from gradwire_udp import open_socket
from support.applications import Untimed
from support.driven_side import Side
from support.waiting import until

PROCESSES = 3


@dataclass
class Heard(Untimed):
    """In place of a master: what it hears."""

    events: list[tuple[Connection, Event]] = field(default_factory=list)

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        self.events.append((connection, event))

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for _, event in self.events if isinstance(event, kind)]

    def last_connection(self) -> Connection:
        return [connection for connection, event in self.events if event == Connected()][-1]


class Rig:
    """A supervisor with its shards; shard 0 is only a socket that nobody reads."""

    def __init__(self, first: socket.socket, config: MasterConfig, keyring: Keyring | None) -> None:
        self.address = first.getsockname()
        self.heard = Heard()
        self.local, self.total = Figures(), Figures()
        self.local_connections = 0
        self.lost = 0
        self.link = LinkPacer(config.link_bytes_per_second)
        self.supervisor = Supervisor(
            config, open_others(first, config.processes), self.heard, asyncio.get_running_loop(),
            local=self.local, total=self.total, link=self.link,
            local_connections=lambda: self.local_connections, on_lost=self.count_lost,
            keyring=keyring, instance="test",
        )  # fmt: skip

    def count_lost(self) -> None:
        self.lost += 1

    @property
    def pids(self) -> list[int]:
        return list(self.supervisor.connections_by_process)

    def dial(self, index: int, key: WorkerKey | None = None, seconds: float = 10.0) -> Side:
        """Let a worker dial the shard with this number."""
        config = ConnectionConfig(connect_timeout_seconds=seconds, idle_timeout_seconds=60)
        credentials = None if key is None else Credentials(key=key, unix_time_ns=time_ns)
        # Its session id, which the kernel looks at, begins with the first byte it draws.
        random_bytes = lambda n: bytes([index]) + os.urandom(n - 1)  # noqa: E731
        worker = Side(config=config, credentials=credentials, random_bytes=random_bytes)
        worker.dial(self.address)
        return worker

    async def worker_at(self, index: int, key: WorkerKey | None = None) -> tuple[Side, Connection]:
        count = len(self.heard.of(Connected))
        worker = self.dial(index, key)
        await until(lambda: len(self.heard.of(Connected)) > count, "the connection")
        await until(lambda: worker.connection, "the worker to know of it")
        return worker, self.heard.last_connection()


@asynccontextmanager
async def shards(*, keyring: Keyring | None = None, **settings: Any) -> AsyncIterator[Rig]:
    """Start a master's shards, and end them."""
    first = open_socket(("127.0.0.1", 0))
    rig = Rig(first, MasterConfig(**{"processes": PROCESSES} | settings), keyring)
    try:
        await rig.supervisor.start()
        yield rig
    finally:
        rig.supervisor.close()
        first.close()
