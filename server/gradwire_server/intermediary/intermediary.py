"""`Intermediary`: a relay, which stands between workers and a master, its parent.

It does no I/O: its owner passes it the events of connections and the time. To its parent, it
carries what its peers say; of their updates it makes one (see `batch`), after the same checks as a
master's. What the parent relays it sends to all peers, to slow ones as sums. It holds nothing that
cannot be said again: its peers keep their updates until every worker has them. So when it has lost
its parent, it closes their connections, and they dial that; and when it is lost, they do the same.

::

    peer ══▶ Intake ──▶ Batch ══▶ parent         any other message: carried, both ways
    peers ◀══ Relay ◀══════════ parent

All that is `Serving`; here is who the parent is, and what becomes of peers without one. A peer may
be a relay itself: see `children`.
"""

import logging
from collections.abc import Callable
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
)
from gradwire_protocol.connection.timers import earliest
from gradwire_protocol.messages.admission import RefusalCode, Refuse
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import Link, Message
from gradwire_protocol.messages.masters.relaying import Relaying
from gradwire_server.config import MasterConfig
from gradwire_server.intermediary.kept_replica import KeptReplica
from gradwire_server.intermediary.serving import Counts, Serving
from gradwire_server.metrics import RunMetrics
from gradwire_server.standby.upstream import Upstream
from gradwire_server.state.lobby import Lobby
from gradwire_server.state.roster import Roster
from gradwire_server.updates.decoding import Decoder, InlineDecoder

logger = logging.getLogger("gradwire.relay")

REFUSALS_PATIENT: Final = 3
"""Refusals after which the master is dialled that the last one names. The first ones come of a
parent, itself a relay, that has just begun to dial its own."""


