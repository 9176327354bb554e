"""`TcpPeer`: one TCP connection, its packets, and what waits to be sent over it."""

import errno
import os
import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from gradwire_protocol.connection.train import Train
from gradwire_udp.sockets import show_address
from gradwire_udp.tcp.counters import TcpCounters
from gradwire_udp.tcp.framing import PacketStream, ReadBuffer, frame_into, framed_bytes

BUFFERS_PER_SEND_MAX: Final = 64
"""Far below what the kernel takes in one call, which is 1,024."""


@dataclass(frozen=True, slots=True, eq=False)
class TcpAddress:
    """Where a TCP connection leads to. No two connections have the same."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp:{show_address((self.host, self.port))}"


class TcpPeer:
    """One TCP connection. Never waits.

    Parameters
    ----------
    sock : socket.socket
        Non-blocking; its options are set here.
    address : TcpAddress
    buffer : ReadBuffer
        To read to; shared by all peers of a driver.
    counters : TcpCounters
        Shared, too.
    connected : bool
        Whether it can be written to; else `on_connected` has to be called.
    unused_since : float
        Since when it carries no connection of ours.
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
        """Of what it says."""
        self.queued_bytes = 0
        """What the kernel has not taken yet."""
        self._counters = counters
        self._queue: deque[memoryview] = deque()
        # A packet waits for no other one: what belongs together comes together.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def on_connected(self) -> None:
        """Note that the kernel is done with connecting.

        Raises
        ------
        OSError
            If it did not succeed.
        """
        number = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not number and self.socket.getsockname() == self.socket.getpeername():
            # A port that nobody listens at, and that happened to be drawn for this end as well.
            number = errno.ECONNREFUSED
        if number:
            raise OSError(number, os.strerror(number))
        self.connected = True

    def receive(self) -> int | None:
        """Read once into `stream`; return the bytes, 0 at the end, None where nothing is there.

        Raises
        ------
        OSError
            If the connection is broken.
        """
        try:
            size = self.socket.recv_into(self.stream.read_target())
        except (BlockingIOError, InterruptedError):
            return None
        self._counters.reads += 1
        self._counters.bytes_received += size
        return size

    def send(self, train: Train, scratch: memoryview) -> None:
        """Send a train, or keep a copy of what the kernel does not take.

        Parameters
        ----------
        train : Train
        scratch : memoryview
            Room for it with its lengths.

        Raises
        ------
        OSError
            If the connection is broken.
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
        """Send what is kept; return whether nothing is any more.

        Raises
        ------
        OSError
            If the connection is broken.
        """
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
        """Close the connection; what is kept is dropped."""
        self._queue.clear()
        self._count_queued(-self.queued_bytes)
        self.socket.close()

    def _count_queued(self, size: int) -> None:
        self.queued_bytes += size
        self._counters.queued_bytes += size
