"""`BranchConnection`: the connection of a worker behind a relay, as its master sees it.

A master uses it like any other connection: what it sends here goes to the relay in the relay's own
connection, the trunk, and on to the worker.
"""

from typing import Final, Protocol

from gradwire_protocol import (
    Connection,
    Disconnected,
    InOrder,
    InvalidMessageError,
    MessageDelivered,
    Priority,
    ShapedMessage,
)
from gradwire_protocol.connection.sender import Sender
from gradwire_protocol.crypto.keys import Identity
from gradwire_protocol.delivery.events import Address
from gradwire_protocol.delivery.outgoing import check_message
from gradwire_protocol.delivery.shaped_message import Payload
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.relays import CLOSED, MESSAGE, Branch, Closed, Have, Returned

HELD_WINDOWS: Final = 2
"""Windows of bytes that one branch may have here. A relay passes on as much as the window, and a
quarter more; see `relaying/child.py`."""


class Feed(Protocol):
    """The log that a relay is sent."""

    def hear(self, have: Have) -> None:
        """Note up to where the relay's workers have it."""

    def take_back(self, branch: int) -> None:
        """Send a branch the log from here, as the relay cannot."""

    def on_delivered(self, event: MessageDelivered, now: float) -> None:
        """Note that a message was delivered to the relay."""

    def end(self) -> None:
        """Forget it: the relay is lost."""


class Carrier(Protocol):
    """The trunk of a branch."""

    link: Link
    """To the relay."""
    feed: Feed | None
    """The log that it is sent."""
    feeds: int
    """How many of these it has had."""
    lost: Disconnected | None
    """How the connection has ended."""

    def give_up(self, code: int, reason: str, now: float) -> None:
        """Close the connection to the relay."""


class BranchConnection(Connection):
    """A worker behind a relay.

    It has what a master uses of a connection, and nothing of the transport.

    Parameters
    ----------
    trunk : Carrier
    branch : int
        Its number there.
    window_bytes : int
        A quarter of this is given back to the worker at a time.
    depth : int
        How many relays are between.
    """

    def __init__(self, trunk: Carrier, branch: int, window_bytes: int, depth: int) -> None:
        self.trunk = trunk
        self.branch = branch
        self.depth = depth
        self.identity: Identity | None = None
        self.incoming = InOrder[Branch](0)
        """Puts in order what comes from the relay."""
        self.has_opened = False
        self.is_over = False
        """Whether nothing is received any more, and nothing sent."""
        self._held = 0
        self._held_max = HELD_WINDOWS * window_bytes
        self._returning = 0
        """Bytes that were used here, and of which the relay was not told yet."""
        self._returns_at = window_bytes // 4
        self._undelivered: dict[tuple[int, int], int] = {}
        """By stream and number: the size of a message."""
        self._queued = self._sent = 0

    # What its trunk does.

    def hold(self, charge: int) -> None:
        """Note that a message has come; raise `InvalidMessageError` if it may not have."""
        self._held += charge
        if self._held > self._held_max:
            raise InvalidMessageError(
                f"branch {self.branch} has {self._held} bytes here; the limit is {self._held_max}"
            )

    def take_receipt(self, stream: int, number: int) -> bool:
        """Note that a message was delivered; return whether it was sent here."""
        size = self._undelivered.pop((stream, number), None)
        self._queued -= size or 0
        return size is not None and not self.is_over

    # What masters do.

    def send(
        self, stream: int, number: int, kind: int, payload: Payload, priority: Priority
    ) -> None:
        """Send a message; see `Connection.send`."""
        size = memoryview(payload).nbytes
        check_message(stream, number, kind, size)
        if self.is_over:
            return
        self._undelivered[stream, number] = size
        self._queued += size
        self._sent += size
        branch = Branch(self.branch, 0, MESSAGE, stream, number, kind, bytes(payload))
        self.trunk.link.send_branch(branch, priority)

    def relay(self, message: ShapedMessage, priority: Priority) -> None:
        """Send a message that others may be sent, too."""
        self.send(message.stream, message.number, message.kind, message.payload, priority)

    def release(self, charge: int) -> None:
        """Let the worker send as much more."""
        self._held -= charge
        self._returning += charge
        if self._returning >= self._returns_at and not self.is_over:
            self.trunk.link.send(Returned(self.branch, self._returning))
            self._returning = 0

    def skip_to(self, stream: int, number: int) -> None:
        """Do nothing: messages are numbered without gaps on the trunk."""

    def close(self, code: int, reason: str, now: float) -> None:
        """Have the relay close the worker's connection."""
        if not self.is_over:
            self.is_over = True
            body = Closed.of(code, reason).pack()
            self.trunk.link.send_branch(Branch(self.branch, 0, CLOSED, body=body), Priority.CONTROL)

    # What masters look at.

    @property
    def address(self) -> Address:
        """That of the relay, and which of its workers."""
        address = self.trunk.link.connection.address
        relay = ":".join(map(str, address[:2])) if isinstance(address, tuple) else address
        return f"{relay} #{self.branch}"

    @property
    def sender(self) -> Sender:
        """That of the trunk, for the size of fragments."""
        return self.trunk.link.connection.sender

    @property
    def rtt(self) -> float | None:
        """The one to the relay."""
        return self.trunk.link.connection.rtt

    @property
    def last_heard(self) -> float | None:
        """When the relay was heard: it tells when the worker is lost."""
        return self.trunk.link.connection.last_heard

    @property
    def unanswered_since(self) -> float | None:
        """None: the relay waits for the worker."""
        return None

    @property
    def message_bytes_sent(self) -> int:
        """Bytes of messages."""
        return self._sent

    @property
    def bytes_queued(self) -> int:
        """Bytes of the messages that the worker has not received."""
        return self._queued

    @property
    def bytes_in_flight(self) -> int:
        """Of these, how many have left for the relay, as far as can be told."""
        trunk = self.trunk.link.connection
        return max(self._queued - max(trunk.bytes_queued - trunk.bytes_in_flight, 0), 0)

    @property
    def bytes_held(self) -> int:
        """Bytes of messages that were not used yet."""
        return self._held
