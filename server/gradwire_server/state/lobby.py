"""The lobby: connections that do not take part in the run, not yet or never.

A worker that asks to join leaves it for the roster, at once or, while workers of an earlier run are
expected back, later. One that is refused stays until it has heard why. An operator never leaves it.
Nobody stays for longer than the time there is to ask, for the first or for another thing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gradwire_protocol import Connection, MessageDelivered, Role
from gradwire_protocol.messages.admission import Join, Refuse
from gradwire_protocol.messages.kinds import CONTROL_STREAM, EndCode
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.orders import OrderDone
from gradwire_server.state.roster import role_of


@dataclass(slots=True)
class _Stranger:
    """A connection that does not take part."""

    link: Link
    deadline: float | None
    """Until when it may stay; None for a standby."""
    refusal: int | None = None
    """Number of the REFUSE that was sent to it."""
    join: Join | None = None
    """What it has asked for, and is answered later."""


class Lobby:
    """Connections that take no part.

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

    def keep(self, connection: Connection) -> None:
        """Let a standby stay until there is a run to take part in."""
        self._strangers[connection].deadline = None

    def link_of(self, connection: Connection) -> Link | None:
        """Return the link of a connection that is here."""
        stranger = self._strangers.get(connection)
        return stranger.link if stranger else None

    def was_refused(self, connection: Connection) -> bool:
        """Return whether it was told that it may not join, and stays only to hear it."""
        return self._strangers[connection].refusal is not None

    def hold_join(self, connection: Connection, join: Join, until: float) -> None:
        """Let somebody wait who asks to join; it has as much time as ever when that is over."""
        stranger = self._strangers[connection]
        stranger.join = join
        stranger.deadline = until + self._timeout_seconds

    def is_held(self, connection: Connection) -> bool:
        """Return whether somebody waits to be let in."""
        return self._strangers[connection].join is not None

    @property
    def holds_any(self) -> bool:
        """Whether anybody waits to be let in."""
        return any(stranger.join is not None for stranger in self._strangers.values())

    def release(self) -> list[tuple[Link, Join]]:
        """Return who waits to be let in, in the order they came; they wait no more."""
        held = []
        for stranger in self._strangers.values():
            if stranger.join is not None:
                held.append((stranger.link, stranger.join))
                stranger.join = None
        return held

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
            self.end(connection, EndCode.REFUSED, "refused", now)

    def handle_timer(self, now: float) -> None:
        """Close whoever has been here for too long."""
        for connection, stranger in list(self._strangers.items()):
            if stranger.deadline is None or now < stranger.deadline:
                continue
            if stranger.refusal is None:
                self.end(connection, EndCode.NO_JOIN, "no request to join came in time", now)
            else:
                self.end(connection, EndCode.REFUSED, "refused", now)

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        deadlines = (stranger.deadline for stranger in self._strangers.values())
        return min((each for each in deadlines if each is not None), default=None)

    def close(self, reason: str, now: float, code: EndCode = EndCode.STOPPED) -> None:
        """Tell everyone here that the master stops."""
        for connection in list(self._strangers):
            self.end(connection, code, reason, now)

    def end(self, connection: Connection, code: EndCode, reason: str, now: float) -> None:
        """Close a connection that is here."""
        del self._strangers[connection]
        connection.close(code, reason, now)
