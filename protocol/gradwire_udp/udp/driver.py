"""`UdpDriver`: drives an endpoint and its application with one socket on an event loop.

While much arrives, trains are sent every `READS_PER_TURN_MAX` reads: neither reading nor sending
delays the other for long. A turn follows when all is read, and every timer.

It uses the loop's `add_reader`, because the loop's datagram transports return one datagram in a
round of the loop. It works on uvloop and on asyncio's own loops.
"""

import asyncio
import logging
import socket
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from gradwire_protocol import Endpoint
from gradwire_protocol.connection.train import Train
from gradwire_udp.counters import SocketCounters
from gradwire_udp.endpoint_driver import Application, EndpointDriver
from gradwire_udp.udp.datagram_socket import DatagramSocket
from gradwire_udp.udp.kernel_features import EVERYTHING, Features

logger = logging.getLogger("gradwire.udp")

READS_PER_WAKE_MAX: Final = 64
"""Reads before the rest of the event loop runs: up to 4 MB, in some milliseconds."""

READS_PER_TURN_MAX: Final = 16
"""Reads before acknowledgements are sent, and trains that the window now allows."""

WARNING_SECONDS: Final = 1.0
"""Least time between two warnings of dropped datagrams."""


class UdpDriver(EndpointDriver):
    """Drives an endpoint over UDP until it is closed.

    `sock` is bound and non-blocking, and the driver closes it. `features` are used if the kernel
    has them.
    """

    def __init__(
        self,
        sock: socket.socket,
        endpoint: Endpoint,
        application: Application,
        loop: asyncio.AbstractEventLoop,
        counters: SocketCounters,
        features: Features = EVERYTHING,
    ) -> None:
        super().__init__(endpoint, application, loop)
        self.counters = counters
        self._socket = DatagramSocket(sock, counters, wanted=features)
        self._unsent: Train | None = None
        self._drops_reported = 0
        self._warn_after = 0.0
        self._loop.add_reader(self._socket.fileno(), self._read)

    @property
    def address(self) -> tuple[Any, ...]:
        """The address the socket is bound to."""
        return self._socket.address

    @property
    def features(self) -> Features:
        """The kernel's features that are in use."""
        return self._socket.features

    def _read(self) -> None:
        """Read what has arrived; send every `READS_PER_TURN_MAX` reads, with a turn at the end."""
        receive, take_in = self._socket.receive, self._endpoint.receive
        for reads in range(1, READS_PER_WAKE_MAX + 1):
            read = receive(ahead=reads < READS_PER_WAKE_MAX)
            if read is None:
                break
            now = monotonic()
            take_in(*read, now)
            if not self._report_events(now) or self._socket.drained:
                break
            if reads % READS_PER_TURN_MAX == 0:
                self._send_trains()
        self._warn_of_drops()
        self.turn()

    def _send(self, train: Train) -> None:
        if not self._socket.send(train):
            self._unsent = self._stable_copy(train)
            self._blocked = True
            self._endpoint.on_blocked(monotonic())
            self._loop.add_writer(self._socket.fileno(), self._write)

    def _stable_copy(self, train: Train) -> Train:
        """Return a copy of a train that does not change if its messages are sent to other peers.

        Other endpoints of this process write their own headers into these messages. Without GSO, a
        part of the train may have been sent, and the socket goes on with the same object only: then
        the train is not copied. Sending a part twice would be worse than losing a datagram in the
        rare case that another endpoint writes into it.
        """
        if not self._socket.features.gso and train.count > 1:
            return train
        return replace(train, buffers=[memoryview(b"".join(train.buffers))])

    def _write(self) -> None:
        """Go on sending: the socket takes data again."""
        if self._unsent is not None and not self._socket.send(self._unsent):
            return
        self._unsent = None
        self._blocked = False
        self._loop.remove_writer(self._socket.fileno())
        self.turn()

    def _close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()

    def _warn_of_drops(self) -> None:
        drops = self.counters.receive_drops
        if drops == self._drops_reported:
            return
        now = monotonic()
        if now >= self._warn_after:
            logger.warning(
                "not read in time, and dropped by the kernel: %d datagrams or batches of them,"
                " %d in all. This process is too slow for what arrives, or its buffer too small",
                drops - self._drops_reported, drops,
            )  # fmt: skip
            self._drops_reported = drops
            self._warn_after = now + WARNING_SECONDS
