"""`HttpServer`: an aiohttp application on a listener of our own, with limits for strangers.

aiohttp accepts any number of connections, waits an hour for a request, and for ever for a client
that does not read. So connections are accepted here: one at a time, up to a number, and each for a
limited time.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from time import monotonic
from traceback import format_tb, walk_tb
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST

from gradwire_protocol.limits import KIB
from gradwire_server.http.access import HEALTH_PATH, Access
from gradwire_server.http.pages import FAILED, SharedPage, metrics_parts
from gradwire_server.metrics import HttpRefusal, ServerMetrics
from gradwire_udp import open_listener
from gradwire_udp.accepting import Acceptor
from gradwire_udp.sockets import SocketAddress

logger: Final = logging.getLogger("gradwire.http")

METRICS_PATH: Final = "/metrics"
OVERVIEW_PATH: Final = "/api/v1/overview"

HEADERS: Final = {
    "Cache-Control": "no-store", "Connection": "close", "X-Content-Type-Options": "nosniff",
}  # fmt: skip
"""Of every answer."""

BODY_BYTES_MAX: Final = 16 * KIB
"""Of a request; an order has 0.1 KiB."""

LINGERING_SECONDS_MAX: Final = 1.0
"""How long aiohttp reads the rest of a request that it has answered: closing at once would reset
the connection, and the answer might get lost."""

CLOSE_SECONDS_MAX: Final = 0.5
"""How long an open request may delay the end of the daemon."""

REASONS: Final = {
    401: HttpRefusal.UNAUTHORIZED, 403: HttpRefusal.CLOSED, 404: HttpRefusal.NOT_FOUND,
    405: HttpRefusal.METHOD, 409: HttpRefusal.ORDER, 500: HttpRefusal.FAILED,
    503: HttpRefusal.CROWDED,
}  # fmt: skip
"""How answers of each status are counted; others are bad requests."""

SILENT: Final = logging.Logger("gradwire.http.silent")
"""For aiohttp, which logs every request that it cannot parse, without a limit and with its bytes,
possibly a token."""
SILENT.disabled = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits for all clients together, each with its reason or its arithmetic.

    Measured on one core of an AMD EPYC: a connection with one request costs 0.2 ms from accept to
    close. Memory: `connections_max` times a page, 260 KB with 4,094 workers, and the headers that
    aiohttp takes, 1 MiB at most.
    """

    connections_max: int = 64
    """Open at once, without streams. One more ends the oldest, so a client that needs milliseconds
    is served even while others keep every place busy: under a flood, each has half a second."""

    accept_pause_seconds: float = 0.01
    """After each connection. More wait in the kernel's queue, where they cost the master no time: a
    flood costs 100 · 0.2 ms a second, 2 % of a core."""

    connection_seconds_max: float = 10.0
    """From accept to the last byte of the one request: this ends clients that send slowly or read
    slowly. Prometheus allows a scrape as long by default."""

    streams_max: int = 1_024
    """Connections that `HttpServer.hold` has taken out of these limits. With 20 workers, 16 KB wait
    for each at most."""


