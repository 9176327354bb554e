"""`TcpPeer`: one TCP connection, its packets, and its queue of bytes to send."""

import errno
import os
import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from gradwire_protocol.connection.train import Train
from gradwire_udp.counters import TcpCounters
from gradwire_udp.sockets import show_address
from gradwire_udp.tcp.framing import PacketStream, ReadBuffer, frame_into, framed_bytes

BUFFERS_PER_SEND_MAX: Final = 64
"""Far below the kernel's limit of 1,024 in one call."""


@dataclass(frozen=True, slots=True, eq=False)
class TcpAddress:
    """The address of one TCP connection; two connections are never equal."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp:{show_address((self.host, self.port))}"


class TcpPeer:
    """One TCP connection. No method waits.

    `receive`, `send` and `flush` raise `OSError` if the connection is broken.

    Parameters
    ----------
    sock : socket.socket
        Non-blocking; its options are set here.
    address : TcpAddress
    buffer, counters
        Shared by all peers of a driver.
    connected : bool
        Whether it is connected; otherwise `on_connected` has to be called when it is.
    unused_since : float
        Since when no connection of the endpoint uses it.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: TcpAddress,
        buffer: ReadBuffer,
        counters: TcpCounters,
        *,
        connected: bool,
        unused_since: float,
    ) -> None:
        self.socket = sock
        self.address = address
        self.connected = connected
        self.unused_since: float | None = unused_since
        self.stream = PacketStream(buffer)
        self.queued_bytes = 0
        """Bytes that the kernel has not taken yet."""
        self._counters = counters
        self._queue: deque[memoryview] = deque()
        # No packet waits for a later one: packets that belong together are sent together.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def on_connected(self) -> None:
        """Note that the kernel has finished connecting; raise `OSError` if that has failed."""
        number = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not number and self.socket.getsockname() == self.socket.getpeername():
            # No process listens at this port, and the kernel drew the same one for this end.
            number = errno.ECONNREFUSED
        if number:
            raise OSError(number, os.strerror(number))
        self.connected = True

    def receive(self) -> int | None:
        """Read once into `stream`; return the bytes read: 0 at the end, None if there are none."""
        try:
            size = self.socket.recv_into(self.stream.read_target())
        except (BlockingIOError, InterruptedError):
            return None
        self._counters.reads += 1
        self._counters.bytes_received += size
        return size

    def send(self, train: Train, scratch: memoryview) -> None:
        """Send a train, and queue a copy of what the kernel does not take.

        `scratch` has room for the train with its lengths.
        """
        size = framed_bytes(train)
        framed = scratch[:size]
        frame_into(train, framed)
        sent = 0
        if self.connected and not self._queue:
            with suppress(BlockingIOError, InterruptedError):
                sent = self.socket.send(framed)
            self._counters.bytes_sent += sent
        self._counters.packets_sent += train.count
        if sent < size:
            self._queue.append(memoryview(bytes(framed[sent:])))
            self._count_queued(size - sent)

    def flush(self) -> bool:
        """Send what is queued; return whether the queue is empty."""
        queue = self._queue
        while queue:
            try:
                sent = self.socket.sendmsg(list(islice(queue, BUFFERS_PER_SEND_MAX)))
            except (BlockingIOError, InterruptedError):
                return False
            self._counters.bytes_sent += sent
            self._count_queued(-sent)
            while sent:
                first = queue.popleft()
                if sent < len(first):
                    queue.appendleft(first[sent:])
                sent -= min(sent, len(first))
        return True

    def close(self) -> None:
        """Close the connection; what is queued is dropped."""
        self._queue.clear()
        self._count_queued(-self.queued_bytes)
        self.socket.close()

    def _count_queued(self, size: int) -> None:
        self.queued_bytes += size
        self._counters.queued_bytes += size
