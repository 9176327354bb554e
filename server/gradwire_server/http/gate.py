"""`Gate`: limits the rate, the number and the duration of HTTP connections.

aiohttp accepts any number of connections, waits an hour for a request and for ever for a client
that does not read. So connections are accepted here, and a `Visit` between each transport and
aiohttp counts bytes and keeps the deadline.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic
from traceback import format_tb
from typing import Any, Final, cast

from gradwire_protocol.limits import KIB
from gradwire_server.metrics import HttpRefusal, ServerMetrics
from gradwire_udp.accepting import Acceptor
from gradwire_udp.sockets import SocketAddress

logger: Final = logging.getLogger("gradwire.http")

FAILURE_LOG_SECONDS: Final = 1.0
"""Time between two logged failures: a client that can cause one could otherwise fill the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits for all clients together, each with its reason or its arithmetic.

    Measured on one core of an AMD EPYC: a connection with one request costs 0.2 ms from accept to
    close; making the metrics costs 1 ms with 56 workers, 9 ms with 1,000 and 36 ms with 4,094.

    Memory: `connections_max` times a request and a page, 64 · (16 + 16) KiB = 2 MiB with 56
    workers, where a page has 15 KB, and 20 MiB with 4,094, where it has 260 KB.
    """

    connections_max: int = 64
    """Open at once. One more ends the oldest, so a client that needs milliseconds is served even
    while others keep every place busy. Under a flood each connection still has
    `connections_max - connections_burst_max` over `connections_per_second_max`, half a second."""

    connections_per_second_max: float = 100.0
    """More wait in the kernel's queue, where they cost the master no time: a flood costs 100 · 0.2
    ms a second, 2 % of a core. An answer that says "too many" would cost as much as the page."""

    connections_burst_max: int = 16
    """Accepted at once after a quiet time."""

    connection_seconds_max: float = 10.0
    """From accept to the last byte of the one request: this ends clients that send slowly or read
    slowly. Prometheus allows a scrape as long by default."""

    request_bytes_max: int = 16 * KIB
    """Bytes that a client may send. A scrape has 0.3 KiB; a browser adds its cookies for every
    other server on localhost."""

    load_max: float = 0.05
    """Part of the time that may be spent on making one page. A client that asks more often gets the
    last one: 20 ms old at most with 56 workers, 0.7 s with 4,094."""


class Gate:
    """Accepts connections until it is closed.

    Parameters
    ----------
    listener : socket.socket
        Listening and non-blocking; closed with the gate.
    protocol : callable
        Returns a new protocol, to serve one connection.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        metrics: ServerMetrics,
        limits: HttpLimits,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._metrics = metrics
        self._limits = limits
        self._visits: dict[asyncio.BaseProtocol, Visit] = {}
        """By protocol, the oldest first."""
        self._next_failure_log = 0.0
        self._interval = 1 / limits.connections_per_second_max
        # The last connection of a burst needs one interval less; half of it stays for rounding.
        self._tolerance = (limits.connections_burst_max - 0.5) * self._interval
        self._due = -inf
        self._entering: set[asyncio.Task[None]] = set()
        self._acceptor = Acceptor(self._loop, listener, self._accept, "HTTP")

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._visits)

    def note_request(self, protocol: asyncio.BaseProtocol) -> None:
        """Note that a whole request has come over a connection."""
        visit = self._visits.get(protocol)
        if visit is not None:
            visit.has_asked = True

    async def stop_accepting(self) -> None:
        """Accept no new connections; the open ones stay."""
        self._acceptor.close()
        await asyncio.gather(*self._entering, return_exceptions=True)

    def abort_all(self) -> None:
        """Abort all connections, served or not."""
        for visit in list(self._visits.values()):
            visit.end()

    # For visits.

    def enter(self, visit: "Visit") -> None:
        """Register a connection; where there are too many, end the oldest."""
        if len(self._visits) >= self._limits.connections_max:
            next(iter(self._visits.values())).end(HttpRefusal.CROWDED)
        self._visits[visit.protocol] = visit

    def leave(self, visit: "Visit") -> None:
        """Remove a connection that is over."""
        self._visits.pop(visit.protocol, None)

    def refuse(self, reason: HttpRefusal) -> None:
        """Count a connection that gets no page."""
        self._metrics.http_refused.labels(reason).inc()

    def report_failure(self, error: Exception) -> None:
        """Log the type and the traceback of an error; its message could quote a token."""
        if monotonic() >= self._next_failure_log:
            self._next_failure_log = monotonic() + FAILURE_LOG_SECONDS
            where = "".join(format_tb(error.__traceback__))
            logger.error("an HTTP connection failed: %s\n%s", type(error).__name__, where)

    # Private.

    def _accept(self, connection: socket.socket, _: SocketAddress) -> None:
        entering = self._loop.create_task(self._connect(connection))
        self._entering.add(entering)
        entering.add_done_callback(self._entering.discard)
        self._due = max(self._due, self._loop.time() - self._tolerance) + self._interval
        if (pause := self._due - self._loop.time()) > 0:
            self._metrics.http_delayed.inc()
            self._acceptor.pause(pause)

    async def _connect(self, connection: socket.socket) -> None:
        visit = Visit(self, self._protocol(), self._limits)
        try:
            await self._loop.connect_accepted_socket(lambda: visit, connection)
        except OSError:
            connection.close()  # the client has closed it already


class Visit(asyncio.Protocol):
    """One connection: passes its events on to a protocol, within limits of bytes and time.

    It catches every error of the protocol: an error in a callback would end the daemon.
    """

    def __init__(self, gate: Gate, protocol: asyncio.Protocol, limits: HttpLimits) -> None:
        self.protocol = protocol
        self.has_asked = False
        """Whether a whole request has come."""
        self._gate = gate
        self._limits = limits
        self._received = 0
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def end(self, reason: HttpRefusal | None = None) -> None:
        """Abort the connection, even while data is still to be sent."""
        if self._transport is None:
            return
        if reason is not None:
            self._gate.refuse(reason)
        self._gate.leave(self)
        self._transport.abort()
        self._transport = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register at the gate, and start the deadline."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        self._gate.enter(self)
        self._timer = asyncio.get_running_loop().call_later(
            self._limits.connection_seconds_max, self.end, HttpRefusal.TOO_SLOW
        )
        self._pass_on(self.protocol.connection_made, transport)

    def data_received(self, data: bytes) -> None:
        """Pass data on, up to `HttpLimits.request_bytes_max`."""
        self._received += len(data)
        if self._received > self._limits.request_bytes_max:
            self.end(HttpRefusal.TOO_LARGE)
        else:
            self._pass_on(self.protocol.data_received, data)

    def eof_received(self) -> None:
        """Pass on that the client sends no more."""
        self._pass_on(self.protocol.eof_received)

    def pause_writing(self) -> None:
        """Pass on that the client reads too slowly."""
        self._pass_on(self.protocol.pause_writing)

    def resume_writing(self) -> None:
        """Pass on that the client has read."""
        self._pass_on(self.protocol.resume_writing)

    def connection_lost(self, error: Exception | None) -> None:
        """Leave the gate, and pass on the end."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None and self._received and not self.has_asked:
            self._gate.refuse(HttpRefusal.MALFORMED)
        self._transport = None
        self._gate.leave(self)
        self._pass_on(self.protocol.connection_lost, error)

    def _pass_on(self, callback: Callable[..., object], *arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception as error:
            self._gate.report_failure(error)
            self.end(HttpRefusal.FAILED)
