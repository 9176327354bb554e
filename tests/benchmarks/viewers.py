"""Viewers of a run: they open its live page, and read it, or never do.

``python -m benchmarks.viewers --http HOST:PORT --run RUN --reading N --unread N``
"""

import argparse
import selectors
import socket
import threading
from dataclasses import dataclass
from typing import Final

from benchmarks.programs import announce, end_with_parent
from gradwire_udp import split_address
from gradwire_udp.process import allow_descriptors

FRAME: Final = b"event: run\n"
READ_BYTES: Final = 2**18

STATUS_BYTES_MAX: Final = 2**8

SECONDS_MAX: Final = 30.0
"""How long a master may take to accept a viewer."""


@dataclass(slots=True)
class Reader:
    """One that reads."""

    connection: socket.socket
    tail: bytes = b""
    """Where a frame may have begun that has not come whole."""
    frames: int = 0

    def read(self) -> None:
        """Take what has come.

        Raises
        ------
        ConnectionError
            If the master has ended the stream.
        """
        came = self.connection.recv(READ_BYTES)
        if not came:
            raise ConnectionError(f"the master has ended a stream after {self.frames} frames")
        data = self.tail + came
        self.frames += data.count(FRAME)
        self.tail = data[-(len(FRAME) - 1) :]


def main() -> None:
    """Open all of them, then read until the parent ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--reading", type=int, required=True)
    parser.add_argument("--unread", type=int, required=True)
    options = parser.parse_args()
    allow_descriptors()
    readers = [Reader(open_stream(options.http, options.run)) for _ in range(options.reading)]
    unread = [open_stream(options.http, options.run) for _ in range(options.unread)]
    asked = threading.Event()
    end_with_parent(asked.set)
    selector = selectors.DefaultSelector()
    for reader in readers:
        selector.register(reader.connection, selectors.EVENT_READ, reader)
    told = False
    while True:
        for key, _ in selector.select(0.1):
            key.data.read()
        if not told and all(reader.frames for reader in readers):
            told = True
            announce(viewers=len(readers) + len(unread))
        if asked.is_set():
            asked.clear()
            announce(frames=sum(reader.frames for reader in readers))


def open_stream(http: str, run: str) -> socket.socket:
    """Return a connection whose status line has been read, and nothing behind it.

    Raises
    ------
    ConnectionError
        If the master does not take the viewer.
    """
    host, port = split_address(http)
    connection = socket.create_connection((host, port), SECONDS_MAX)
    connection.sendall(f"GET /api/v1/stream?run={run} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    status = b""
    while len(status) < STATUS_BYTES_MAX and (byte := connection.recv(1)) not in (b"", b"\n"):
        status += byte
    if status.split()[1:2] != [b"200"]:
        connection.close()
        raise ConnectionError(f"the master does not take a viewer: {status!r}")
    return connection


if __name__ == "__main__":
    main()
