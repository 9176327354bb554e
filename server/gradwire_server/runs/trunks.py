"""`Trunks`: the relays of a daemon, and what the workers behind them do.

A relay says first that it is one. From then on what it says is made into events of its workers,
which masters handle as those of any other connection.
"""

from collections.abc import Callable, Iterator
from typing import Final

from gradwire_protocol import (
    CloseCode,
    Connection,
    Event,
    Identity,
    InvalidMessageError,
    Keyring,
    MessageReceived,
    Role,
)
from gradwire_protocol.messages.kinds import CONTROL_STREAM, Kind
from gradwire_protocol.messages.relays import RELAYS_DEEP_MAX, Trunk
from gradwire_protocol.messages.updates import Stopping
from gradwire_server.config import MasterConfig
from gradwire_server.runs.masters import Masters
from gradwire_server.trunks.trunk import BranchEvent, ServedTrunk, depth_of

BACK_SECONDS: Final = 3.0
"""How long the workers of a relay that is lost still take part: they are back sooner, by another
way, and a run must not finish without them meanwhile."""


class Trunks:
    """Relays by connection."""

    def __init__(self, config: MasterConfig, masters: Masters) -> None:
        self._config = config
        self._masters = masters
        self._trunks: dict[Connection, ServedTrunk] = {}
        self._lost: list[tuple[float, ServedTrunk]] = []
        """Relays that are lost, and until when their workers still take part."""
        self._admits: Callable[[Identity | None], bool] = lambda identity: True

    def __len__(self) -> int:
        """Return how many relays there are, those behind others included."""
        return len(self._trunks)

    def serves(self, connection: Connection, event: Event) -> bool:
        """Return whether an event is of a relay, or of one that says just now that it is one."""
        if connection in self._trunks:
            return True
        return (
            isinstance(event, MessageReceived)
            and (event.stream, event.number, event.kind) == (CONTROL_STREAM, 0, Kind.TRUNK)
            and connection in self._masters.lobby
            and self._begin(connection, event)
        )

    def handle_event(
        self, connection: Connection, event: Event, now: float
    ) -> Iterator[BranchEvent]:
        """Act on an event of a relay; yield what it says of workers."""
        trunk = self._trunks.get(connection)
        if trunk is not None:
            yield from trunk.handle_event(event, now)

    def conclude(self) -> None:
        """Forget relays that are lost, but not their workers yet."""
        lost = [each for each, trunk in self._trunks.items() if trunk.lost is not None]
        for connection in lost:
            trunk = self._trunks.pop(connection)
            trunk.end_feed()
            for branch in trunk:  # who is no member has nothing to come back to
                self._masters.lobby.leave(branch)
            self._lost.append((self._masters.now + BACK_SECONDS, trunk))

    def pop_lost(self, now: float) -> list[BranchEvent]:
        """Return the ends of the connections of those who have not come back by another way."""
        due = [trunk for until, trunk in self._lost if until <= now]
        self._lost = [each for each in self._lost if each[0] > now]
        return [end for trunk in due for end in trunk.lose_branches()]

    def next_timer(self) -> float | None:
        """Return when to call `pop_lost` at the latest."""
        return min((until for until, _ in self._lost), default=None)

    def admit(self, keyring: Keyring, now: float) -> list[BranchEvent]:
        """Let in only workers of a keyring from now on; return the ends of all others."""
        self._admits = lambda identity: identity is not None and keyring.admits(identity)
        ends = []
        for trunk in self._trunks.values():
            trunk.admits = self._admits
            ends += trunk.deny(now)
        return ends

    def stop(self, reason: str) -> None:
        """Let all relays end their connections, when they have closed those of their workers."""
        for trunk in self._trunks.values():
            trunk.link.send(Stopping(reason))

    def _has_room(self) -> bool:
        """Return whether one more worker, which is counted already, may be behind relays."""
        return sum(map(len, self._trunks.values())) <= self._config.connections_max

    def _begin(self, connection: Connection, event: MessageReceived) -> bool:
        """Take a connection of the lobby as that of a relay; return whether it is one."""
        lobby, now = self._masters.lobby, self._masters.now
        link = lobby.link_of(connection)
        if link is None or lobby.was_refused(connection):
            return False
        identity = connection.identity
        if identity is not None and identity.role is not Role.RELAY:
            return False  # a newcomer may not say this
        try:
            [said] = link.receive(event)
        except InvalidMessageError as error:
            lobby.expel(connection, CloseCode.INVALID_MESSAGE, str(error), now)
            return True
        assert isinstance(said, Trunk)
        if depth_of(connection) > RELAYS_DEEP_MAX:
            reason = f"relays one behind the other: the limit is {RELAYS_DEEP_MAX}"
            lobby.expel(connection, CloseCode.INVALID_MESSAGE, reason, now)
            return True
        window = self._config.window_bytes
        trunk = ServedTrunk(link, window, self._has_room, said.relay_id, self._admits)
        lobby.leave(connection)
        for other in self._trunks.values():
            if other.relay_id == said.relay_id != b"" and other.connection.identity == identity:
                other.give_up(CloseCode.REPLACED, "this relay is back over another one", now)
        self._trunks[connection] = trunk
        return True
