"""The HTTP side: `/metrics` for Prometheus, `/healthz` for whoever restarts daemons.

It shares the event loop with the datagrams, so nothing here waits or computes for long.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

SHUTDOWN_SECONDS_MAX = 0.5
"""How long an open request may hold up the end of the daemon."""


class HttpServer:
    """Serves until it is closed.

    Parameters
    ----------
    registry : CollectorRegistry
        Behind ``/metrics``.
    status : callable
        Returns what ``/healthz`` says: plain values, as JSON holds them.
    refresh : callable, optional
        Awaited before the registry is read.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        status: Callable[[], dict[str, Any]],
        refresh: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._registry = registry
        self._status = status
        self._refresh = refresh
        application = web.Application(client_max_size=1024)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/", self._index)
        self._runner = web.AppRunner(
            application, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS_MAX
        )
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen; `port` tells where, if it was given as 0.

        Raises
        ------
        OSError
            If the address cannot be had.
        """
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        if self._refresh is not None:
            await self._refresh()
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(self._status(), dumps=json.dumps)

    async def _index(self, request: web.Request) -> web.Response:
        return web.Response(text="gradwire master: /metrics, /healthz\n")
