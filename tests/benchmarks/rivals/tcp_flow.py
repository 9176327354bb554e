"""One flow over TCP, a process at each end; the options are those of `benchmarks.flow`.

``python -m benchmarks.rivals.tcp_flow receive|send``
"""

import socket
import time
from contextlib import suppress
from typing import Final

from benchmarks.flow_options import FlowOptions, flow_options
from benchmarks.programs import announce, end_with_parent

CHUNK_BYTES: Final = 2**20


def receive(options: FlowOptions) -> None:
    """Count what comes in, from the moment the flow is there."""
    with socket.create_server((options.host, options.port)) as server:
        announce(port=server.getsockname()[1])
        connection, _ = server.accept()
    buffer, received = bytearray(CHUNK_BYTES), 0
    with connection:
        began, used = time.monotonic(), time.process_time()
        end = began + options.seconds
        while (left := end - time.monotonic()) > 0:
            connection.settimeout(left)
            try:
                received += connection.recv_into(buffer)
            except TimeoutError:
                break
        announce(
            bytes=received,
            seconds=time.monotonic() - began,
            processor_seconds=time.process_time() - used,
        )


def send(options: FlowOptions) -> None:
    """Send until the receiver has counted enough."""
    chunk = bytes(CHUNK_BYTES)
    with socket.socket() as connection:
        if options.congestion:
            name = options.congestion.encode()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
        connection.connect((options.host, options.port))
        announce(ready=True)
        with suppress(ConnectionError):
            while True:
                connection.sendall(chunk)


if __name__ == "__main__":
    end_with_parent()
    chosen = flow_options()
    (receive if chosen.receives else send)(chosen)
