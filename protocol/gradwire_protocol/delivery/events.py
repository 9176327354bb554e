"""Events that a connection reports to its application."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

from gradwire_protocol.delivery.shaped_message import Payload, ShapedMessage

Address: TypeAlias = Hashable
"""Destination of datagrams: opaque here, in the form that the owner's sockets use."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The handshake is over; messages can be sent."""


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message arrived completely, for the first time.

    The application has to return `charge` with `Connection.release` when it has finished with the
    payload. Until then the charge counts against the peer's credit.
    """

    message: ShapedMessage
    charge: int

    @property
    def stream(self) -> int:
        """The stream it belongs to."""
        return self.message.stream

    @property
    def number(self) -> int:
        """Its number in the stream."""
        return self.message.number

    @property
    def kind(self) -> int:
        """Its kind, as chosen by the peer's application."""
        return self.message.kind

    @property
    def payload(self) -> Payload:
        """Its bytes."""
        return self.message.payload


@dataclass(frozen=True, slots=True)
class MessageDelivered:
    """Every byte of a message we sent has reached the peer's process."""

    stream: int
    number: int


@dataclass(frozen=True, slots=True)
class AddressChanged:
    """The peer proved that it is at another address now; the connection continues there."""

    address: Address


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is over. This event comes once and is the last.

    `code` is a `CloseCode` or the application's own; `by_peer` tells which side ended the
    connection. Closing a connection ourselves brings no event.
    """

    code: int
    reason: str
    by_peer: bool


Event: TypeAlias = Connected | MessageReceived | MessageDelivered | AddressChanged | Disconnected
