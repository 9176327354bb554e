"""What a connection tells its application."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

from gradwire_protocol.delivery.shaped_message import Payload, ShapedMessage

Address: TypeAlias = Hashable
"""Where datagrams go; opaque here, whatever the sockets of the owner use."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The handshake is over; messages can be sent."""


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message came in whole, for the first time.

    The application has to give `charge` back with `Connection.release` when it is done with the
    payload; until then it counts against what the peer may send.
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
        """What it is, as the application of the peer said."""
        return self.message.kind

    @property
    def payload(self) -> Payload:
        """Its bytes."""
        return self.message.payload


@dataclass(frozen=True, slots=True)
class MessageDelivered:
    """Every byte of a message we sent is in the peer's process."""

    stream: int
    number: int


@dataclass(frozen=True, slots=True)
class AddressChanged:
    """The peer proved that it is now at another address; the connection goes on there."""

    address: Address


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is over. Comes once, and nothing after it.

    `code` is a `CloseCode` or the application's own, `by_peer` says whose decision it was.
    Closing a connection oneself brings no event.
    """

    code: int
    reason: str
    by_peer: bool


Event: TypeAlias = Connected | MessageReceived | MessageDelivered | AddressChanged | Disconnected
