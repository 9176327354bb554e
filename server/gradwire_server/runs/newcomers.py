"""`Newcomers` passes requests of peers in the lobby to masters.

A peer that asks to join is handed to the master of the run that it names. One that names none is
handed to that of the only run in progress, or else of the default name.
"""

from collections.abc import Sequence

from gradwire_protocol import (
    CloseCode,
    Connected,
    Connection,
    Event,
    InvalidMessageError,
    MessageDelivered,
    MessageReceived,
    Role,
)
from gradwire_protocol.messages.admission import Follow, Join, Promise, RefusalCode, Refuse
from gradwire_protocol.messages.link import Link, Message
from gradwire_server.config import MasterConfig
from gradwire_server.master.reception import RUN_DEFAULT, name_of
from gradwire_server.metrics import ServerMetrics
from gradwire_server.runs.masters import Masters, Served
from gradwire_server.state.roster import role_of


class Newcomers:
    """Hands peers in the lobby to masters."""

    def __init__(self, config: MasterConfig, metrics: ServerMetrics, masters: Masters) -> None:
        self._config = config
        self._metrics = metrics
        self._masters = masters
        self._lobby = masters.lobby

    def handle_event(self, connection: Connection, event: Event) -> None:
        """Act on an event of a connection that is new, or in the lobby."""
        now = self._masters.now
        match event:
            case Connected():
                self._lobby.enter(Link(connection), now)
            case MessageReceived():
                self._receive(connection, event)
            case MessageDelivered():
                self._lobby.on_delivered(connection, event, now)

    def _receive(self, connection: Connection, event: MessageReceived) -> None:
        link = self._lobby.link_of(connection)
        if link is None:
            connection.release(event.charge)  # it is being closed
            return
        try:
            messages = link.receive(event)
            for place, message in enumerate(messages, 1):
                self._act(link, message, messages[place:])
                if connection not in self._lobby:
                    return  # a member, whose master has acted on the others, or closed
        except InvalidMessageError as error:
            self._metrics.without_run.messages_invalid.inc()
            code, now = CloseCode.INVALID_MESSAGE, self._masters.now
            self._lobby.expel(connection, code, str(error), now)

    def _act(self, link: Link, message: Message, messages: Sequence[Message]) -> None:
        """Act on a message; `messages` came after it, at the same time.

        Raises `InvalidMessageError` if the peer must not send it.
        """
        masters = self._masters
        if self._lobby.was_refused(link.connection):
            return  # else each further request would cause one more answer and line of log
        if self._lobby.is_deferred(link.connection):
            raise InvalidMessageError(f"{name_of(message)} while the answer to JOIN is due")
        if isinstance(message, Join):
            served = self._served_for(link, message)
            if isinstance(served, Refuse):
                metrics = self._metrics.without_run
                self._lobby.refuse(link.connection, message.name, served, metrics)
                return
        elif isinstance(message, Follow | Promise):
            served = masters.first
        else:
            raise InvalidMessageError(f"{name_of(message)} before JOIN")
        masters.by_connection[link.connection] = served
        masters.guard(served, served.master.admit, link, message, messages, masters.now)

    # Which run.

    def _served_for(self, link: Link, join: Join) -> Served | Refuse:
        """Return where a peer may join, perhaps a new master, or the refusal."""
        masters, role = self._masters, role_of(link.connection)
        if masters.has_one_run or role is Role.STANDBY:
            return masters.first
        name = self._config.run or join.run
        if name is None:
            found = self._served_without_name()
            if found is not None:
                return found
            name = RUN_DEFAULT
        named = masters.named(name)
        if named is not None:
            return named
        if role is Role.OBSERVER:
            return Refuse(
                RefusalCode.NO_RUN,
                f"there is no run {name!r} to observe: an observer's parameters never begin one. "
                f"Try again when a worker has joined; {masters.list_of_runs}",
            )
        return masters.place_for(name)

    def _served_without_name(self) -> Served | Refuse | None:
        """Return where a peer joins that names no run; None for the default one."""
        masters = self._masters
        going = [served for served in masters if served.master.run is not None]
        if len(going) == 1:
            return going[0]
        if not going and masters.first.name is None:
            # Workers of a run before this daemon's start may still return, and give it a name.
            return masters.first
        if going and masters.named(RUN_DEFAULT) is None:
            return Refuse(
                RefusalCode.OTHER_RUN,
                f"{masters.list_of_runs}, and this worker names none: say which it is to join, or "
                "a new name for a run of its own, as run='...' or GRADWIRE_RUN",
            )
        return None
