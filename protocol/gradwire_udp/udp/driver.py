"""`UdpDriver`: one socket on an asyncio event loop, driving an endpoint and its application.

A turn follows every `READS_PER_TURN_MAX` reads while much arrives, and every timer: neither reading
nor sending goes on for long before the other has its chance.

It uses the loop's `add_reader` and not its datagram transports, which bring one datagram for every
round of the loop. Works on uvloop and on asyncio's own loops.
"""

import asyncio
import logging
import socket
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from gradwire_protocol.connection.train import Train
from gradwire_udp.endpoint_driver import Application, Driven, EndpointDriver
from gradwire_udp.udp.counters import SocketCounters
from gradwire_udp.udp.datagram_socket import DatagramSocket
from gradwire_udp.udp.kernel_features import EVERYTHING, Features

logger = logging.getLogger("gradwire.udp")

READS_PER_WAKE_MAX: Final = 64
"""Reads before the rest of the loop has its turn: up to 4 MB, in some milliseconds."""

READS_PER_TURN_MAX: Final = 16
"""Reads before acknowledgements leave, and what they make room for."""

WARNING_SECONDS: Final = 1.0
"""At most one line about dropped datagrams in this time."""


class UdpDriver(EndpointDriver):
    """Drives an endpoint until it is closed.

    Parameters
    ----------
    sock : socket.socket
        Bound and non-blocking; closed with the driver.
    endpoint : Driven
        An `Endpoint`.
    application : Application
    loop : asyncio.AbstractEventLoop
        Where it runs; all methods have to be called on its thread.
    counters : SocketCounters
        Counted up as it goes.
    features : Features
        What to use of the kernel, where it has it.
    """

    def __init__(
        self,
        sock: socket.socket,
        endpoint: Driven,
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
        """What is in use of the kernel."""
        return self._socket.features

    def _read(self) -> None:
        """Take in what arrived, with a turn now and then and in the end."""
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
                self.turn()
        self._warn_of_drops()
        self.turn()

    def _send(self, train: Train) -> None:
        if not self._socket.send(train):
            self._unsent = self._stable_copy(train)
            self._blocked = True
            self._endpoint.on_blocked(monotonic())
            self._loop.add_writer(self._socket.fileno(), self._write)

    def _stable_copy(self, train: Train) -> Train:
        """Return a train that stays as it is, whoever is sent the same messages meanwhile.

        Other endpoints of this process write their own headers into them. Where the kernel cuts no
        trains, a part of this one may be gone; to send it again would be worse than what is lost
        in the rare case that both happens.
        """
        if not self._socket.features.gso and train.count > 1:
            return train
        return replace(train, buffers=[memoryview(b"".join(train.buffers))])

    def _write(self) -> None:
        """Go on sending: the socket takes something again."""
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
