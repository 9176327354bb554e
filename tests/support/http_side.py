"""The HTTP side of a master on loopback, and visitors who need not speak HTTP as they should."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any

import pytest
from aiohttp import web

from gradwire_server.http.access import Access
from gradwire_server.http.server import HttpLimits, HttpServer
from gradwire_server.metrics import HttpRefusal, ServerMetrics
from gradwire_udp import resolve
from support.loops import LOOPS_BY_NAME
from support.waiting import until

STATUS: dict[str, Any] = {"status": "ok", "run": None, "workers": [{"rank": 0}]}


def on_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a test of a coroutine: it runs on both loops, and no callback may fail in it.

    A callback that fails ends a daemon.
    """

    @wraps(test)
    def run(kind: str, **fixtures: Any) -> None:
        failures: list[dict[str, Any]] = []

        async def watched() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: failures.append(context))
            await test(**fixtures)

        with asyncio.Runner(loop_factory=LOOPS_BY_NAME[kind]) as runner:
            runner.run(watched())
        assert failures == []

    added = Parameter("kind", Parameter.KEYWORD_ONLY)
    parameters = [*signature(test).parameters.values(), added]
    vars(run)["__signature__"] = signature(test).replace(parameters=parameters)
    made: Callable[..., None] = pytest.mark.parametrize("kind", ["asyncio", "uvloop"])(run)
    return made


@dataclass
class HttpSide:
    """A server, and what it has counted."""

    server: HttpServer
    metrics: ServerMetrics

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def refused(self, reason: HttpRefusal) -> float:
        return (
            self.metrics.registry.get_sample_value(
                "gradwire_http_refused_total", {"reason": reason}
            )
            or 0.0
        )

    @property
    def refusals(self) -> dict[HttpRefusal, float]:
        """All that were counted, by reason."""
        return {reason: n for reason in HttpRefusal if (n := self.refused(reason))}

    async def wait_for_refusals(self, reason: HttpRefusal, n: int = 1) -> None:
        await until(lambda: self.refused(reason) >= n, f"{n} refused as {reason}")


@asynccontextmanager
async def serving(
    *,
    metrics: ServerMetrics | None = None,
    status: Callable[[], dict[str, Any]] = lambda: STATUS,
    access: Access | None = None,
    limits: HttpLimits | None = None,
    routes: Sequence[web.RouteDef] = (),
) -> AsyncIterator[HttpSide]:
    """Run a server on loopback."""
    metrics = metrics or ServerMetrics()
    server = HttpServer(metrics, status, access=access, limits=limits, routes=routes)
    family, address = resolve("127.0.0.1:0")
    await server.start(address, family)
    try:
        yield HttpSide(server, metrics)
    finally:
        await server.close()


class Visitor:
    """A TCP connection to a server that sends what a test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def come(cls, side: HttpSide) -> "Visitor":
        return cls(*await asyncio.open_connection("127.0.0.1", side.server.port))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def hear(self) -> bytes:
        """Return all that comes until the server closes, whichever way it does."""
        heard = b""
        try:
            while data := await self._reader.read(65536):
                heard += data
        except ConnectionError:
            pass
        return heard

    def go(self) -> None:
        self._writer.transport.abort()


def request(path: str, *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    """Return a request as it travels."""
    if body:
        headers = (*headers, f"Content-Length: {len(body)}")
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def ask(side: HttpSide, data: bytes) -> bytes:
    """Send something on a connection of its own; return all that comes back."""
    visitor = await Visitor.come(side)
    try:
        visitor.send(data)
        return await visitor.hear()
    finally:
        visitor.go()


def status_of(answer: bytes) -> int:
    """Return the status of an answer."""
    return int(answer.split(b" ", 2)[1])
