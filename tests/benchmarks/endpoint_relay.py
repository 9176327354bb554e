"""gradwire's transport relays updates: an `Endpoint`, and no master on top of it.

It does what the rivals do and no more: a whole message from one connection goes to all others. A
master does this too, and keeps the replica; the difference is what decoding costs.

``python -m benchmarks.endpoint_relay [--sealed]``
"""

import asyncio
import os
import sys
from abc import ABC, abstractmethod
from typing import Final

from benchmarks import keys
from benchmarks.programs import Meter, announce, end_with_parent
from benchmarks.work import Work
from gradwire_protocol import (
    Connected,
    Connection,
    ConnectionConfig,
    Credentials,
    Disconnected,
    Endpoint,
    Event,
    MessageDelivered,
    MessageReceived,
    Priority,
)
from gradwire_udp import SocketCounters, UdpDriver, new_event_loop, open_socket
from support.applications import Untimed

WORKERS_MAX: Final = 64
GREETING, UPDATE = 1, 2
"""Kinds of messages. When its greeting was delivered, a worker gets what others send."""

CONFIG: Final = ConnectionConfig(datagram_bytes=1400, datagram_bytes_max=1400)


class _Application(Untimed, ABC):
    """What relay and workers have in common."""

    def __init__(self, connections_max: int, credentials: Credentials | None) -> None:
        self.endpoint = Endpoint(
            CONFIG,
            random_bytes=os.urandom,
            connections_max=connections_max,
            credentials=credentials,
        )
        sock = open_socket(("127.0.0.1", 0))
        loop = asyncio.get_running_loop()
        self.driver = UdpDriver(sock, self.endpoint, self, loop, SocketCounters())

    @abstractmethod
    def handle_event(self, connection: Connection, event: Event, now: float) -> None: ...


class _Relay(_Application):
    """Hands every message on."""

    def __init__(self, *, sealed: bool) -> None:
        super().__init__(WORKERS_MAX, keys.listening() if sealed else None)
        self._connections: list[Connection] = []

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        match event:
            case Connected():
                self._connections.append(connection)
            case MessageReceived():
                if event.kind == UPDATE:
                    for other in self._connections:
                        if other is not connection:
                            other.relay(event.message, Priority.UPDATE)
                connection.release(event.charge)
            case Disconnected():
                self._connections.remove(connection)


class _Worker(_Application):
    """Sends its updates and counts those of the others."""

    def __init__(
        self, rank: int, work: Work, relay: dict[str, int], happened: asyncio.Event
    ) -> None:
        super().__init__(0, keys.dialling(f"worker-{rank}") if relay["sealed"] else None)
        self.ready = False
        self.received = 0
        self._rank, self._work, self._happened = rank, work, happened
        self._sent = 0
        now = self.driver.now()
        self._connection = self.endpoint.connect(("127.0.0.1", relay["port"]), now)
        self.driver.turn()

    def begin(self) -> None:
        """Send what may be under way; the rest follows from what arrives."""
        for _ in range(self._work.AHEAD):
            self._send()
        self.driver.turn()

    def _send(self) -> None:
        if self._sent < self._work.updates:
            self._sent += 1
            self._connection.send(self._rank, self._sent, UPDATE, self._work.body, Priority.UPDATE)

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        match event:
            case Connected():
                connection.send(self._rank, 0, GREETING, b"hello", Priority.CONTROL)
            case MessageDelivered() if not self.ready:
                self.ready = True
                self._happened.set()
            case MessageDelivered():
                self._send()
            case MessageReceived():
                assert len(event.payload) == len(self._work.body)
                connection.release(event.charge)
                self.received += 1
                self._happened.set()


def exchange(relay: dict[str, int], pid: int, work: Work) -> Meter:
    """Let the workers do their part; return what it cost the relay."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_exchange(relay, pid, work))


async def _exchange(relay: dict[str, int], pid: int, work: Work) -> Meter:
    happened = asyncio.Event()
    workers = [_Worker(rank, work, relay, happened) for rank in range(work.workers)]

    async def wait_until_ready() -> None:
        while not all(worker.ready for worker in workers):
            await happened.wait()
            happened.clear()

    await asyncio.wait_for(wait_until_ready(), 10)
    with Meter(pid) as meter:
        for worker in workers:
            worker.begin()
        while any(worker.received < work.expected for worker in workers):
            await asyncio.wait_for(happened.wait(), 60)
            happened.clear()
    for worker in workers:
        worker.driver.close()
    return meter


async def _serve(*, sealed: bool) -> None:
    relay = _Relay(sealed=sealed)
    announce(port=relay.driver.address[1], sealed=sealed)
    await asyncio.Event().wait()


def main() -> None:
    """Relay until the parent ends."""
    end_with_parent()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(sealed="--sealed" in sys.argv))


if __name__ == "__main__":
    main()
