"""An attacker: sends forged INITs to a master from many addresses of loopback.

They are as good as one can make them who has seen the INIT of a worker and not its key: everything
is in its place, the key id is one of the run's, and only the sealed part is made up.

``python -m benchmarks.flood --port PORT --key-id HEX --rate N --seconds S``
"""

import argparse
import os
import socket
import threading
import time
from typing import Final

from benchmarks.programs import announce, end_with_parent
from gradwire_protocol.crypto.suites import Suite
from gradwire_protocol.wire.packets import PUBLIC_KEY_BYTES, Init

SOURCES: Final = 64
"""Addresses that the INITs come from, 127.1.0.1 and up."""

FORGED: Final = 4096
"""Different ones, sent over and over."""

TICK_SECONDS: Final = 0.001
SEALED_BYTES: Final = 104


def main() -> None:
    """Send, then say what was sent and what came back."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key-id", type=bytes.fromhex, required=True)
    parser.add_argument("--rate", type=int, required=True, help="INITs per second")
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    end_with_parent()
    forged = [_forged(options.key_id) for _ in range(FORGED)]
    sockets = [_socket(f"127.1.0.{1 + i}", options.port) for i in range(SOURCES)]
    announce(ready=True)
    announce(**_flood(sockets, forged, options.rate, options.seconds))
    threading.Event().wait()  # for the parent


def _flood(
    sockets: list[socket.socket], forged: list[bytes], rate: int, seconds: float
) -> dict[str, float]:
    began = time.monotonic()
    sent = received = 0
    while (elapsed := time.monotonic() - began) < seconds:
        due = min(int(elapsed * rate), sent + rate // 100)
        while sent < due:
            sock = sockets[sent % len(sockets)]
            try:
                sock.send(forged[sent % len(forged)])
            except (BlockingIOError, ConnectionRefusedError):
                received += _read(sock)
            sent += 1
        for sock in sockets:
            received += _read(sock)
        time.sleep(TICK_SECONDS)
    time.sleep(0.1)  # what is still on its way back counts
    received += sum(map(_read, sockets))
    return {
        "sent": sent,
        "bytes_sent": sent * len(forged[0]),
        "bytes_received": received,
        "seconds": time.monotonic() - began,
    }


def _read(sock: socket.socket) -> int:
    received = 0
    while True:
        try:
            received += len(sock.recv(2048))
        except (BlockingIOError, ConnectionRefusedError):
            return received


def _socket(address: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, 0))
    sock.connect(("127.0.0.1", port))
    sock.setblocking(False)
    return sock


def _forged(key_id: bytes) -> bytes:
    session_id = int.from_bytes(os.urandom(4), "little") or 1
    public_key, sealed = os.urandom(PUBLIC_KEY_BYTES), os.urandom(SEALED_BYTES)
    return Init(Suite.AES, session_id, key_id, public_key, sealed).pack()


if __name__ == "__main__":
    main()
