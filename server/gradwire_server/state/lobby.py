"""The lobby: connections that are not members of a run; a daemon has one.

A worker that asks to join moves to the roster of a master: at once, or later while workers of an
earlier run are expected to return. A refused worker stays until the reason was delivered. A
connection whose timeout expires is closed.
"""

import logging
from dataclasses import dataclass

from gradwire_protocol import CloseCode, Connection, MessageDelivered
from gradwire_protocol.connection.timers import earliest
from gradwire_protocol.messages.admission import Join, Refuse, name_in_roster
from gradwire_protocol.messages.kinds import CONTROL_STREAM, EndCode
from gradwire_protocol.messages.link import Link
from gradwire_server.metrics import AdmissionMetrics

logger = logging.getLogger("gradwire.master")


@dataclass(slots=True)
class _Stranger:
    """A connection in the lobby."""

    link: Link
    deadline: float | None
    """When it is closed; None for a standby."""
    master: object = None
    """The state of the master that it has asked; None for a newcomer."""
    refusal: int | None = None
    """Number of the REFUSE that was sent to it."""
    join: Join | None = None
    """A deferred request to join."""


class Lobby:
    """Connections that are no members; each may stay `timeout_seconds` without a request."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._strangers: dict[Connection, _Stranger] = {}

    def __contains__(self, connection: Connection) -> bool:
        """Return whether a connection is in the lobby."""
        return connection in self._strangers

    def at(self, master: object) -> list[Connection]:
        """Return the connections that have asked the master with this state."""
        strangers = self._strangers.items()
        return [connection for connection, each in strangers if each.master is master]

    def enter(self, link: Link, now: float, master: object = None) -> None:
        """Add a new connection, or one that asks a master now; close others with its key."""
        self.leave(link.connection)
        for other in self.at(master):
            reason = why_replaced(other, link.connection)
            if reason is not None:
                self.expel(other, CloseCode.REPLACED, reason, now)
        deadline = now + self._timeout_seconds
        self._strangers[link.connection] = _Stranger(link, deadline, master)

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

    def has_deferred(self, master: object) -> bool:
        """Return whether a request to a master is deferred."""
        return any(each.join and each.master is master for each in self._strangers.values())

    def pop_deferred(self, master: object) -> list[tuple[Link, Join]]:
        """Return the deferred requests to a master in the order they came, and forget them."""
        held = []
        for stranger in self._strangers.values():
            if stranger.join is not None and stranger.master is master:
                held.append((stranger.link, stranger.join))
                stranger.join = None
        return held

    def refuse(
        self, connection: Connection, name: str, refused: Refuse, metrics: AdmissionMetrics
    ) -> None:
        """Send the reason for a refusal; the connection is closed once that was delivered."""
        metrics.refusals.labels(refused.code).inc()
        identity = connection.identity
        name = name_in_roster(None if identity is None else identity.name, name)
        logger.warning("refused %s: %s", name, refused.reason)
        stranger = self._strangers[connection]
        stranger.refusal = stranger.link.send(refused.within_limit)

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

    def expel(self, connection: Connection, code: int, reason: str, now: float) -> None:
        """Close a connection that has done something wrong, or was replaced."""
        logger.warning("closed a connection from %s: %s", connection.address, reason)
        self.end(connection, code, reason, now)

    def end(self, connection: Connection, code: int, reason: str, now: float) -> None:
        """Close a connection of the lobby."""
        self.leave(connection)
        connection.close(code, reason, now)


def why_replaced(connection: Connection, newer: Connection) -> str | None:
    """Return why a connection makes way for a newer one: it has the same key; None if it stays."""
    new, old = newer.identity, connection.identity
    if connection is newer or new is None or old is None or new.key_id != old.key_id:
        return None
    return f"another process came in with the same key, that of {new.name}"
