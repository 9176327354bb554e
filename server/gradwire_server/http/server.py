"""`HttpServer`: an aiohttp application on a listener of our own, with limits for strangers.

aiohttp accepts any number of connections, waits an hour for a request, and for ever for a client
that does not read. So connections are accepted here: at a limited rate, up to a number at once, and
each for a limited time.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from math import inf
from time import monotonic
from traceback import format_tb, walk_tb
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST

from gradwire_protocol.limits import KIB
from gradwire_server.http.access import HEALTH_PATH, Access, RequestRefusedError
from gradwire_server.http.pages import LOAD_MAX, PageFailedError, SharedPage, metrics_parts
from gradwire_server.metrics import HttpRefusal, ServerMetrics
from gradwire_udp import open_listener
from gradwire_udp.accepting import Acceptor
from gradwire_udp.sockets import SocketAddress

logger: Final = logging.getLogger("gradwire.http")

METRICS_PATH: Final = "/metrics"
OVERVIEW_PATH: Final = "/api/v1/overview"

LINGERING_SECONDS_MAX: Final = 1.0
"""How long aiohttp reads the rest of a request that it has answered: closing at once would reset
the connection, and the answer might get lost."""

CLOSE_SECONDS_MAX: Final = 0.5
"""How long an open request may delay the end of the daemon."""

FAILURE_LOG_SECONDS: Final = 1.0
"""Time between two logged failures: a client that can cause one could otherwise fill the disk."""

STATUSES: Final = {
    HttpRefusal.BAD_REQUEST: 400, HttpRefusal.UNAUTHORIZED: 401, HttpRefusal.CLOSED: 403,
    HttpRefusal.NOT_FOUND: 404, HttpRefusal.METHOD: 405, HttpRefusal.ORDER: 409,
    HttpRefusal.FAILED: 500, HttpRefusal.CROWDED: 503,
}  # fmt: skip
"""Of the answers to refused requests."""

HEALTH: Final = '{"status": "ok"}'
"""All that a client without a token learns: the event loop still answers."""

INDEX: Final = f"gradwire master: {HEALTH_PATH}, {METRICS_PATH}, {OVERVIEW_PATH}"

SILENT: Final = logging.Logger("gradwire.http.silent")
"""For aiohttp, which logs every request that it cannot parse, without a limit and with its bytes,
possibly a token."""
SILENT.disabled = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits for all clients together, each with its reason or its arithmetic.

    Measured on one core of an AMD EPYC: a connection with one request costs 0.2 ms from accept to
    close; making the metrics costs 1 ms with 56 workers, 9 ms with 1,000 and 36 ms with 4,094.

    Memory: `connections_max` times a request and a page. A page has 15 KB with 56 workers, and
    260 KB with 4,094; aiohttp takes headers of 1 MiB at most.
    """

    connections_max: int = 64
    """Open at once, without streams. One more ends the oldest, so a client that needs milliseconds
    is served even while others keep every place busy. Under a flood each connection still has
    `connections_max - connections_burst_max` over `connections_per_second_max`, half a second."""

    connections_per_second_max: float = 100.0
    """More wait in the kernel's queue, where they cost the master no time: a flood costs 100 · 0.2
    ms a second, 2 % of a core. An answer that says "too many" would cost as much as the page."""

    connections_burst_max: int = 16
    """Accepted at once after a quiet time."""

    connection_seconds_max: float = 10.0
    """From accept to the last byte of the one request: this ends clients that send slowly or read
    slowly. Prometheus allows a scrape as long by default."""

    streams_max: int = 32
    """Connections that `HttpServer.hold` has taken out of these limits."""

    body_bytes_max: int = 16 * KIB
    """Of a request; an order has 0.1 KiB."""

    load_max: float = LOAD_MAX
    """See `SharedPage`."""