class HttpServer:
    """Serves until it is closed. Each connection carries one request.

    Parameters
    ----------
    metrics : ServerMetrics
        Served at ``/metrics``; also counts refused requests.
    overview : callable
        Returns the content of ``/api/v1/overview``, as values that JSON has.
    access : Access, optional
        Who may read and order.
    routes : sequence of RouteDef
        More handlers. They raise aiohttp's exceptions for what they do not answer. One that takes
        longer than `HttpLimits.connection_seconds_max`, such as a stream of events, first calls
        ``request.app[SERVER].hold(request)``.
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
        self.port = 0
        self._metrics = metrics
        self._limits = limits or HttpLimits()
        self._open: dict[web.RequestHandler, float] = {}
        """When each connection was accepted, the oldest first."""
        self._streams: dict[web.RequestHandler, float] = {}
        """Those that `hold` has taken out of it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._acceptor: Acceptor | None = None

        def made_overview() -> Iterator[bytes]:
            yield json.dumps(overview()).encode()

        made_metrics = partial(metrics_parts, metrics.registry)

        application = web.Application(
            middlewares=[self._report, self.access.middleware],
            client_max_size=BODY_BYTES_MAX,
        )
        application.on_response_prepare.append(self._prepare)
        application[SERVER] = self
        application.add_routes(
            [
                web.get(HEALTH_PATH, _health),
                page_route(METRICS_PATH, made_metrics, CONTENT_TYPE_LATEST),
                page_route(OVERVIEW_PATH, made_overview),
                *routes,
            ]
        )
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

    def hold(self, request: web.Request) -> None:
        """Let a request last as long as its handler likes, or raise `web.HTTPServiceUnavailable`.

        The handler then ends a client that does not read, as by `asyncio.timeout` for each write.
        """
        self._streams = _alive(self._streams)
        if (count := len(self._streams)) >= self._limits.streams_max:
            raise web.HTTPServiceUnavailable(text=f"{count} streams are the limit: try again later")
        self._streams[request.protocol] = self._open.pop(request.protocol, 0.0)

    # Connections.

    def _accept(self, connection: socket.socket, _: SocketAddress) -> None:
        self._do(self._serve(connection))
        assert self._acceptor is not None
        self._acceptor.pause(self._limits.accept_pause_seconds)

    async def _serve(self, connection: socket.socket) -> None:
        assert self._runner.server is not None
        loop = asyncio.get_running_loop()
        try:
            _, protocol = await loop.connect_accepted_socket(self._runner.server, connection)
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
            self._open = _alive(self._open)
            for connection, accepted_at in list(self._open.items()):
                if monotonic() - accepted_at > seconds:
                    self._end(connection, HttpRefusal.TOO_SLOW)

    def _end(self, connection: web.RequestHandler, reason: HttpRefusal) -> None:
        self._metrics.http_refused.labels(reason).inc()
        del self._open[connection]
        _abort(connection)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Requests.

    @web.middleware
    async def _report(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Log an error of a handler, without its message, which could quote a token."""
        try:
            return await handler(request)
        except web.HTTPException:
            raise
        except Exception as error:
            where = "".join(format_tb(error.__traceback__))
            logger.error("an HTTP request failed: %s\n%s", type(error).__name__, where)  # noqa: TRY400
            raise web.HTTPInternalServerError(text=FAILED) from None

    async def _prepare(self, _: web.Request, response: web.StreamResponse) -> None:
        """Count a refusal, and have this be the one answer of its connection."""
        if (status := response.status) >= HTTPStatus.BAD_REQUEST:
            self._metrics.http_refused.labels(REASONS.get(status, HttpRefusal.BAD_REQUEST)).inc()
        response.headers.update(HEADERS)
        response.force_close()


SERVER: Final = web.AppKey("SERVER", HttpServer)
"""For handlers: ``request.app[SERVER]``."""


def page_route(
    path: str, parts: Callable[[], Iterator[bytes]], content_type: str = "application/json"
) -> web.RouteDef:
    """Return the route of a page that is made once for all who wait for it; see `SharedPage`."""
    shared = SharedPage(path, parts)

    async def show(_: web.Request) -> web.Response:
        return web.Response(body=await shared.get(), headers={"Content-Type": content_type})

    return web.get(path, show)


def is_of_aiohttp(error: BaseException | None) -> bool:
    """Return whether aiohttp has raised an error, which then concerns one connection of it."""
    frames = walk_tb(None if error is None else error.__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith("aiohttp.") for frame, _ in frames)


async def _health(_: web.Request) -> web.Response:
    """Say that the event loop still answers: all that a client without a token learns."""
    return web.json_response({"status": "ok"})


def _alive(connections: dict[web.RequestHandler, float]) -> dict[web.RequestHandler, float]:
    return {each: at for each, at in connections.items() if each.transport is not None}


def _abort(connection: web.RequestHandler) -> None:
    if connection.transport is not None:
        connection.transport.abort()
