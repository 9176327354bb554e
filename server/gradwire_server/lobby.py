"""The lobby: connections that do not take part in the run, not yet or never.

Who asks to join leaves it for the roster. Who is refused stays until it has heard why. An operator
never leaves it. Nobody stays for longer than the time there is to ask, for the first or for another
thing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gradwire_protocol import Connection, MessageDelivered, Role
from gradwire_protocol.link import Link
from gradwire_protocol.messages import CONTROL_STREAM, EndCode, OrderDone, Refuse
from gradwire_server.roster import role_of


@dataclass(slots=True)
class _Stranger:
    """A connection that does not take part."""

    link: Link
    deadline: float
    refusal: int | None = None
    """Number of the REFUSE that was sent to it."""


class Lobby:
    """Who is connected and does not take part.

    Parameters
    ----------
    timeout_seconds : float
        How long one may stay.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._strangers: dict[Connection, _Stranger] = {}

    def __contains__(self, connection: Connection) -> bool:
        """Return whether it is here."""
        return connection in self._strangers

    def __iter__(self) -> Iterator[Connection]:
        """Iterate over the connections, oldest first."""
        return iter(self._strangers)

    @property
    def has_operators(self) -> bool:
        """Whether an operator is here."""
        return any(role_of(connection) is Role.OPERATOR for connection in self._strangers)

    def enter(self, connection: Connection, now: float) -> None:
        """Take in a new connection."""
        deadline = now + self._timeout_seconds
        self._strangers[connection] = _Stranger(Link(connection), deadline)

    def leave(self, connection: Connection) -> None:
        """Forget a connection: it is over, or takes part."""
        self._strangers.pop(connection, None)

    def link_of(self, connection: Connection) -> Link | None:
        """Return the link of a connection that is here."""
        stranger = self._strangers.get(connection)
        return stranger.link if stranger else None

    def was_refused(self, connection: Connection) -> bool:
        """Return whether it was told that it may not join, and stays only to hear it."""
        return self._strangers[connection].refusal is not None

    def refuse(self, connection: Connection, refused: Refuse) -> None:
        """Say why it may not join; it is closed when it has heard that."""
        stranger = self._strangers[connection]
        stranger.refusal = stranger.link.send(refused)

    def answer(self, connection: Connection, answer: OrderDone | Refuse, now: float) -> None:
        """Answer an operator, and give it as much time again."""
        stranger = self._strangers[connection]
        stranger.deadline = now + self._timeout_seconds
        stranger.link.send(answer)

    def on_delivered(self, connection: Connection, event: MessageDelivered, now: float) -> None:
        """Close the connection of who has heard why it was refused."""
        stranger = self._strangers.get(connection)
        if stranger is not None and (event.stream, event.number) == (
            CONTROL_STREAM,
            stranger.refusal,
        ):
            self._end(connection, EndCode.REFUSED, "refused", now)

    def handle_timer(self, now: float) -> None:
        """Close whoever has been here for too long."""
        for connection, stranger in list(self._strangers.items()):
            if now < stranger.deadline:
                continue
            if stranger.refusal is None:
                self._end(connection, EndCode.NO_JOIN, "no request to join came in time", now)
            else:
                self._end(connection, EndCode.REFUSED, "refused", now)

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        return min((stranger.deadline for stranger in self._strangers.values()), default=None)

    def close(self, reason: str, now: float) -> None:
        """Tell everyone here that the master stops."""
        for connection in list(self._strangers):
            self._end(connection, EndCode.STOPPED, reason, now)

    def _end(self, connection: Connection, code: EndCode, reason: str, now: float) -> None:
        del self._strangers[connection]
        connection.close(code, reason, now)
