"""The HTTP API in front of the runs of a daemon in virtual time, and viewers of its streams."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from gradwire_protocol.messages.admission import Refuse
from gradwire_protocol.messages.operating.orders import Order, OrderDone
from gradwire_protocol.messages.operating.scalars import Logged, pack_points
from gradwire_server.config import MasterConfig
from gradwire_server.http.access import Access
from gradwire_server.http.api.api import PREFIX, STREAM_PATH, Api
from gradwire_server.http.api.documents import Documents
from gradwire_server.http.api.stream import Streams
from gradwire_server.http.limits import HttpLimits
from gradwire_server.runs.figures import Figures
from gradwire_server.state.run import Run
from support.http_side import HttpSide, request, serving, status_of
from support.simulated_daemon import Daemon
from support.waiting import until

HURRY = HttpLimits(load_max=1.0, connections_per_second_max=1e6)
"""Documents are of the moment that they are asked for, and no connection has to wait."""

MESSAGES = count(1)
"""Numbers of what workers log."""


class Answer(NamedTuple):
    """What the server says to a request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Watched:
    """The runs of a daemon, what is known of them, and their API."""

    def __init__(self, config: MasterConfig | None = None, *, load_max: float = 1.0) -> None:
        self.daemon = daemon = Daemon(config)
        self.traffic = (0, 0)
        self.figures = Figures(daemon.runs, lambda: self.traffic, daemon.network.now)
        self.documents = Documents(
            daemon.runs,
            self.figures,
            lambda: len(list(daemon.endpoint.connections())),
            lambda: daemon.network.now,
        )
        self.streams = Streams(self.documents, daemon.runs.metrics, load_max=load_max)
        self.api = Api(
            self.documents, self.streams, self._order, lambda: daemon.runs.takes_keyless_orders
        )

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
        points = pack_points([(i, step, 0, value) for i, value in enumerate(values.values())])
        logged = Logged(next(MESSAGES), tuple(values), points, 0)
        self.run(run).series.add(rank, bytes([rank % 256]), logged, self.daemon.network.now)

    def log_much(self, run: str, rank: int, names: int, steps: int) -> None:
        """Let a worker log so many series of so many steps, a message for each step."""
        what = {f"s{i}": 1 / (1 + i) for i in range(names)}
        for step in range(steps):
            self.run(run).series.add(
                rank,
                bytes([rank % 256]),
                Logged(
                    next(MESSAGES),
                    tuple(what),
                    pack_points([(i, step, 0, value) for i, value in enumerate(what.values())]),
                    0,
                ),
                self.daemon.network.now + float(step),
            )

    def _order(self, operator: str, order: Order) -> OrderDone | Refuse:
        network = self.daemon.network
        answer = self.daemon.runs.order(operator, order, network.now)
        network.turn(self.daemon.host)
        return answer


@asynccontextmanager
async def watching(
    watched: Watched, *, access: Access | None = None, limits: HttpLimits = HURRY
) -> AsyncIterator[HttpSide]:
    """Run a server in front of runs, on loopback."""
    runs = watched.daemon.runs
    async with serving(
        metrics=runs.metrics,
        status=runs.status,
        series=runs.series,
        api=watched.api,
        access=access,
        limits=limits,
    ) as side:
        yield side


async def send(side: HttpSide, data: bytes) -> Answer:
    """Send a request on a connection of its own; return the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", side.server.port)
    try:
        writer.write(data)
        heard = await reader.read(-1)
    finally:
        writer.transport.abort()
    head, _, body = heard.partition(b"\r\n\r\n")
    lines = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:]]
    return Answer(status_of(heard), {name.lower(): value for name, value in lines}, body)


async def fetch(side: HttpSide, path: str, *headers: str, method: str = "GET") -> Answer:
    """Ask for what is at a path below that of the API, or at one that begins with a slash."""
    full = path if path.startswith("/") else PREFIX + path
    return await send(side, request(full, *headers, method=method))


def order_request(
    body: bytes, *headers: str, kind: str | None = "application/json", method: str = "POST"
) -> bytes:
    """Return an order as it travels."""
    given = [] if kind is None else [f"Content-Type: {kind}"]
    return (
        request(PREFIX + "orders", *given, f"Content-Length: {len(body)}", *headers, method=method)
        + body
    )


async def give_order(
    side: HttpSide, action: str, *headers: str, name: str = "", run: str | None = None
) -> Answer:
    """Give an order as the page does."""
    body = {"action": action, "name": name, "run": run}
    return await send(side, order_request(json.dumps(body).encode(), *headers))


@dataclass(frozen=True)
class Sent:
    """An event of a stream."""

    event: str
    data: Any


class Viewer:
    """Somebody who looks at a stream, and reads it unless told otherwise."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard = b""
        """Everything that has come, as it has."""
        self.is_over = False
        """Whether the server has closed the connection."""
        self._reader = reader
        self._writer = writer
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def come(
        cls, side: HttpSide, query: str = "", *headers: str, reads: bool = True
    ) -> "Viewer":
        viewer = cls(*await asyncio.open_connection("127.0.0.1", side.server.port))
        viewer._writer.write(request(STREAM_PATH + query, *headers))
        if reads:
            viewer.read()
        else:
            viewer._writer.transport.pause_reading()  # type: ignore[attr-defined]
        return viewer

    def read(self) -> None:
        """Begin to read, or go on."""
        if self._reading is None:
            transport: Any = self._writer.transport
            if not transport.is_reading():
                transport.resume_reading()
            self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(2**20):
                self.heard += data
        except ConnectionError:
            pass
        self.is_over = True

    @property
    def status(self) -> int:
        return status_of(self.heard)

    @property
    def body(self) -> bytes:
        """What has come after the head, without the marks of chunks."""
        _, _, rest = self.heard.partition(b"\r\n\r\n")
        body = b""
        while b"\r\n" in rest:
            size, _, rest = rest.partition(b"\r\n")
            body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        return body

    @property
    def events(self) -> list[Sent]:
        """The whole events that have come."""
        found = []
        for block in self.body.split(b"\n\n")[:-1]:
            fields = dict(line.split(": ", 1) for line in block.decode().split("\n"))
            found.append(Sent(fields["event"], json.loads(fields["data"])))
        return found

    def all(self, event: str) -> list[Any]:
        """Return what was said of a kind."""
        return [sent.data for sent in self.events if sent.event == event]

    async def wait_for(self, event: str, n: int = 1) -> Any:
        """Wait for so many events of a kind; return what the last one of these said."""
        await until(lambda: len(self.all(event)) >= n, f"{n} events {event!r}")
        return self.all(event)[n - 1]

    async def wait_for_end(self) -> None:
        await until(lambda: self.is_over, "the end of a stream")

    async def go(self) -> None:
        """Hang up."""
        self._writer.transport.abort()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


def columns_of(curve: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the columns of a curve."""
    return {name: curve[name] for name in ("step", "seconds", "mean", "low", "high")}


NAN, INFINITY = float(np.nan), float(np.inf)
