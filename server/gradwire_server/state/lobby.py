"""The lobby: connections that are not members of the run.

A worker that asks to join moves to the roster: at once, or later while workers of an earlier run
are expected to return. A refused worker stays until the reason was delivered. An operator stays,
and its timeout starts again with every order. A connection whose timeout expires is closed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gradwire_protocol import Connection, MessageDelivered, Role
from gradwire_protocol.connection.timers import earliest
from gradwire_protocol.messages.admission import Join, Refuse
from gradwire_protocol.messages.kinds import CONTROL_STREAM, EndCode
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.operating.orders import OrderDone
from gradwire_server.state.roster import role_of


@dataclass(slots=True)
class _Stranger:
    """A connection in the lobby."""

    link: Link
    deadline: float | None
    """When it is closed; None for a standby."""
    refusal: int | None = None
    """Number of the REFUSE that was sent to it."""
    join: Join | None = None
    """A deferred request to join."""


class Lobby:
    """Connections that are not members; each may stay `timeout_seconds` without a request."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._strangers: dict[Connection, _Stranger] = {}

    def __contains__(self, connection: Connection) -> bool:
        """Return whether a connection is in the lobby."""
        return connection in self._strangers

    def __iter__(self) -> Iterator[Connection]:
        """Iterate over the connections, oldest first."""
        return iter(self._strangers)

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._strangers)

    @property
    def has_operators(self) -> bool:
        """Whether an operator is connected."""
        return any(role_of(connection) is Role.OPERATOR for connection in self._strangers)

    def enter(self, link: Link, now: float) -> None:
        """Add a new connection."""
        deadline = now + self._timeout_seconds
        self._strangers[link.connection] = _Stranger(link, deadline)

    def leave(self, connection: Connection) -> None:
        """Remove a connection that is over, or has become a member."""
        self._strangers.pop(connection, None)

    def remove_deadline(self, connection: Connection) -> None:
        """Let a standby stay until there is a run to follow."""
        self._strangers[connection].deadline = None

    def link_of(self, connection: Connection) -> Link | None:
        """Return the link of a connection; None if it is not in the lobby."""
        stranger = self._strangers.get(connection)
        return stranger.link if stranger else None

    def was_refused(self, connection: Connection) -> bool:
        """Return whether a connection was refused, and stays only until it has the reason."""
        return self._strangers[connection].refusal is not None

    def defer_join(self, connection: Connection, join: Join, until: float) -> None:
        """Defer a request to join until a time; the usual timeout starts then."""
        stranger = self._strangers[connection]
        stranger.join = join
        stranger.deadline = until + self._timeout_seconds

    def is_deferred(self, connection: Connection) -> bool:
        """Return whether the request of a connection is deferred."""
        return self._strangers[connection].join is not None

    @property
    def has_deferred(self) -> bool:
        """Whether any request is deferred."""
        return any(stranger.join is not None for stranger in self._strangers.values())

    def pop_deferred(self) -> list[tuple[Link, Join]]:
        """Return the deferred requests in the order they came, and forget them."""
        held = []
        for stranger in self._strangers.values():
            if stranger.join is not None:
                held.append((stranger.link, stranger.join))
                stranger.join = None
        return held

    def refuse(self, connection: Connection, refused: Refuse) -> None:
        """Send the reason for a refusal; the connection is closed once that was delivered."""
        stranger = self._strangers[connection]
        stranger.refusal = stranger.link.send(refused.within_limit)

    def answer(self, connection: Connection, answer: OrderDone | Refuse, now: float) -> None:
        """Answer an operator, and restart its timeout."""
        stranger = self._strangers[connection]
        stranger.deadline = now + self._timeout_seconds
        stranger.link.send(answer.within_limit if isinstance(answer, Refuse) else answer)

    def on_delivered(self, connection: Connection, event: MessageDelivered, now: float) -> None:
        """Close a refused connection once the reason was delivered."""
        stranger = self._strangers.get(connection)
        if stranger is not None and (event.stream, event.number) == (
            CONTROL_STREAM,
            stranger.refusal,
        ):
            self.end(connection, EndCode.REFUSED, "refused", now)

    def handle_timer(self, now: float) -> None:
        """Close connections whose deadline has passed."""
        for connection, stranger in list(self._strangers.items()):
            if stranger.deadline is None or now < stranger.deadline:
                continue
            if stranger.refusal is None:
                self.end(connection, EndCode.NO_JOIN, "no request to join came in time", now)
            else:
                self.end(connection, EndCode.REFUSED, "refused", now)

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        return earliest([stranger.deadline for stranger in self._strangers.values()])

    def close(self, reason: str, now: float, code: EndCode = EndCode.STOPPED) -> None:
        """Close all connections with a reason."""
        for connection in list(self._strangers):
            self.end(connection, code, reason, now)

    def end(self, connection: Connection, code: EndCode, reason: str, now: float) -> None:
        """Close a connection of the lobby."""
        del self._strangers[connection]
        connection.close(code, reason, now)
