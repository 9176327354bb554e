"""Raw UDP echo in plain blocking Python: what a round trip costs at the very least.

4,096 bytes are three datagrams each way; the server returns each as it comes.

``python -m benchmarks.rivals.udp_echo serve|measure``
"""

import argparse
import socket
import time
from typing import Final

from benchmarks.programs import announce, end_with_parent

DATAGRAM_BYTES: Final = 1400
TIMEOUT_SECONDS: Final = 1.0
"""After this, what is missing is lost, and the round trip is not counted."""


def serve(host: str) -> None:
    """Return everything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((host, 0))
        announce(port=sock.getsockname()[1])
        while True:
            datagram, address = sock.recvfrom(2048)
            sock.sendto(datagram, address)


def round_trips(address: tuple[str, int], payload: bytes, count: int) -> list[float]:
    """Return the seconds of so many round trips, one after the other."""
    datagrams = [payload[i : i + DATAGRAM_BYTES] for i in range(0, len(payload), DATAGRAM_BYTES)]
    taken: list[float] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(TIMEOUT_SECONDS)
        while len(taken) < count:
            began = time.perf_counter()
            for datagram in datagrams:
                sock.sendto(datagram, address)
            try:
                for _ in datagrams:
                    sock.recvfrom(2048)
            except TimeoutError:
                continue
            taken.append(time.perf_counter() - began)
    return taken


def main() -> None:
    """Be one of the two."""
    parser = argparse.ArgumentParser()
    parser.add_argument("end", choices=["serve", "measure"])
    parser.add_argument("--host", required=True, help="address of the server")
    parser.add_argument("--port", type=int, default=0, help="of the server")
    parser.add_argument("--bytes", type=int, default=4096)
    parser.add_argument("--count", type=int, default=1000)
    given = parser.parse_args()
    end_with_parent()
    if given.end == "serve":
        serve(given.host)
    else:
        taken = round_trips((given.host, given.port), bytes(given.bytes), given.count)
        announce(seconds=taken)


if __name__ == "__main__":
    main()
