"""`Trunks`: the relays of a daemon, and what the workers behind them do.

A relay says first that it is one. From then on what it says is made into events of its workers,
which masters handle as those of any other connection.
"""

from collections.abc import Callable, Iterator

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
from gradwire_server.trunks.trunk import BranchEvent, ServedTrunk


class Trunks:
    """Relays by connection."""

    def __init__(self, config: MasterConfig, masters: Masters) -> None:
        self._config = config
        self._masters = masters
        self._trunks: dict[Connection, ServedTrunk] = {}
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

    def pop_lost(self) -> ServedTrunk | None:
        """Forget a relay that is lost, and return it; None without any."""
        for connection, trunk in self._trunks.items():
            if trunk.lost is not None:
                return self._trunks.pop(connection)
        return None

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
        window = self._config.window_bytes
        trunk = ServedTrunk(link, window, self._has_room, said.relay_id, self._admits)
        if trunk.depth > RELAYS_DEEP_MAX:
            reason = f"{trunk.depth} relays one behind the other; the limit is {RELAYS_DEEP_MAX}"
            lobby.expel(connection, CloseCode.INVALID_MESSAGE, reason, now)
            return True
        lobby.leave(connection)
        for other in self._trunks.values():
            if other.relay_id == said.relay_id != b"" and other.connection.identity == identity:
                other.give_up(CloseCode.REPLACED, "this relay is back over another one", now)
        self._trunks[connection] = trunk
        return True
