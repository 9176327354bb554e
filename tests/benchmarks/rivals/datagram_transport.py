"""An asyncio `DatagramTransport` relays updates: a callback and a send for every datagram.

The least that delivers everything: on each hop packets are numbered, at most `WINDOW` of them are
unacknowledged, every `ACK_EVERY`-th is acknowledged, and after a silence the sender begins again
with the first one that is missing. The relay passes each datagram on as it comes, without putting
messages together.

::

    offset  bytes  field    meaning
    0       1      kind     1 data, 2 acknowledgement of all below `number`, 3 greeting
    1       1      last     whether it ends an update
    2       2      origin   rank of the worker that sent it
    4       4      number   of the packet on this hop
    8       ...    payload

``python -m benchmarks.rivals.datagram_transport --loop asyncio|uvloop``
"""

import argparse
import asyncio
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from benchmarks.programs import Meter, announce, end_with_parent
from benchmarks.work import Work

HEADER: Final = struct.Struct("<BBHI")
DATAGRAM_BYTES: Final = 1400
PAYLOAD_BYTES: Final = DATAGRAM_BYTES - HEADER.size
DATA, ACK, HELLO = 1, 2, 3

WINDOW: Final = 64
"""Sixteen workers' windows fit the relay's receive buffer, so that next to nothing is lost."""
ACK_EVERY: Final = 16
SILENCE_SECONDS: Final = 0.05
TIMEOUT_SECONDS: Final = 10.0
BUFFER_BYTES: Final = 4 * 2**20


class Hop:
    """Reliable, ordered packets to one address and from it.

    Parameters
    ----------
    send : callable
        Sends one datagram.
    """

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self._send = send
        self._waiting: deque[bytes] = deque()
        self._unacked: deque[bytes] = deque()
        self._first = self._next = 0
        self._expected = self._told = 0
        self._progress = 0.0

    def push(self, last: int, origin: int, payload: bytes) -> None:
        """Send a packet, now or when the window allows it."""
        datagram = HEADER.pack(DATA, last, origin, self._next) + payload
        self._next += 1
        if len(self._unacked) < WINDOW:
            self._unacked.append(datagram)
            self._send(datagram)
        else:
            self._waiting.append(datagram)

    def accept(self, number: int, last: int) -> bool:
        """Return whether a packet is the one that was expected; acknowledge where it is due."""
        expected = number == self._expected
        self._expected += expected
        if last or not expected or self._expected - self._told >= ACK_EVERY:
            self._told = self._expected
            self._send(HEADER.pack(ACK, 0, 0, self._expected))
        return expected

    def acknowledged(self, number: int) -> None:
        """Note that all packets below a number have arrived."""
        while self._first < number:
            self._unacked.popleft()
            self._first += 1
            self._progress = monotonic()
        while self._waiting and len(self._unacked) < WINDOW:
            datagram = self._waiting.popleft()
            self._unacked.append(datagram)
            self._send(datagram)

    def repeat(self) -> None:
        """Send everything again that seems to be lost."""
        if self._unacked and monotonic() - self._progress > SILENCE_SECONDS:
            for datagram in self._unacked:
                self._send(datagram)


class Relay(asyncio.DatagramProtocol):
    """Hands every packet on to all other workers."""

    def __init__(self) -> None:
        self._hops: dict[Any, Hop] = {}
        self._others: dict[Any, list[Hop]] = {}

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        kind, last, origin, number = HEADER.unpack_from(data)
        if kind == DATA:
            if self._hops[address].accept(number, last):
                payload = data[HEADER.size :]
                for other in self._others[address]:
                    other.push(last, origin, payload)
        elif kind == ACK:
            self._hops[address].acknowledged(number)
        else:
            self._enter(address)

    def _enter(self, address: Any) -> None:
        self._hops[address] = Hop(lambda datagram: self._transport.sendto(datagram, address))
        self._others = {
            one: [hop for other, hop in self._hops.items() if other != one] for one in self._hops
        }
        self._transport.sendto(HEADER.pack(HELLO, 0, 0, 0), address)

    async def repeat(self) -> None:
        """Look after what is lost, for ever."""
        while True:
            await asyncio.sleep(SILENCE_SECONDS)
            for hop in self._hops.values():
                hop.repeat()


class _Worker:
    """A worker. It reads its socket itself, without a loop: the relay is what is measured."""

    def __init__(self, rank: int, work: Work, port: int) -> None:
        self._rank, self._work = rank, work
        self._sent = self.received = 0
        self._buffer = bytearray(DATAGRAM_BYTES)
        body = work.body
        self._payloads = [body[i : i + PAYLOAD_BYTES] for i in range(0, len(body), PAYLOAD_BYTES)]
        self.socket = _socket()
        self.socket.connect(("127.0.0.1", port))
        self.hop = Hop(self.socket.send)
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.socket.send(HEADER.pack(HELLO, 0, 0, 0))
        assert self.socket.recv(HEADER.size)
        self.socket.setblocking(False)

    def push(self) -> None:
        """Send what may be sent; the others' progress stands for ours, as with ZeroMQ."""
        work = self._work
        while (
            self._sent < work.updates
            and self._sent * work.others - self.received < work.AHEAD * work.others
        ):
            self._sent += 1
            for payload in self._payloads[:-1]:
                self.hop.push(0, self._rank, payload)
            self.hop.push(1, self._rank, self._payloads[-1])

    def read(self) -> None:
        """Take everything that has come."""
        while True:
            try:
                self.socket.recv_into(self._buffer)
            except BlockingIOError:
                return
            kind, last, _, number = HEADER.unpack_from(self._buffer)
            if kind == ACK:
                self.hop.acknowledged(number)
            elif self.hop.accept(number, last):
                self.received += last


def exchange(relay: dict[str, int], pid: int, work: Work) -> Meter:
    """Let the workers do their part; return what it cost the relay."""
    workers = [_Worker(rank, work, relay["port"]) for rank in range(work.workers)]
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.socket, selectors.EVENT_READ, worker)
        with Meter(pid) as meter:
            while any(worker.received < work.expected for worker in workers):
                for worker in workers:
                    worker.push()
                ready = selector.select(SILENCE_SECONDS)
                for key, _ in ready:
                    key.data.read()
                for worker in () if ready else workers:
                    worker.hop.repeat()
    for worker in workers:
        worker.socket.close()
    return meter


def _socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    sock.bind(("127.0.0.1", 0))
    return sock


async def _serve() -> None:
    sock = _socket()
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    _, relay = await loop.create_datagram_endpoint(Relay, sock=sock)
    announce(port=sock.getsockname()[1])
    await relay.repeat()


def main() -> None:
    """Relay until the parent ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], required=True)
    end_with_parent()
    if parser.parse_args().loop == "uvloop":
        import uvloop

        uvloop.run(_serve())
    else:
        asyncio.run(_serve())


if __name__ == "__main__":
    main()
