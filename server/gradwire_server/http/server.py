"""`HttpServer`: the pages of the master, and the answers to refused requests."""

import json
import logging
import socket
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Any, Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from gradwire_server.http.access import HEALTH_PATH, Access
from gradwire_server.http.gate import Gate, HttpLimits
from gradwire_server.http.pages import PageFailedError, SharedPage, metrics_parts
from gradwire_server.metrics import HttpRefusal, ServerMetrics
from gradwire_udp import open_listener
from gradwire_udp.sockets import SocketAddress

METRICS_PATH: Final = "/metrics"
STATUS_PATH: Final = "/status"

LINGERING_SECONDS_MAX: Final = 1.0
"""How long aiohttp reads the rest of a request that it has answered: closing at once would reset
the connection, and the answer might get lost."""

CLOSE_SECONDS_MAX: Final = 0.5
"""How long an open request may delay the end of the daemon."""

HEALTH: Final = b'{"status": "ok"}'
"""All that a client without a token learns: the event loop still answers."""

INDEX: Final = f"gradwire master: {HEALTH_PATH}, {METRICS_PATH}, {STATUS_PATH}\n".encode()

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json; charset=utf-8"

FIXED: Final = {"/": INDEX, HEALTH_PATH: HEALTH}
"""Pages that never change."""

TYPES: Final = {
    "/": TEXT, HEALTH_PATH: JSON, METRICS_PATH: CONTENT_TYPE_LATEST, STATUS_PATH: JSON,
}  # fmt: skip
"""Content type of each page."""

REFUSED: Final[dict[HttpRefusal, tuple[int, str, dict[str, str]]]] = {
    HttpRefusal.METHOD: (405, "there is only GET and HEAD here", {"Allow": "GET, HEAD"}),
    HttpRefusal.UNAUTHORIZED: (
        401,
        "send the token of the master's --http-token-file as 'Authorization: Bearer TOKEN'",
        {"WWW-Authenticate": 'Bearer realm="gradwire"'},
    ),
    HttpRefusal.CLOSED: (
        403,
        "the master has no token, so it shows this only on its own machine, at a loopback address "
        "asked for as such. Start it with --http-token-file FILE",
        {},
    ),
    HttpRefusal.NOT_FOUND: (404, INDEX.decode().strip(), {}),
    HttpRefusal.FAILED: (500, "the page could not be made; the master's log says why", {}),
}
"""Answers to refused requests: status, text, headers."""

SILENT: Final = logging.Logger("gradwire.http.silent")
"""For aiohttp, which logs every request that it cannot parse, without a limit and with its bytes,
possibly a token. `gradwire_http_refused_total` counts these requests."""
SILENT.disabled = True


class HttpServer:
    """Serves until it is closed. Each connection carries one request.

    Parameters
    ----------
    metrics : ServerMetrics
        Served at ``/metrics``; also counts refused requests.
    status : callable
        Returns the content of ``/status``, as values that JSON has.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        status: Callable[[], dict[str, Any]],
        *,
        access: Access | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        self._metrics = metrics
        self._access = access or Access()
        self._limits = limits = limits or HttpLimits()

        def status_parts() -> Iterator[bytes]:
            yield json.dumps(status()).encode()

        self._shared = {
            METRICS_PATH: SharedPage(
                METRICS_PATH,
                lambda: metrics_parts(metrics.registry),
                load_max=limits.load_max,
            ),
            STATUS_PATH: SharedPage(STATUS_PATH, status_parts, load_max=limits.load_max),
        }
        self._gate: Gate | None = None
        self._server: web.Server | None = None
        self.on_loopback = False
        """Whether only this machine can reach the server."""
        self.port = 0

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return 0 if self._gate is None else len(self._gate)

    @property
    def lacks_token(self) -> bool:
        """Whether other machines can reach it, and its pages are closed for want of a token."""
        return not self.on_loopback and self._access.token is None

    def start(self, address: SocketAddress, family: socket.AddressFamily) -> None:
        """Listen. Where port 0 was given, `port` is the one that the system chose.

        Raises `OSError` if the address cannot be bound.
        """
        listener = open_listener(address, family)
        host, self.port = listener.getsockname()[:2]
        self.on_loopback = ip_address(host.partition("%")[0]).is_loopback
        self._server = web.Server(
            self._answer,
            access_log=None,
            logger=SILENT,
            # No page reads the body of a request.
            auto_decompress=False,
            lingering_time=LINGERING_SECONDS_MAX,
            # The gate limits the duration of every connection.
            keepalive_timeout=0,
            tcp_keepalive=False,
        )
        self._gate = Gate(listener, self._server, self._metrics, self._limits)

    async def close(self) -> None:
        """Stop listening; open requests get their page within `CLOSE_SECONDS_MAX`."""
        if self._gate is None or self._server is None:
            return
        await self._gate.stop_accepting()
        self._server.pre_shutdown()
        await self._server.shutdown(CLOSE_SECONDS_MAX)
        self._gate.abort_all()
        for page in self._shared.values():
            await page.close()
        self._gate = self._server = None

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._gate is not None
        self._gate.note_request(request.protocol)
        try:
            response = await self._respond(request)
        except PageFailedError:
            response = self._refuse(HttpRefusal.FAILED)
        except Exception as error:
            self._gate.report_failure(error)
            response = self._refuse(HttpRefusal.FAILED)
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.force_close()
        return response

    async def _respond(self, request: web.BaseRequest) -> web.Response:
        path = request.path
        if request.method not in ("GET", "HEAD"):
            return self._refuse(HttpRefusal.METHOD)
        refusal = self._access.refusal(path, request.headers, on_loopback=self.on_loopback)
        if refusal is not None:
            return self._refuse(refusal)
        if path not in TYPES:
            return self._refuse(HttpRefusal.NOT_FOUND)
        body = FIXED[path] if path in FIXED else await self._shared[path].get()
        return web.Response(body=body, headers={"Content-Type": TYPES[path]})

    def _refuse(self, reason: HttpRefusal) -> web.Response:
        self._metrics.http_refused.labels(reason).inc()
        status, text, headers = REFUSED[reason]
        body = f"{text}\n".encode()
        return web.Response(status=status, body=body, headers={"Content-Type": TEXT, **headers})
