"""`HttpServer`: the pages of the master, and the answers to refused requests."""

import json
import logging
import re
import socket
from collections.abc import Callable, Hashable, Iterator, Sequence
from ipaddress import ip_address
from typing import Any, Final
from weakref import ref

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from gradwire_protocol.limits import MIB
from gradwire_server.http.access import HEALTH_PATH, METRICS_PATH, Access
from gradwire_server.http.api.api import (
    ACCESS_PATH,
    OPERATOR,
    OPERATOR_HERE,
    ORDERS_PATH,
    STREAM_PATH,
    Api,
    Query,
    RefusedRequestError,
    query_in,
)
from gradwire_server.http.api.api import PREFIX as API_PREFIX
from gradwire_server.http.assets import HEADERS as ASSET_HEADERS
from gradwire_server.http.assets import assets, is_of_page
from gradwire_server.http.gate import Gate
from gradwire_server.http.limits import CLOSE_SECONDS_MAX, LINGERING_SECONDS_MAX, HttpLimits
from gradwire_server.http.pages import Budget, PageFailedError, SharedPage, metrics_parts
from gradwire_server.http.series_page import JSON_LINES, series_parts
from gradwire_server.http.series_page import TYPES as SERIES_TYPES
from gradwire_server.metrics import HttpRefusal, ServerMetrics
from gradwire_server.series.series import Series
from gradwire_udp import open_listener
from gradwire_udp.sockets import SocketAddress

STATUS_PATH: Final = "/status"

SERIES_PATH: Final = re.compile(r"/runs/(.+)/series")
"""What the workers of a run have logged."""

PAGES_MAX: Final = 64
PAGES_BYTES_MAX: Final = 32 * MIB
"""Documents and downloads that are kept for others that ask, and how many bytes of them."""

HEALTH: Final = b'{"status": "ok"}'
"""All that a client without a token learns: the event loop still answers."""

INDEX: Final = (
    f"gradwire master: {HEALTH_PATH}, {METRICS_PATH}, {STATUS_PATH}, /runs/NAME/series\n".encode()
)

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json; charset=utf-8"

FIXED: Final = {"/": INDEX, HEALTH_PATH: HEALTH}
"""Pages that never change."""

TYPES: Final = {
    "/": TEXT, HEALTH_PATH: JSON, METRICS_PATH: CONTENT_TYPE_LATEST, STATUS_PATH: JSON,
}  # fmt: skip
"""Content type of each page."""

