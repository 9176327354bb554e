"""A worker that joins late, again and again, and takes the same bytes over TCP in between.

``python -m benchmarks.late``; its master is in ``GRADWIRE_*``. Each time that it is told, it does
the next of both and announces the seconds. It ends with its parent.
"""

import argparse
import socket
import threading
import time
from itertools import cycle

import numpy as np

from benchmarks.programs import announce, end_with_parent
from gradwire import join


def main() -> None:
    """Measure until the parent ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--tcp-port", type=int, required=True)
    options = parser.parse_args()
    told = threading.Event()
    end_with_parent(told.set)
    parameters = np.zeros(options.parameters, np.float32)
    announce(ready=True)
    for what in cycle(("join", "tcp")):
        told.wait()
        told.clear()
        began = time.monotonic()
        if what == "join":
            session = join(parameters)
            announce(join=time.monotonic() - began)
            session.close()
        else:
            _take(options.tcp_port, parameters.data.cast("B"))
            announce(tcp=time.monotonic() - began)


def _take(port: int, room: memoryview) -> None:
    """Receive as much as there is room for."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while room:
            room = room[connection.recv_into(room) :]


if __name__ == "__main__":
    main()
