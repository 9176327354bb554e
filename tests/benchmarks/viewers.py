"""Viewers of a master's page, and a Prometheus: ``-m benchmarks.viewers HOST:PORT COUNT``.

Each viewer reads the stream of events of the run, but for one that never reads. The metrics are
asked for once a second.
"""

import asyncio
import sys
from asyncio import StreamReader, StreamWriter
from typing import Final

from benchmarks.programs import announce, end_with_parent

SCRAPE_SECONDS: Final = 1.0
BYTES: Final = 2**16


async def ask(address: str, path: str) -> tuple[StreamReader, StreamWriter]:
    """Ask a master for a page; return where the answer comes."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    await writer.drain()
    return reader, writer


async def read_all(reader: StreamReader) -> int:
    """Read until the other side ends; return how many bytes came."""
    count = 0
    while data := await reader.read(BYTES):
        count += len(data)
    return count


async def scrape(address: str) -> None:
    """Ask for the metrics again and again."""
    while True:
        reader, writer = await ask(address, "/metrics")
        await read_all(reader)
        writer.close()
        await asyncio.sleep(SCRAPE_SECONDS)


async def watch(address: str, count: int) -> None:
    """Look at the run until the parent ends."""
    viewers = [await ask(address, "/api/v1/stream?run=default") for _ in range(count)]
    for reader, _ in viewers[1:]:
        await reader.readuntil(b"event: run")
    announce(viewers=count)
    await asyncio.gather(scrape(address), *(read_all(reader) for reader, _ in viewers[1:]))


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(watch(sys.argv[1], int(sys.argv[2])))