class Intermediary:
    """Stands before a master.

    Parameters
    ----------
    address : str
        ``host:port`` where peers reach this relay; it may be set before it dials.
    parent : str
        ``host:port`` of the master. If that has a standby, the two are dialled in turn.
    dial : callable
        Given ``host:port`` and the time, begins a connection, or raises `GradwireError`.
    keeps_replica : bool
        Whether it keeps a replica, so that workers that join later get theirs from here.
    """

    def __init__(
        self,
        config: MasterConfig,
        metrics: RunMetrics,
        address: str,
        parent: str,
        dial: Callable[[str, float], Connection],
        now: float,
        decoder: Decoder | None = None,
        *,
        keeps_replica: bool = False,
    ) -> None:
        self._config = config
        self.kept = KeptReplica() if keeps_replica else None
        """The replica, if one is kept."""
        self._metrics = metrics
        self.address = address
        self.counts = Counts()
        """What it has done."""
        self._upstream = Upstream([parent], dial, now, called="master", logger=logger)
        self._master = parent
        """Where workers find the master without this relay."""
        self._decoder = decoder or InlineDecoder()
        self._now = now
        self._serving: Serving | None = None
        """From when the parent has answered until it is lost."""
        self._refusals = 0
        """How many times in a row it has said no."""
        self._lobby = Lobby(config.join_timeout_seconds)
        """Connections that came while there was no parent."""

    def __len__(self) -> int:
        """Return how many peers there are."""
        return 0 if self._serving is None else len(self._serving.peers)

    @property
    def complaint(self) -> str:
        """What is wrong with the master, or was last; empty where nothing is."""
        return self._upstream.complaint

    @property
    def is_linked(self) -> bool:
        """Whether it stands before a master."""
        return self._serving is not None

    @property
    def roster(self) -> Roster:
        """The peers that take part."""
        return Roster() if self._serving is None else self._serving.roster

    # Input.

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act on an event of a connection."""
        self._note_time(now)
        self._dispatch(connection, event)
        self._conclude()

    def _dispatch(self, connection: Connection, event: Event) -> None:
        if self._up is not None and self._upstream.holds(connection):
            self._from_parent(self._up, event)
        elif self._serving is not None and connection not in self._lobby:
            self._serving.handle_event(connection, event)
        else:
            self._from_stranger(connection, event)

    def handle_timer(self, now: float) -> None:
        """Act on every deadline at or before `now`."""
        self._note_time(now)
        self._lobby.handle_timer(now)
        if self._serving is not None:
            self._serving.handle_timer()
        self._upstream.handle_timer(now)
        self._conclude()

    def handle_decoded(self, now: float) -> None:
        """Act on updates that were decoded meanwhile."""
        self._note_time(now)
        self._decoder.deliver()
        self._conclude()

    def stop(self, reason: str, now: float, *, broken: bool = False) -> None:
        """Close all connections with the reason."""
        del broken
        self._note_time(now)
        self._lobby.close(reason, now, EndCode.STEPPED_DOWN)
        self._send_peers_away(reason)
        self._upstream.end(EndCode.STOPPED, reason, now)

    # Output.

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        serving = None if self._serving is None else self._serving.next_timer()
        return earliest((self._lobby.next_timer(), self._upstream.due, serving))

    # The parent.

    @property
    def _up(self) -> Link | None:
        return self._upstream.link

    @property
    def _parent(self) -> str:
        """Where the parent was dialled last."""
        return self._upstream.address

    def _from_parent(self, up: Link, event: Event) -> None:
        match event:
            case Connected():
                up.send(Relaying(self.address, self._parent))
            case MessageReceived():
                try:
                    for message in up.receive(event):
                        self._receive(up, message)
                except InvalidMessageError as error:
                    self._upstream.complain(f"the master sent an invalid message: {error}")
                    up.connection.close(CloseCode.INVALID_MESSAGE, str(error), self._now)
                    self._lose_parent(str(error))
            case MessageDelivered(stream, number):
                if self._serving is not None:
                    self._serving.on_delivered(stream, number)
            case Disconnected():
                if self.is_linked:
                    logger.warning("the master at %s is lost: %s", self._parent, event.reason)
                else:
                    self._upstream.complain(f"no master answers at {self._parent}: {event.reason}")
                if event.by_peer and event.code == EndCode.STOPPED:
                    self._lose_parent(event.reason, EndCode.STOPPED)
                else:
                    self._lose_parent(f"this relay has lost its master: {event.reason}")

    def _lose_parent(self, reason: str, code: EndCode = EndCode.STEPPED_DOWN) -> None:
        self._upstream.lose(self._now)
        self._send_peers_away(reason, code)

    def _note_other(self, master: str | None) -> None:
        """Note where the other master is, of two that take each other's place."""
        addresses = self._upstream.addresses
        if master is not None and master not in addresses:
            addresses[1:] = [master]

    def _send_peers_away(self, reason: str, code: EndCode = EndCode.STEPPED_DOWN) -> None:
        """Close the connections of all peers, which dial the master then, unless it has stopped."""
        serving, self._serving = self._serving, None
        for link in () if serving is None else serving.end(reason, code):
            self._lobby.enter(link, self._now)
            self._refuse(link.connection)

    def _receive(self, up: Link, message: Message) -> None:
        match message:
            case Relaying():
                self._refusals = 0
                self._master = message.master
                self._note_other(message.other)
                self._upstream.complaint = ""
                self._serve(up)
                logger.info("this relay stands before the master at %s", self._parent)
            case Refuse():
                self._receive_refusal(message)
            case _ if self._serving is not None:
                self._serving.receive(message)
            case _:
                raise InvalidMessageError(f"{type(message).__name__} before Relaying")

    def _serve(self, up: Link) -> None:
        if self._serving is None:
            self._serving = Serving(
                self._config, self._metrics, self._decoder, up, self.kept, self.counts, self._now
            )

    def _receive_refusal(self, refused: Refuse) -> None:
        self._upstream.complain(f"the master refuses: {refused.reason}")
        self._refusals += 1
        if self._refusals >= REFUSALS_PATIENT:
            self._note_other(refused.master)

    # Peers.

    def _from_stranger(self, connection: Connection, event: Event) -> None:
        """Act on an event of a connection that came while there was no parent."""
        match event:
            case Connected():
                self._lobby.enter(Link(connection), self._now)
            case MessageReceived():
                connection.release(event.charge)
                if connection in self._lobby and not self._lobby.was_refused(connection):
                    self._refuse(connection)
            case MessageDelivered():
                self._lobby.on_delivered(connection, event, self._now)
            case Disconnected():
                self._lobby.leave(connection)

    def _refuse(self, connection: Connection) -> None:
        """Send one of the lobby to the parent, which is not here."""
        reason = f"this is a relay, and has no connection to the master at {self._master}"
        self._lobby.refuse(connection, Refuse(RefusalCode.NOT_IN_CHARGE, reason, self._master))

    # Around every event.

    def _note_time(self, now: float) -> None:
        self._now = now
        if self._serving is not None:
            self._serving.now = now

    def _conclude(self) -> None:
        """Do what is due now."""
        if self._serving is not None:
            self._serving.conclude()
