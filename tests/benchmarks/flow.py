"""One flow of messages over gradwire's transport, a process at each end.

The sender keeps `MESSAGES_AHEAD` messages of 1 MiB under way; the receiver counts the bytes of
those that came in whole.

``python -m benchmarks.flow receive|send``
"""

import asyncio
import os
import time
from abc import ABC, abstractmethod
from typing import Final

from benchmarks import keys
from benchmarks.flow_options import FlowOptions, flow_options
from benchmarks.programs import announce, end_with_parent
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

MESSAGE_BYTES: Final = 2**20
MESSAGES_AHEAD: Final = 16
"""More than 200 Mbit/s times 100 ms, several times over."""


class _End(Untimed, ABC):
    """What both ends have in common: a socket, an endpoint, and an end."""

    def __init__(self, options: FlowOptions, host: str) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self.over = asyncio.Event()
        self.endpoint = Endpoint(
            _config(options),
            random_bytes=os.urandom,
            connections_max=1 if options.receives else 0,
            credentials=_credentials(options),
        )
        self.counters = SocketCounters()
        sock = open_socket((host, 0))
        self.driver = UdpDriver(sock, self.endpoint, self, self._loop, self.counters)

    @abstractmethod
    def handle_event(self, connection: Connection, event: Event, now: float) -> None: ...


def _credentials(options: FlowOptions) -> Credentials | None:
    if not options.sealed:
        return None
    return keys.listening() if options.receives else keys.dialling("sender")


def _config(options: FlowOptions) -> ConnectionConfig:
    size = options.datagram_bytes
    return ConnectionConfig(datagram_bytes=size, datagram_bytes_max=size)


class _Receiver(_End):
    """Counts what comes in, from the moment the flow is there."""

    def __init__(self, options: FlowOptions) -> None:
        super().__init__(options, options.host)
        self._received = 0

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        match event:
            case Connected():
                self._began, self._used = time.monotonic(), time.process_time()
                self._loop.call_later(self._options.seconds, self._report)
            case MessageReceived():
                self._received += len(event.payload)
                connection.release(event.charge)
            case Disconnected():
                self.over.set()

    def _report(self) -> None:
        announce(
            bytes=self._received,
            seconds=time.monotonic() - self._began,
            processor_seconds=time.process_time() - self._used,
            datagrams=self.counters.datagrams_received,
        )
        self.over.set()


class _Sender(_End):
    """Sends until it is ended."""

    def __init__(self, options: FlowOptions) -> None:
        super().__init__(options, "0.0.0.0")
        self._message = os.urandom(MESSAGE_BYTES)
        self._number = 0
        self.endpoint.connect((options.host, options.port), self.driver.now())
        self.driver.turn()

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        match event:
            case Connected():
                announce(ready=True)
                for _ in range(MESSAGES_AHEAD):
                    self._send(connection)
            case MessageDelivered():
                self._send(connection)
            case Disconnected():
                self.over.set()

    def _send(self, connection: Connection) -> None:
        connection.send(0, self._number, 1, self._message, Priority.UPDATE)
        self._number += 1


async def _run(options: FlowOptions) -> None:
    end = _Receiver(options) if options.receives else _Sender(options)
    if options.receives:
        announce(port=end.driver.address[1])
    await end.over.wait()
    end.driver.close()


def main() -> None:
    """Be one of the two."""
    end_with_parent()
    options = flow_options()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(options))


if __name__ == "__main__":
    main()
