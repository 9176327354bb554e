"""`UdpDriver`: one socket on an asyncio event loop, driving an endpoint and its application.

Whenever the socket is readable, a bounded number of datagrams is read into one buffer and handed
to the endpoint; then comes a turn: the application hears of events, datagrams leave, the timer is
set. It uses the loop's `add_reader` and not its datagram transports, which read one datagram for
every round of the loop into a fresh buffer.

Works on uvloop and on asyncio's own loops.
"""

import asyncio
import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gradwire_protocol import Address, Connection, Endpoint, Event

READS_PER_WAKE_MAX: Final = 64
"""Datagrams read before the rest of the loop has its turn."""

READ_BYTES: Final = 2**16
"""Larger than any UDP payload."""

TIMER_SECONDS_MIN: Final = 0.001
"""Resolution of the loop's timers. uvloop fires a timer of less than half of it at once, and an
endpoint waiting for it would keep the processor busy."""


class Application(Protocol):
    """What sits on top of an endpoint."""

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act on what a connection reports."""

    def handle_timer(self, now: float) -> None:
        """Act on every deadline at or before `now`."""

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""


@dataclass(slots=True)
class SocketCounters:
    """What went through the socket, in UDP payload."""

    datagrams_received: int = 0
    bytes_received: int = 0
    datagrams_sent: int = 0
    bytes_sent: int = 0
    send_errors: int = 0


class UdpDriver:
    """Drives an endpoint until it is closed.

    Parameters
    ----------
    sock : socket.socket
        Bound and non-blocking; closed with the driver.
    endpoint : Endpoint
    application : Application
    loop : asyncio.AbstractEventLoop
        Where it runs; all methods have to be called on its thread.
    counters : SocketCounters
        Counted up as it goes.
    """

    def __init__(
        self,
        sock: socket.socket,
        endpoint: Endpoint,
        application: Application,
        loop: asyncio.AbstractEventLoop,
        counters: SocketCounters,
    ) -> None:
        self.counters = counters
        self._socket = sock
        self._endpoint = endpoint
        self._application = application
        self._loop = loop
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._blocked: deque[tuple[bytes, Address]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closed = False
        self._quiet: asyncio.Future[None] | None = None
        self._loop.add_reader(sock.fileno(), self._read)

    @property
    def address(self) -> tuple[Any, ...]:
        """The address the socket is bound to."""
        address: tuple[Any, ...] = self._socket.getsockname()
        return address

    def now(self) -> float:
        """Return the time of the loop, which is the time of endpoint and application."""
        return self._loop.time()

    def turn(self) -> None:
        """Do all there is to do; to be called after telling endpoint or application something."""
        if self._closed:
            return
        now = self._loop.time()
        while True:
            self._report_events(now)
            if self._blocked:
                break  # the socket takes no more; `_write` goes on
            datagrams = self._endpoint.datagrams_to_send(now)
            if not datagrams:
                break
            self._blocked.extend(datagrams)
            self._send()
        self._set_timer(now)
        if self._quiet is not None and not self._quiet.done() and not len(self._endpoint):
            self._quiet.set_result(None)

    async def wait_quiet(self, timeout: float) -> None:  # noqa: ASYNC109
        """Wait until all connections are over, goodbyes included, at most `timeout` seconds."""
        if len(self._endpoint):
            self._quiet = self._quiet or self._loop.create_future()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._quiet), timeout)

    def close(self) -> None:
        """Stop and close the socket, whatever is still under way."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self._socket.close()

    def _read(self) -> None:
        now = self._loop.time()
        counters = self.counters
        for _ in range(READS_PER_WAKE_MAX):
            try:
                size, _, _, address = self._socket.recvmsg_into([self._buffer])
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                # An ICMP message about an earlier datagram. Anyone can forge one, so it is no
                # reason to give a peer up; silence is.
                continue
            counters.datagrams_received += 1
            counters.bytes_received += size
            self._endpoint.receive_datagram(self._view[:size], address, now)
            self._report_events(now)
        self.turn()

    def _report_events(self, now: float) -> None:
        while (item := self._endpoint.next_event()) is not None:
            self._application.handle_event(*item, now)

    def _send(self) -> None:
        """Hand datagrams to the kernel until all are gone or it takes no more."""
        blocked, counters = self._blocked, self.counters
        while blocked:
            datagram, address = blocked[0]
            try:
                self._socket.sendmsg([datagram], [], 0, address)  # type: ignore[arg-type]
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._socket.fileno(), self._write)
                return
            except OSError:
                # No route, a full neighbour table, a firewall: for the peer it is a lost
                # datagram, and lost datagrams are what loss recovery is for.
                counters.send_errors += 1
            else:
                counters.datagrams_sent += 1
                counters.bytes_sent += len(datagram)
            blocked.popleft()

    def _write(self) -> None:
        self._loop.remove_writer(self._socket.fileno())
        self._send()
        if not self._blocked:
            self.turn()

    def _set_timer(self, now: float) -> None:
        timers = (self._endpoint.next_timer(), self._application.next_timer())
        deadline = min((t for t in timers if t is not None), default=None)
        if self._timer is not None:
            if deadline == self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer_at = deadline
            at = max(deadline, now + TIMER_SECONDS_MIN)
            self._timer = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        self._endpoint.handle_timer(now)
        self._report_events(now)
        self._application.handle_timer(now)
        self.turn()
