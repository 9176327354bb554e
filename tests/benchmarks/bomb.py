"""A reassembly bomb: an authenticated worker that begins messages and never ends one.

It speaks with production code but for the messages: of each it sends all fragments but the last, as
many messages as its credit allows.
"""

import os
import select
import socket
import time
from typing import Final

from gradwire_protocol import Connection, ConnectionConfig, Credentials, Endpoint, State
from gradwire_protocol.limits import charge_of
from gradwire_protocol.wire.frames import Data, pack_data

HANDSHAKE_SECONDS_MAX: Final = 5.0
AHEAD: Final = 64
"""Packets that are sent before the socket is read again."""


class Bomber:
    """A connection to a master, and what is thrown at it.

    Parameters
    ----------
    port : int
        Of the master on loopback.
    credentials : Credentials
    """

    def __init__(self, port: int, credentials: Credentials) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setblocking(False)
        self._endpoint = Endpoint(
            ConnectionConfig(), random_bytes=os.urandom, credentials=credentials
        )
        self._connection: Connection = self._endpoint.connect("master", time.monotonic())
        deadline = time.monotonic() + HANDSHAKE_SECONDS_MAX
        while self._connection.state is not State.OPEN and time.monotonic() < deadline:
            self._turn(0.01)
        assert self._connection.state is State.OPEN

    def close(self) -> None:
        """Go without a word."""
        self._socket.close()

    def stays(self, seconds: float) -> bool:
        """Return whether the master does not close the connection for so long."""
        deadline = time.monotonic() + seconds
        while self._connection.state is State.OPEN and time.monotonic() < deadline:
            self._turn(0.01)
        return self._connection.state is State.OPEN

    def throw(self, total: int, fragment_bytes: int) -> int:
        """Begin as many messages of a size as there is credit for; return how many that were."""
        count = self._connection.sender.queue.credit // charge_of(total)
        for number in range(count):
            self.begin(number, total, fragment_bytes)
        return count

    def exceed(self, first: int, total: int, fragment_bytes: int, seconds: float) -> bool:
        """Begin messages from a number on until the master closes the connection.

        It takes more than one where some of those before were lost, and left credit.

        Returns
        -------
        bool
            Whether it has, within so many seconds.
        """
        deadline, number = time.monotonic() + seconds, first
        while self._connection.state is State.OPEN and time.monotonic() < deadline:
            self.begin(number, total, fragment_bytes)
            number += 1
            self._turn(0.001)
        return self._connection.state is not State.OPEN

    def begin(self, number: int, total: int, fragment_bytes: int) -> None:
        """Send all of a message but its last fragment."""
        payload = memoryview(os.urandom(fragment_bytes))
        for index in range((total - 1) // fragment_bytes):
            frame = pack_data(Data(1, number, 1, total, fragment_bytes, index, payload))
            [packet], _, _ = self._connection.sender.packet_with(
                frame, time.monotonic(), eliciting=True
            )
            self._socket.send(packet)
            if index % AHEAD == AHEAD - 1 or number % AHEAD == AHEAD - 1:
                self._turn(0.001)

    def _turn(self, seconds: float) -> None:
        """Receive and send what there is, after waiting so long for something."""
        select.select([self._socket], [], [], seconds)
        now = time.monotonic()
        try:
            while True:
                datagram = self._socket.recv(2**16)
                self._endpoint.receive(memoryview(datagram), len(datagram), "master", 0, now)
        except BlockingIOError:
            pass
        self._endpoint.handle_timer(now)
        while self._endpoint.next_event() is not None:
            pass
        while (train := self._endpoint.next_train(now)) is not None:
            for datagram in train.datagrams():
                self._socket.send(datagram)
