"""Flows over a `SimulatedNetwork`: a source that always has something to send, and its sink."""

from typing import Final

from gradwire_protocol import (
    Connected,
    Connection,
    ConnectionConfig,
    Disconnected,
    Endpoint,
    Event,
    MessageDelivered,
    MessageReceived,
    Priority,
)
from support.applications import Untimed
from support.network import SimulatedNetwork

MESSAGE_BYTES: Final = 262_144
QUEUED_BYTES: Final = 8 * 2**20
"""Kept waiting: more than any of the paths here holds."""


class Sink(Untimed):
    """The end that receives; any number of sources may dial it.

    Parameters
    ----------
    network : SimulatedNetwork
    address : str
    config : ConnectionConfig
    """

    def __init__(self, network: SimulatedNetwork, address: str, config: ConnectionConfig) -> None:
        self.received: dict[Connection, int] = {}
        """Message bytes that came over each connection."""
        self.endpoint = Endpoint(config, random_bytes=network.random.randbytes, connections_max=64)
        self.host = network.add(address, self.endpoint, self)

    @property
    def total(self) -> int:
        """Message bytes that came."""
        return sum(self.received.values())

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Count."""
        if isinstance(event, Connected):
            self.received[connection] = 0
        elif isinstance(event, MessageReceived):
            self.received[connection] += event.message.total
            connection.release(event.charge)


class Source(Untimed):
    """The end that sends, as fast as it may, from the moment it is connected.

    Parameters
    ----------
    network : SimulatedNetwork
    address : str
    sink : str
        Whom to dial.
    config : ConnectionConfig
    message_bytes, queued_bytes : int
        Size of the messages, and how much of them waits.
    """

    def __init__(
        self,
        network: SimulatedNetwork,
        address: str,
        sink: str,
        config: ConnectionConfig,
        *,
        message_bytes: int = MESSAGE_BYTES,
        queued_bytes: int = QUEUED_BYTES,
    ) -> None:
        self.ended: Disconnected | None = None
        self._payload = bytes(message_bytes)
        self._queued_bytes = queued_bytes
        self._sent = 0
        self.endpoint = Endpoint(config, random_bytes=network.random.randbytes)
        self.connection = self.endpoint.connect(sink, network.now)
        self.host = network.add(address, self.endpoint, self)

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Send more."""
        if isinstance(event, Disconnected):
            self.ended = event
        elif isinstance(event, Connected | MessageDelivered):
            while connection.bytes_queued < self._queued_bytes:
                connection.send(0, self._sent, 1, self._payload, Priority.UPDATE)
                self._sent += 1


def goodput(network: SimulatedNetwork, sink: Sink, *, settle: float, seconds: float) -> float:
    """Return the message bits per second that reach a sink, after a time to settle."""
    network.run_for(settle)
    before = sink.total
    network.run_for(seconds)
    return 8 * (sink.total - before) / seconds
