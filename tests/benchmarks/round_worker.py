"""A worker of benchmark `modes` that makes rounds of a large model, and one end of a TCP flow.

``python -m benchmarks.round_worker PARAMETERS ROUNDS HOST``, with the master and a key in
``GRADWIRE_*``. Told ``train``, it makes rounds, and says what each took and how many bytes went out
and came in. Told ``diloco STREAMS SECONDS``, it makes steps that a device would take so long for,
and says what as many took as have one round. Told ``serve`` it takes what comes and answers with as
much as it is asked for; told ``exchange PORT SENT RECEIVED`` it is the other end. It ends with its
parent.
"""

import socket
import sys
import time
from typing import Final

import numpy as np

import gradwire
from benchmarks.programs import announce

WARM_ROUNDS: Final = 3
"""Not timed: the link's rate is learnt in these."""

EVERY: Final = 16
"""Steps of DiLoCo between two contributions of an element."""

NUMBERS: Final = 16
"""Bytes that say how much comes, and how much is to go back."""


def main() -> None:
    """Do what is told."""
    parameters, rounds = map(int, sys.argv[1:3])
    host = sys.argv[3]
    announce(ready=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        if what == "train":
            announce(**train(parameters, rounds))
        elif what == "diloco":
            announce(seconds=train_on(parameters, rounds, int(numbers[0]), float(numbers[1])))
        elif what == "serve":
            serve(host)
        else:
            port, sent, received = map(int, numbers)
            announce(seconds=[exchange(host, port, sent, received) for _ in range(rounds)])


def train(parameters: int, rounds: int) -> dict[str, object]:
    """Make rounds with the other worker; return the seconds of each, and bytes of a mean one."""
    random = np.random.default_rng()
    change = random.normal(0, 1e-3, parameters).astype(np.float32)
    values = np.zeros(parameters, np.float32)
    seconds = []
    with gradwire.join(
        values, mode="synchronous(bits=8)", workers=2, log_level="warning"
    ) as session:
        for made in range(WARM_ROUNDS + rounds):
            if made == WARM_ROUNDS:
                before = session.stats
            values += np.roll(change, made)
            began = time.monotonic()
            session.step()
            seconds.append(time.monotonic() - began)
        after = session.stats
    return {
        "seconds": seconds[WARM_ROUNDS:],
        "sent": (after.bytes_sent - before.bytes_sent) // rounds,
        "received": (after.bytes_received - before.bytes_received) // rounds,
    }


def train_on(parameters: int, rounds: int, streams: int, step_seconds: float) -> list[float]:
    """Train with the other worker while rounds go on; return the seconds of each `EVERY` steps."""
    change = np.random.default_rng().normal(0, 1e-3, parameters).astype(np.float32)
    values = np.zeros(parameters, np.float32)
    mode = gradwire.DiLoCo(every=EVERY, streams=streams)
    seconds = []
    with gradwire.join(
        values, mode=mode, workers=2, run=f"{streams}", log_level="warning"
    ) as session:
        for _ in range(WARM_ROUNDS + rounds):
            began = time.monotonic()
            for _ in range(EVERY):
                time.sleep(step_seconds)  # a device computes meanwhile, and needs no processor
                values += change
                session.step()
            seconds.append(time.monotonic() - began)
    return seconds[WARM_ROUNDS:]


def serve(host: str) -> None:
    """Take what comes, and send as much back as is asked for, on one connection after the other."""
    with socket.create_server((host, 0)) as server:
        announce(port=server.getsockname()[1])
        while True:
            connection, _ = server.accept()
            with connection:
                asked = np.frombuffer(connection.recv(NUMBERS, socket.MSG_WAITALL), "<i8")
                _take(connection, int(asked[0]))
                connection.sendall(bytes(int(asked[1])))


def exchange(host: str, port: int, sent: int, received: int) -> float:
    """Send and receive so many bytes, one after the other; return the seconds."""
    with socket.create_connection((host, port)) as connection:
        connection.sendall(np.array([sent, received], "<i8").tobytes())
        began = time.monotonic()
        connection.sendall(bytes(sent))
        _take(connection, received)
        return time.monotonic() - began


def _take(connection: socket.socket, size: int) -> None:
    room = memoryview(bytearray(size))
    while room:
        room = room[connection.recv_into(room) :]


if __name__ == "__main__":
    main()