class HttpServer:
    """Serves until it is closed. Each connection carries one request.

    It serves ``/healthz``, ``/metrics``, ``/api/v1/overview``, and what it is given.

    Parameters
    ----------
    metrics : ServerMetrics
        Served at ``/metrics``; also counts refused requests.
    overview : callable
        Returns the content of ``/api/v1/overview``, as values that JSON has.
    access : Access, optional
        Who may read and order.
    routes : sequence of RouteDef
        More handlers of aiohttp. Those raise `RequestRefusedError` for what they do not answer.
        One that answers for longer than `HttpLimits.connection_seconds_max`, such as a stream of
        events, first calls ``request.app[SERVER].hold(request)``.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        overview: Callable[[], dict[str, Any]],
        *,
        access: Access | None = None,
        limits: HttpLimits | None = None,
        routes: Sequence[web.RouteDef] = (),
    ) -> None:
        self.access = access or Access()
        self._metrics = metrics
        self._limits = limits = limits or HttpLimits()
        self._open: dict[web.RequestHandler, float] = {}
        """When each connection was accepted, the oldest first."""
        self._streams: dict[web.RequestHandler, float] = {}
        """Those that `hold` has taken out of it."""
        self._next_failure_log = -inf
        self._due = -inf
        self._tasks: set[asyncio.Task[None]] = set()
        self._acceptor: Acceptor | None = None
        self.port = 0

        def made_metrics() -> Iterator[bytes]:
            return metrics_parts(metrics.registry)

        def made_overview() -> Iterator[bytes]:
            yield json.dumps(overview()).encode()

        pages = [
            web.get("/", _fixed(INDEX, "text/plain")),
            web.get(HEALTH_PATH, _fixed(HEALTH, "application/json")),
            self.page(
                METRICS_PATH,
                lambda: metrics_parts(metrics.registry),
                content_type=CONTENT_TYPE_LATEST,
            ),
            self.page(OVERVIEW_PATH, made_overview),
        ]
        application = web.Application(
            middlewares=[self._answer, self.access.middleware],
            client_max_size=limits.body_bytes_max,
        )
        application[SERVER] = self
        application.add_routes([*pages, *routes])
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=SILENT,
            auto_decompress=False,
            # Nobody waits for a page, or holds a stream, whose client has gone.
            handler_cancellation=True,
            keepalive_timeout=0,
            tcp_keepalive=False,
            lingering_time=LINGERING_SECONDS_MAX,
            shutdown_timeout=CLOSE_SECONDS_MAX,
        )

    @property
    def connections(self) -> int:
        """Number of open connections, without streams."""
        return len(_alive(self._open))

    async def start(self, address: SocketAddress, family: socket.AddressFamily) -> None:
        """Listen. Where port 0 was given, `port` is the one that the system chose.

        Raises `OSError` if the address cannot be bound.
        """
        listener = open_listener(address, family)
        host, self.port = listener.getsockname()[:2]
        self.access.on_loopback = ip_address(host.partition("%")[0]).is_loopback
        await self._runner.setup()
        self._acceptor = Acceptor(asyncio.get_running_loop(), listener, self._accept, "HTTP")
        self._do(self._end_slow())

    async def close(self) -> None:
        """Stop listening; open requests get their page within `CLOSE_SECONDS_MAX`."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._runner.cleanup()
        for connection in (*self._open, *self._streams):
            _abort(connection)
        self._acceptor = None

    def page(
        self,
        path: str,
        parts: Callable[[], Iterator[bytes]],
        *,
        content_type: str = "application/json",
    ) -> web.RouteDef:
        """Return the route of a page that is made once for all who wait for it."""
        shared = SharedPage(path, parts, load_max=self._limits.load_max)

        async def show(request: web.Request) -> web.Response:
            return web.Response(body=await shared.get(), headers={"Content-Type": content_type})

        return web.get(path, show)

    def hold(self, request: web.Request) -> None:
        """Let a request last as long as its handler likes; for streams.

        The handler itself ends a client that does not read, for instance by `asyncio.timeout`
        around each write.

        Raises
        ------
        RequestRefusedError
            If `HttpLimits.streams_max` are held already.
        """
        self._streams = _alive(self._streams)
        if len(self._streams) >= self._limits.streams_max:
            raise RequestRefusedError(
                HttpRefusal.CROWDED, f"{len(self._streams)} streams are the limit: try again later"
            )
        self._streams[request.protocol] = self._open.pop(request.protocol, 0.0)

    # Connections.

    def _accept(self, connection: socket.socket, _: SocketAddress) -> None:
        self._do(self._serve(connection))
        limits, now = self._limits, monotonic()
        interval = 1 / limits.connections_per_second_max
        # The last connection of a burst needs one interval less; half of it stays for rounding.
        tolerance = (limits.connections_burst_max - 0.5) * interval
        self._due = max(self._due, now - tolerance) + interval
        if self._due > now and self._acceptor is not None:
            self._metrics.http_delayed.inc()
            self._acceptor.pause(self._due - now)

    async def _serve(self, connection: socket.socket) -> None:
        server = self._runner.server
        assert server is not None
        loop = asyncio.get_running_loop()
        try:
            _, protocol = await loop.connect_accepted_socket(server, connection)
        except OSError:
            connection.close()  # the client has closed it already
            return
        self._open = _alive(self._open)
        if len(self._open) >= self._limits.connections_max:
            self._end(next(iter(self._open)), HttpRefusal.CROWDED)
        self._open[protocol] = monotonic()

    async def _end_slow(self) -> None:
        """End each connection that has lasted too long."""
        seconds = self._limits.connection_seconds_max
        while True:
            await asyncio.sleep(seconds / 10)
            self._open, now = _alive(self._open), monotonic()
            for connection, accepted_at in list(self._open.items()):
                if now - accepted_at > seconds:
                    self._end(connection, HttpRefusal.TOO_SLOW)

    def _end(self, connection: web.RequestHandler, reason: HttpRefusal) -> None:
        self._metrics.http_refused.labels(reason).inc()
        self._open.pop(connection, None)
        _abort(connection)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Requests.

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except RequestRefusedError as error:
            response = self._refusal(error.reason, str(error))
        except web.HTTPNotFound:
            response = self._refusal(HttpRefusal.NOT_FOUND, INDEX)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            response = self._refusal(HttpRefusal.METHOD, f"there is only {allowed} here")
            response.headers["Allow"] = allowed
        except web.HTTPException as error:
            response = self._refusal(HttpRefusal.BAD_REQUEST, error.reason)
        except Exception as error:
            self._report(error)
            text = "the page could not be made; the master's log says why"
            response = self._refusal(HttpRefusal.FAILED, text)
        if not response.prepared:  # a stream has begun already
            response.headers["Cache-Control"] = "no-store"
            response.headers["X-Content-Type-Options"] = "nosniff"
            response.force_close()
        return response

    def _refusal(self, reason: HttpRefusal, text: str) -> web.Response:
        self._metrics.http_refused.labels(reason).inc()
        response = web.Response(status=STATUSES[reason], text=f"{text}\n")
        if reason is HttpRefusal.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = 'Bearer realm="gradwire"'
        return response

    def _report(self, error: Exception) -> None:
        """Log the type and the traceback of an error; its message could quote a token."""
        if not isinstance(error, PageFailedError) and monotonic() >= self._next_failure_log:
            self._next_failure_log = monotonic() + FAILURE_LOG_SECONDS
            where = "".join(format_tb(error.__traceback__))
            logger.error("an HTTP request failed: %s\n%s", type(error).__name__, where)


SERVER: Final = web.AppKey("SERVER", HttpServer)
"""For handlers: ``request.app[SERVER]``."""


def is_of_aiohttp(error: BaseException | None) -> bool:
    """Return whether aiohttp has raised an error, which then concerns one connection of it."""
    frames = walk_tb(None if error is None else error.__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith("aiohttp.") for frame, _ in frames)


def _fixed(text: str, content_type: str) -> Handler:
    async def show(request: web.Request) -> web.Response:
        return web.Response(text=text, content_type=content_type)

    return show


def _alive(connections: dict[web.RequestHandler, float]) -> dict[web.RequestHandler, float]:
    return {each: at for each, at in connections.items() if each.transport is not None}


def _abort(connection: web.RequestHandler) -> None:
    if connection.transport is not None:
        connection.transport.abort()
