"""The JSON API in front of the runs of a daemon in virtual time, and viewers of its streams."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp
import numpy as np
from yarl import URL

from gradwire_protocol.messages.logged.scalars import POINT, Logged
from gradwire_server.http.access import Access
from gradwire_server.http.api import PREFIX, api_routes
from gradwire_server.http.assets import page_routes
from gradwire_server.http.documents import Documents
from gradwire_server.http.orders import orders_route
from gradwire_server.http.server import HttpLimits
from gradwire_server.http.streams import STREAM_PATH, Streams
from gradwire_server.runs.figures import Figures
from gradwire_server.runs.orders import Order
from gradwire_server.state.run import Run
from support.histograms import counted
from support.http_side import HttpSide, request, serving, status_of
from support.simulated_daemon import Daemon
from support.waiting import until


@dataclass(frozen=True)
class Answer:
    """What the server says to a request."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def document(self) -> Any:
        return json.loads(self.text)


class Watched:
    """The runs of a daemon, and what is known of them."""

    def __init__(self) -> None:
        self.daemon = daemon = Daemon()
        self.figures = Figures(daemon.runs, lambda: (0, 0), daemon.network.now)
        self.documents = Documents(
            daemon.runs,
            self.figures,
            lambda: len(list(daemon.endpoint.connections())),
            lambda: daemon.network.now,
        )
        self.streams = Streams(self.documents)
        self._messages = count(1)

    def run(self, name: str) -> Run:
        found = self.daemon.runs.in_progress[name].run
        assert found is not None
        return found

    def pass_seconds(self, seconds: float = 1.0) -> None:
        """Let time pass, and take figures."""
        self.daemon.network.run_for(seconds)
        self.figures.sample(self.daemon.network.now)

    def log(self, run: str, rank: int, step: int, values: Mapping[str, float]) -> None:
        """Let a worker log something."""
        points = [(i, step, 0, value) for i, value in enumerate(values.values())]
        packed = np.array(points, POINT).tobytes()
        logged = Logged(next(self._messages), tuple(values), packed, 0)
        self.run(run).series.add(rank, bytes([rank]), logged, self.daemon.network.now)

    def look(self, run: str, step: int, *layers: str) -> None:
        """Let a worker send histograms of tensors."""
        found, message = self.run(run), counted(next(self._messages), step, layers)
        found.histograms.add(0, bytes(1), message, {0, 1}, self.daemon.network.now)

    def order(self, _: str, order: Order) -> str:
        return self.daemon.order(order.action, order.name, order.run)


def busy(run: str = "bert") -> Watched:
    """Return runs in which something has happened."""
    watched = Watched()
    first, second = (watched.daemon.enter(name, run) for name in "ab")
    watched.daemon.train(first, second, first)
    watched.pass_seconds()
    watched.daemon.train(second)
    for rank in (0, 1):
        for step in range(5):
            values = {"loss": 1 / (1 + step), "bad": float("nan"), "gradwire/x": 2.0}
            watched.log(run, rank, step, values)
    watched.look(run, 4, "weight", "bias")
    watched.pass_seconds()
    return watched


@asynccontextmanager
async def watching(
    watched: Watched, *, access: Access | None = None, limits: HttpLimits | None = None
) -> AsyncIterator[HttpSide]:
    """Run a server in front of runs, on loopback."""
    access = access or Access(has_keys=False)
    documents = watched.documents
    routes = [
        *page_routes(),
        orders_route(access, watched.order),
        watched.streams.route,
        *api_routes(documents.handlers, lambda: documents.runs, access),
    ]
    async with serving(
        metrics=watched.daemon.runs.metrics,
        status=documents.overview,
        access=access,
        limits=limits or HttpLimits(accept_pause_seconds=0.0),
        routes=routes,
    ) as side:
        try:
            yield side
        finally:
            watched.streams.close()


async def fetch(side: HttpSide, path: str, method: str = "GET", **options: Any) -> Answer:
    """Ask for what is at a path below that of the API, which is encoded already."""
    url = f"{side.url}{PREFIX}{path}"
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, URL(url, encoded=True), **options) as response,
    ):
        return Answer(response.status, response.headers, await response.text())


@dataclass
class Viewer:
    """Somebody who looks at a stream, and reads it unless told otherwise."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    heard: bytes = b""
    """Everything that has come, as it has."""
    is_over: bool = False
    """Whether the server has closed the connection."""
    reading: list[asyncio.Task[None]] = field(default_factory=list)

    @classmethod
    async def come(cls, side: HttpSide, query: str = "", *, reads: bool = True) -> "Viewer":
        viewer = cls(*await asyncio.open_connection("127.0.0.1", side.server.port))
        viewer.writer.write(request(STREAM_PATH + query))
        if reads:
            viewer.reading.append(asyncio.get_running_loop().create_task(viewer._read()))
        else:
            viewer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        return viewer

    async def _read(self) -> None:
        try:
            while data := await self.reader.read(2**20):
                self.heard += data
        except ConnectionError:
            pass
        self.is_over = True

    @property
    def status(self) -> int:
        return status_of(self.heard)

    @property
    def events(self) -> list[tuple[str, Any]]:
        """The whole events that have come: kinds, and what they say."""
        body = self.heard.partition(b"\r\n\r\n")[2]
        text = b""
        while b"\r\n" in body:  # chunks
            size, _, body = body.partition(b"\r\n")
            text, body = text + body[: int(size, 16)], body[int(size, 16) + 2 :]
        found = []
        for block in text.split(b"\n\n")[:-1]:
            fields = dict(line.split(": ", 1) for line in block.decode().split("\n"))
            found.append((fields["event"], json.loads(fields["data"])))
        return found

    def all(self, event: str) -> list[Any]:
        """Return what was said of a kind."""
        return [data for kind, data in self.events if kind == event]

    async def wait_for(self, event: str, n: int = 1) -> Any:
        """Wait for so many events of a kind; return what the last one of these said."""
        await until(lambda: len(self.all(event)) >= n, f"{n} events {event!r}")
        return self.all(event)[n - 1]

    async def go(self) -> None:
        """Hang up."""
        self.writer.transport.abort()
        for task in self.reading:
            task.cancel()
        await asyncio.gather(*self.reading, return_exceptions=True)
