"""`Gate`: lets connections in at a rate, few at a time, and each for a while only.

aiohttp reads requests well, but takes as many connections as come, waits an hour for a request and
for ever for a reader. So accepting is done here, and between each transport and aiohttp stands a
`Visit` that counts and keeps the time.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from math import inf
from time import monotonic
from traceback import format_tb
from typing import Any, Final, cast

from gradwire_server.http.limits import HttpLimits
from gradwire_server.metrics import HttpRefusal, ServerMetrics
from gradwire_udp.accepting import Acceptor
from gradwire_udp.sockets import SocketAddress

logger: Final = logging.getLogger("gradwire.http")

FAILURE_LOG_SECONDS: Final = 1.0
"""At most one failure is logged in so long: a client that has found one could fill the disk."""


class Gate:
    """Accepts connections until it is closed.

    Parameters
    ----------
    listener : socket.socket
        Listening and non-blocking; closed with the gate.
    protocol : callable
        Makes what talks with one visitor.
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
        """By the protocol behind each, the oldest first."""
        self._next_failure_log = 0.0
        self._interval = 1 / limits.connections_per_second_max
        # Half an interval more than it takes for the last one of a burst, for rounding.
        self._tolerance = (limits.connections_burst_max - 0.5) * self._interval
        self._due = -inf
        self._entering: set[asyncio.Task[None]] = set()
        self._acceptor = Acceptor(self._loop, listener, self._let_in, "HTTP")

    def __len__(self) -> int:
        """Return how many visitors there are."""
        return len(self._visits)

    def note_request(self, protocol: asyncio.BaseProtocol) -> None:
        """Take note that a visitor has sent a whole request, and not anything else."""
        visit = self._visits.get(protocol)
        if visit is not None:
            visit.has_asked = True

    async def accept_no_more(self) -> None:
        """Let nobody in any more; those who are in stay."""
        self._acceptor.close()
        await asyncio.gather(*self._entering, return_exceptions=True)

    def turn_out(self) -> None:
        """End all visits, served or not."""
        for visit in list(self._visits.values()):
            visit.end()

    # For visits.

    def enter(self, visit: "Visit") -> None:
        """Give a visitor a place, the oldest one's if there is no other."""
        if len(self._visits) >= self._limits.connections_max:
            next(iter(self._visits.values())).end(HttpRefusal.CROWDED)
        self._visits[visit.protocol] = visit

    def leave(self, visit: "Visit") -> None:
        """Take note that a visitor is gone, or as good as gone."""
        self._visits.pop(visit.protocol, None)

    def refuse(self, reason: HttpRefusal) -> None:
        """Count somebody who gets no answer."""
        self._metrics.http_refused.labels(reason).inc()

    def report_failure(self, error: Exception) -> None:
        """Log an error of the code behind a visit, but not its message: that may quote a token."""
        if monotonic() >= self._next_failure_log:
            self._next_failure_log = monotonic() + FAILURE_LOG_SECONDS
            where = "".join(format_tb(error.__traceback__))
            logger.error("an HTTP connection failed: %s\n%s", type(error).__name__, where)

    # Private.

    def _let_in(self, connection: socket.socket, _: SocketAddress) -> None:
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
            connection.close()  # it was gone already


class Visit(asyncio.Protocol):
    """One connection: passes on what happens to it, until it has had enough.

    Nothing that the protocol behind it raises gets through, because an error of a callback would
    end the daemon.

    Parameters
    ----------
    protocol : asyncio.Protocol
        Talks with the visitor.
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
        """Close the connection at once, whatever still has to be sent."""
        if self._transport is None:
            return
        if reason is not None:
            self._gate.refuse(reason)
        self._gate.leave(self)
        self._transport.abort()
        self._transport = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place, for a while."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._gate.enter(self)
        self._timer = asyncio.get_running_loop().call_later(
            self._limits.connection_seconds_max, self.end, HttpRefusal.TOO_SLOW
        )
        self._pass_on(self.protocol.connection_made, transport)

    def data_received(self, data: bytes) -> None:
        """Pass on what has come, unless it is too much."""
        self._received += len(data)
        if self._received > self._limits.request_bytes_max:
            self.end(HttpRefusal.TOO_LARGE)
        else:
            self._pass_on(self.protocol.data_received, data)

    def eof_received(self) -> None:
        """Pass on that no more will come."""
        self._pass_on(self.protocol.eof_received)

    def pause_writing(self) -> None:
        """Pass on that the visitor reads too slowly."""
        self._pass_on(self.protocol.pause_writing)

    def resume_writing(self) -> None:
        """Pass on that the visitor has read."""
        self._pass_on(self.protocol.resume_writing)

    def connection_lost(self, error: Exception | None) -> None:
        """Give the place back."""
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
