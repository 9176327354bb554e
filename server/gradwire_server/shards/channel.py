"""`Channel`: records to and from another process, over a socket pair.

Records posted in one round of the event loop are sent with one system call, and wake the other
process once. No call blocks. Records that the other process does not read yet are queued; the queue
is bounded, because records are about messages that hold credit or wait to be sent.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgpack

from gradwire_protocol.limits import KIB, MESSAGE_BYTES_MAX
from gradwire_server.shards.records import Record

READ_BYTES_MAX: Final = 256 * KIB
READS_PER_WAKE_MAX: Final = 16
"""Reads before other callbacks of the event loop run: some thousand records."""


class Channel:
    """One end of a socket pair on an event loop.

    Parameters
    ----------
    sock : socket.socket
        Closed with the channel.
    on_records : callable
        Called with the one or more records of one read, in order.
    on_end : callable
        Called once, when the other end is closed and all its records were handled.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_records: Callable[[Sequence[Record]], None],
        on_end: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._loop = loop
        self._on_records = on_records
        self._on_end = on_end
        self._packer = msgpack.Packer(autoreset=False)
        self._posted = False
        self._unsent: deque[memoryview] = deque()
        self._unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=2 * MESSAGE_BYTES_MAX)
        self._closed = False
        loop.add_reader(sock.fileno(), self._read)

    def post(self, *record: object) -> None:
        """Queue a record until the next `flush`."""
        if not self._closed:
            self._packer.pack(record)
            self._posted = True

    def flush(self) -> None:
        """Send the posted records."""
        if not self._posted:
            return
        self._posted = False
        self._unsent.append(memoryview(self._packer.bytes()))
        self._packer.reset()
        if len(self._unsent) == 1 and not self._send():
            self._loop.add_writer(self._socket.fileno(), self._write)

    def close(self) -> None:
        """Close this end; the other one still receives the records that were sent."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._unsent.clear()
            self._posted = False
            self._socket.close()

    def _read(self) -> None:
        # Read until nothing is left: when the other process has crashed, uvloop calls this only
        # once, even if there is data before the end.
        for _ in range(READS_PER_WAKE_MAX):
            if self._closed:
                return
            try:
                data = self._socket.recv(READ_BYTES_MAX)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # the other end was closed before it had read everything
                data = b""
            if not data:
                self.close()
                self._on_end()
                return
            self._unpacker.feed(data)
            records = list(self._unpacker)
            if records:
                self._on_records(records)
        self._loop.call_soon(self._read)

    def _send(self) -> bool:
        """Send as much as the socket takes; return whether that is everything."""
        unsent = self._unsent
        while unsent:
            try:
                sent = self._socket.send(unsent[0])
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:  # the other end is closed; reading will report it
                unsent.clear()
                return True
            if sent == len(unsent[0]):
                unsent.popleft()
            else:
                unsent[0] = unsent[0][sent:]
        return True

    def _write(self) -> None:
        if self._send():
            self._loop.remove_writer(self._socket.fileno())
