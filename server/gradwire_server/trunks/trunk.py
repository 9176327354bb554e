"""`ServedTrunk`: the connection of a relay, as its parent serves it.

It makes events of the workers behind the relay of what comes from there. A relay behind a relay
is a branch, too, whose own messages are those of a trunk.
"""

from collections.abc import Callable, Iterator
from typing import Final

from gradwire_protocol import (
    CloseCode,
    Connected,
    Connection,
    Disconnected,
    Event,
    InvalidMessageError,
    MessageDelivered,
    MessageReceived,
    ShapedMessage,
)
from gradwire_protocol.crypto.keys import Identity
from gradwire_protocol.limits import charge_of
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.relays import (
    CLOSED,
    MESSAGE,
    OPENED,
    Branch,
    Closed,
    Have,
    Opened,
    Receipts,
    Trunk,
    Unfed,
)
from gradwire_server.trunks.branch import BranchConnection, Feed

BranchEvent = tuple[BranchConnection, Event]

DENIED: Final = "the key of this worker is not accepted"
FULL: Final = "no room: as many connections are open as the master takes, of all relays together"

CONNECTIONS_MAX: Final = WORKERS_MAX
"""Branches of one relay that are open; as many may be about to end."""


class ServedTrunk:
    """A relay.

    Parameters
    ----------
    link : Link
        To it.
    window_bytes : int
        What each worker behind it may have here.
    has_room : callable
        Returns whether one more worker may be behind relays.
    relay_id : bytes
    admits : callable
        Returns whether somebody may take part, as proved to the relay; None has proved nothing.
    """

    def __init__(
        self,
        link: Link,
        window_bytes: int,
        has_room: Callable[[], bool],
        relay_id: bytes,
        admits: Callable[[Identity | None], bool],
    ) -> None:
        self.link = link
        self.relay_id = relay_id
        self.admits = admits
        self.feed: Feed | None = None
        self.feeds = 0
        """How many it has had."""
        self.lost: Disconnected | None = None
        """How the connection has ended."""
        self._window_bytes = window_bytes
        self._has_room = has_room
        self._branches: dict[int, BranchConnection] = {}
        link.send(Trunk(window_bytes))

    @property
    def connection(self) -> Connection:
        """The one to the relay."""
        return self.link.connection

    def __len__(self) -> int:
        """Return how many workers are behind it."""
        return sum(each.has_opened and not each.is_over for each in self._branches.values())

    def __iter__(self) -> Iterator[BranchConnection]:
        """Iterate over the connections that it carries."""
        return iter(tuple(self._branches.values()))

    def handle_event(self, event: Event, now: float) -> Iterator[BranchEvent]:
        """Act on an event of the connection to the relay; yield what it says of workers."""
        match event:
            case MessageReceived() if self.lost is None:
                try:
                    for message in self.link.receive(event):
                        yield from self._receive(message)
                except InvalidMessageError as error:
                    self.give_up(CloseCode.INVALID_MESSAGE, str(error), now)
            case MessageDelivered() if self.feed is not None:
                self.feed.on_delivered(event, now)
            case Disconnected():
                self.lost = event
            case _:
                pass

    def give_up(self, code: int, reason: str, now: float) -> None:
        """Close the connection; `lose_branches` has to be called next."""
        if self.lost is None:
            self.lost = Disconnected(code, reason, by_peer=False)
            self.connection.close(code, reason, now)

    def deny(self, now: float) -> list[BranchEvent]:
        """Close the connections of those who are not admitted any more; return their ends."""
        denied = [
            each
            for each in self._branches.values()
            if each.has_opened and not each.is_over and not self.admits(each.identity)
        ]
        for each in denied:
            each.close(CloseCode.DENIED, DENIED, now)
        return [(each, Disconnected(CloseCode.DENIED, DENIED, by_peer=False)) for each in denied]

    def end_feed(self) -> None:
        """Send the log no more: the relay is lost."""
        if self.feed is not None:
            self.feed.end()

    def lose_branches(self) -> list[BranchEvent]:
        """Return the ends of all connections behind a relay that is lost."""
        assert self.lost is not None
        reason = f"its relay was lost: {self.lost.reason}"
        lost = Disconnected(CloseCode.LOST, reason, by_peer=False)
        ended = [each for each in self._branches.values() if each.has_opened and not each.is_over]
        self._branches.clear()
        for each in ended:
            each.is_over = True
        return [(each, lost) for each in ended]

    def _receive(self, message: object) -> Iterator[BranchEvent]:
        match message:
            case Branch():
                yield from self._receive_branch(message)
            case Receipts():
                for number, stream, of in message.all:
                    branch = self._branches.get(number)
                    if branch is not None and branch.take_receipt(stream, of):
                        yield branch, MessageDelivered(stream, of)
            case Have():
                if self.feed is not None and message.feed == self.feeds:
                    self.feed.hear(message)
            case Unfed():
                if self.feed is not None and message.feed == self.feeds:
                    self.feed.take_back(message.branch)
            case _:
                raise InvalidMessageError(f"{type(message).__name__} from a relay")

    def _receive_branch(self, message: Branch) -> Iterator[BranchEvent]:
        branch = self._branches.get(message.branch)
        if branch is None:
            if len(self._branches) >= 2 * CONNECTIONS_MAX:
                raise InvalidMessageError(f"a relay has {len(self._branches)} branches")
            branch = self._branches[message.branch] = BranchConnection(
                self, message.branch, self._window_bytes, depth_of(self.connection)
            )
        branch.hold(charge_of(len(message.body)))
        for each in branch.incoming.insert(message.index, message):
            yield from self._act(branch, each)

    def _act(self, branch: BranchConnection, message: Branch) -> Iterator[BranchEvent]:
        charge = charge_of(len(message.body))
        if message.act == OPENED and not branch.has_opened:
            branch.hold(-charge)
            branch.identity = Opened.parse(message.body).identity
            branch.has_opened = True
            if not self.admits(branch.identity):
                branch.close(CloseCode.DENIED, DENIED, 0.0)
            elif not self._has_room():
                branch.close(CloseCode.FULL, FULL, 0.0)
            else:
                yield branch, Connected()
        elif message.act == CLOSED and branch.has_opened:
            closed = Closed.parse(message.body)
            del self._branches[branch.branch]
            if not branch.is_over:
                branch.is_over = True
                yield branch, Disconnected(closed.code, closed.reason, closed.by_peer)
        elif message.act == MESSAGE and branch.has_opened and message.body:
            if branch.is_over:
                branch.hold(-charge)  # it is dropped
            else:
                shaped = ShapedMessage.of(
                    message.stream,
                    message.number,
                    message.kind,
                    message.body,
                    branch.sender.fragment_bytes,
                )
                yield branch, MessageReceived(shaped, charge)
        else:
            raise InvalidMessageError(f"act {message.act} of branch {branch.branch} out of turn")


def depth_of(connection: Connection) -> int:
    """Return how many relays are between, if a connection is that of one."""
    return 1 + (connection.depth if isinstance(connection, BranchConnection) else 0)