REFUSED: Final[dict[HttpRefusal, tuple[int, str, dict[str, str]]]] = {
    HttpRefusal.METHOD: (405, "there is another method here", {}),
    HttpRefusal.UNAUTHORIZED: (
        401,
        "send the token of the master's --http-token-file as 'Authorization: Bearer TOKEN'",
        {"WWW-Authenticate": 'Bearer realm="gradwire"'},
    ),
    HttpRefusal.CLOSED: (
        403,
        "the master has no token, so it shows this only on its own machine, at a loopback address "
        "asked for as such. Start it with --http-token-file FILE, or, for metrics that everyone "
        "may read, with --public-metrics",
        {},
    ),
    HttpRefusal.NOT_FOUND: (404, INDEX.decode().strip(), {}),
    HttpRefusal.BAD_REQUEST: (400, "the request makes no sense", {}),
    HttpRefusal.NO_OPERATOR: (
        403,
        "an order takes the token of the master's --http-operator-token-file, as 'Authorization: "
        "Bearer TOKEN', and JSON as its content; a page of another host cannot give one",
        {},
    ),
    HttpRefusal.ORDER: (409, "the order cannot be carried out", {}),
    HttpRefusal.CROWDED: (
        503,
        "there are too many viewers; try again later",
        {"Retry-After": "30"},
    ),
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
    series : callable, optional
        Returns what the workers of a run have logged, given its name; None if there is no such run.
    api : Api, optional
        The JSON API; with it comes the page that people look at.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        status: Callable[[], dict[str, Any]],
        *,
        series: Callable[[str], Series | None] = lambda run: None,
        api: Api | None = None,
        access: Access | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        self._metrics = metrics
        self._series = series
        self._api = api
        self._access = access or Access()
        self._limits = limits = limits or HttpLimits()

        def status_parts() -> Iterator[bytes]:
            yield json.dumps(status()).encode()

        self._budget = Budget(limits.load_max)
        self._pages: dict[Hashable, tuple[ref[Any], SharedPage]] = {}
        """With what each is of."""
        self._shared = {
            METRICS_PATH: SharedPage(
                METRICS_PATH, lambda: metrics_parts(metrics.registry), load_max=limits.load_max
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
        return not self.on_loopback and not self._access.has_token

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
            # Only orders have a body, and that is as it was sent.
            auto_decompress=False,
            lingering_time=LINGERING_SECONDS_MAX,
            # Nobody waits for a document, or holds a stream, whose client has gone.
            handler_cancellation=True,
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
        if self._api is not None:
            await self._api.streams.close()
        self._server.pre_shutdown()
        await self._server.shutdown(CLOSE_SECONDS_MAX)
        self._gate.abort_all()
        for page in (*self._shared.values(), *(each for _, each in self._pages.values())):
            await page.close()
        self._gate = self._server = None

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._gate is not None
        self._gate.note_request(request.protocol)
        try:
            response = await self._respond(request)
        except RefusedRequestError as error:
            response = self._refuse(error.reason, error.text)
        except PageFailedError:
            response = self._refuse(HttpRefusal.FAILED)
        except Exception as error:
            self._gate.report_failure(error)
            response = self._refuse(HttpRefusal.FAILED)
        if not response.prepared:  # a stream has begun already
            response.headers["Cache-Control"] = "no-store"
            response.headers["X-Content-Type-Options"] = "nosniff"
            response.force_close()
        return response

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        path, api = request.path, self._api
        is_order = api is not None and path == ORDERS_PATH
        methods = ("POST",) if is_order else ("GET", "HEAD")
        if request.method not in methods:
            return self._refuse_method(methods)
        query = query_in(request.rel_url.raw_query_string)  # first: a token in it is no secret now
        of_page = api is not None and is_of_page(path)
        refusal = self._access.refusal(
            path, request.headers, on_loopback=self.on_loopback, is_of_page=of_page
        )
        if refusal is not None:
            return self._refuse(refusal)
        if of_page:
            return self._respond_with_asset(path)
        if api is not None and path.startswith(API_PREFIX):
            return await self._respond_from_api(request, api, query)
        found = SERIES_PATH.fullmatch(path)
        if found is not None:
            return await self._respond_with_series(found[1], query.get("format", [JSON_LINES])[-1])
        if path not in TYPES:
            return self._refuse(HttpRefusal.NOT_FOUND)
        body = FIXED[path] if path in FIXED else await self._shared[path].get()
        return web.Response(body=body, headers={"Content-Type": TYPES[path]})

    def _respond_with_asset(self, path: str) -> web.Response:
        asset = assets().get(path)
        if asset is None:
            return self._refuse(HttpRefusal.NOT_FOUND)
        headers = {"Content-Type": asset.content_type, **ASSET_HEADERS}
        return web.Response(body=asset.body, headers=headers)

    async def _respond_from_api(
        self, request: web.BaseRequest, api: Api, query: Query
    ) -> web.StreamResponse:
        if request.path == STREAM_PATH:
            return await self._stream(request, api, query)
        if request.path == ACCESS_PATH:
            body = json.dumps({"orders": self._operator_of(request, api) is not None}).encode()
        elif request.path == ORDERS_PATH:
            operator = self._operator_of(request, api)
            # No browser lets a page of another host send JSON without asking, which is refused.
            if operator is None or request.content_type != "application/json":
                return self._refuse(HttpRefusal.NO_OPERATOR)
            body = json.dumps(api.carry_out(await request.read(), operator)).encode()
        else:
            page = api.page(request.rel_url.raw_path, query)
            body = await self._made(self._page(page.key, request.path, page.parts))
            if not body:
                return self._refuse(HttpRefusal.NOT_FOUND, "the run is over")
        return web.Response(body=body, headers={"Content-Type": JSON})

    def _operator_of(self, request: web.BaseRequest, api: Api) -> str | None:
        """Return how the log names a client that may give orders; None for one that may not."""
        keyless = api.takes_keyless_orders and self.on_loopback
        if not self._access.may_order(request.headers, keyless=keyless):
            return None
        return OPERATOR_HERE if self._access.operator_token is None else OPERATOR

    async def _stream(self, request: web.BaseRequest, api: Api, query: Query) -> web.StreamResponse:
        assert self._gate is not None
        run = query["run"][-1] if "run" in query else None
        if run is not None:
            api.check_run(run)
        if request.method == "GET" and not self._gate.keep(request.protocol):
            return self._refuse(HttpRefusal.CROWDED)
        return await api.streams.serve(request, run)

    async def _respond_with_series(self, run: str, kind: str) -> web.Response:
        series = self._series(run)
        if series is None or kind not in SERIES_TYPES:
            return self._refuse(HttpRefusal.NOT_FOUND)
        of_run = ref(series)  # a page keeps no run in memory that has ended
        page = self._page(
            ("download", run, kind), f"/runs/{run}/series",
            lambda: series_parts(of_run(), kind), series,
        )  # fmt: skip
        body = await self._made(page)
        return web.Response(body=body, headers={"Content-Type": SERIES_TYPES[kind]})

    def _page(
        self,
        key: Hashable,
        path: str,
        parts: Callable[[], Iterator[bytes]],
        of: Series | None = None,
    ) -> SharedPage:
        """Return the page that requests with this key share; a new one if it is of another run."""
        found = self._pages.pop(key, None)
        if found is None or (of is not None and found[0]() is not of):
            page = SharedPage(path, parts, load_max=self._limits.load_max, budget=self._budget)
            found = ref(page if of is None else of), page
        self._pages[key] = found
        while len(self._pages) > PAGES_MAX:  # the one that was asked for least lately
            del self._pages[next(iter(self._pages))]
        return found[1]

    async def _made(self, page: SharedPage) -> bytes:
        """Wait for a page; where all take too much memory, forget those asked for least lately."""
        body = await page.get()
        size = sum(each.size for _, each in self._pages.values())
        while size > PAGES_BYTES_MAX:
            _, forgotten = self._pages.pop(next(iter(self._pages)))
            size -= forgotten.size
        return body

    def _refuse_method(self, methods: Sequence[str]) -> web.Response:
        response = self._refuse(HttpRefusal.METHOD, f"there is only {' and '.join(methods)} here")
        response.headers["Allow"] = ", ".join(methods)
        return response

    def _refuse(self, reason: HttpRefusal, said: str = "") -> web.Response:
        self._metrics.http_refused.labels(reason).inc()
        status, text, headers = REFUSED[reason]
        # What is refused may be quoted, with half a surrogate in it.
        body = f"{said or text}\n".encode(errors="backslashreplace")
        return web.Response(status=status, body=body, headers={"Content-Type": TEXT, **headers})
