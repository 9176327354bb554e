"""What a connection tells its application."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

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

    stream: int
    number: int
    kind: int
    payload: bytearray
    charge: int


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
