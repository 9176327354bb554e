"""The lobby: connections that do not take part in the run, not yet or never.

Who asks to join leaves it for the roster. Who is refused stays until it has heard why, and nobody
stays for longer than the time there is to ask.
"""

from dataclasses import dataclass

from gradwire_protocol import Connection, MessageDelivered
from gradwire_protocol.link import Link
from gradwire_protocol.messages import CONTROL_STREAM, EndCode, Refuse


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

    def refuse(self, connection: Connection, refused: Refuse) -> None:
        """Say why it may not join; it is closed when it has heard that."""
        stranger = self._strangers[connection]
        stranger.refusal = stranger.link.send(refused)

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
