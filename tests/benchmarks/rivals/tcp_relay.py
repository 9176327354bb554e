"""An asyncio server on uvloop relays updates over TCP streams.

``python -m benchmarks.rivals.tcp_relay``
"""

import asyncio
from typing import Final

import uvloop

from benchmarks.programs import Meter, announce, end_with_parent
from benchmarks.work import Work

LENGTH_BYTES: Final = 4


class Relay:
    """Hands every message on to all other connections."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self._writers.append(writer)
        writer.write(b"!")  # from now on it gets what others send
        try:
            while True:
                head = await reader.readexactly(LENGTH_BYTES)
                body = await reader.readexactly(int.from_bytes(head, "little"))
                others = [other for other in self._writers if other is not writer]
                for other in others:
                    other.writelines((head, body))
                for other in others:
                    await other.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self._writers.remove(writer)


def exchange(relay: dict[str, int], pid: int, work: Work) -> Meter:
    """Let the workers do their part; return what it cost the relay."""
    return uvloop.run(_exchange(relay["port"], pid, work))


async def _exchange(port: int, pid: int, work: Work) -> Meter:
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(work.workers)]
    for reader, _ in streams:
        await reader.readexactly(1)
    message = len(work.body).to_bytes(LENGTH_BYTES, "little") + work.body

    async def send(writer: asyncio.StreamWriter) -> None:
        for _ in range(work.updates):
            writer.write(message)
            await writer.drain()

    async def receive(reader: asyncio.StreamReader) -> None:
        for _ in range(work.expected):
            await reader.readexactly(len(message))

    with Meter(pid) as meter:
        await asyncio.gather(*(send(w) for _, w in streams), *(receive(r) for r, _ in streams))
    for _, writer in streams:
        writer.close()
    return meter


async def _serve() -> None:
    server = await asyncio.start_server(Relay().serve, "127.0.0.1", 0)
    announce(port=server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    end_with_parent()
    uvloop.run(_serve())
