"""`Peers`: the connections to a relay, each with the number that the parent knows it by.

Those to the relays that stand before it are among them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gradwire_protocol import Connection, MessageReceived
from gradwire_protocol.messages.admission import Join
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.masters.relaying import Relaying
from gradwire_server.branches.branch import Branch
from gradwire_server.state.replica_copy import ReplicaCopy
from gradwire_server.state.roster import Member


@dataclass(slots=True, eq=False)
class Peer:
    """A connection to this relay."""

    number: int
    link: Link
    join: Join | None = None
    """Its request to join, once that came."""
    member: Member | None = None
    """Once it is fed here."""
    floor: dict[int, int] | None = None
    """From which versions on it is fed, here or by the relay that it is behind; None before."""
    asks: Relaying | None = None
    """Its request to stand before the master, until that is answered."""
    relay: Branch | None = None
    """The relay that it is."""
    early: list[MessageReceived] = field(default_factory=list)
    """Its updates that came before that. Their credit is not released, which bounds them."""
    is_aside: bool = False
    """Whether the parent was told that its updates are kept aside."""
    was_answered: bool = False
    """Whether the parent has sent it anything."""
    carried: set[tuple[int, int]] = field(default_factory=set)
    """Stream and number of the parent's messages that are under way to it."""
    elements: int = 0
    """Of the replica that it is sent the whole of; 0 before WELCOME, and without such."""
    blocks: int = 0
    """Blocks of a replica that were carried to it."""
    due: dict[int, int] = field(default_factory=dict)
    """By number of the message: blocks that the relay is to fill in. The parent has few under way
    at a time, which bounds them."""
    copy: ReplicaCopy | None = None
    """What they are taken from."""
    filled: int = 0
    """How many were filled in."""


class Peers:
    """The peers by connection and by number."""

    def __init__(self) -> None:
        self._by_connection: dict[Connection, Peer] = {}
        self._by_number: dict[int, Peer] = {}
        self._next = 0

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._by_connection)

    def __iter__(self) -> Iterator[Peer]:
        """Iterate over those that there are now, in the order they came."""
        return iter([*self._by_connection.values()])

    def __contains__(self, connection: Connection) -> bool:
        """Return whether a connection is that of a peer."""
        return connection in self._by_connection

    def add(self, connection: Connection) -> Peer:
        """Add a new connection."""
        peer = Peer(self._next, Link(connection))
        self._next += 1
        self._by_connection[connection] = self._by_number[peer.number] = peer
        return peer

    def of(self, connection: Connection) -> Peer | None:
        """Return the peer behind a connection."""
        return self._by_connection.get(connection)

    def at(self, number: int) -> Peer | None:
        """Return the peer with a number; None if its connection is over."""
        return self._by_number.get(number)

    def remove(self, peer: Peer) -> None:
        """Remove a peer whose connection is over."""
        del self._by_connection[peer.link.connection], self._by_number[peer.number]

    def clear(self) -> None:
        """Remove all of them."""
        self._by_connection.clear()
        self._by_number.clear()
