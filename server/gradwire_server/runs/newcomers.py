"""`Newcomers`: connections that have not said yet what they want, and operators.

A peer that asks to join goes to the master of the run that it names. One that names none goes to
the only run in progress, or else to that of the default name. An operator stays here.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from gradwire_protocol import (
    CloseCode,
    Connected,
    Connection,
    Disconnected,
    Event,
    InvalidMessageError,
    MessageDelivered,
    MessageReceived,
    Role,
)
from gradwire_protocol.messages.admission import Join, RefusalCode, Refuse, name_in_roster
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import Link, Message
from gradwire_protocol.messages.masters.relaying import Relaying
from gradwire_protocol.messages.masters.standby import Follow, Promise
from gradwire_protocol.messages.operating.orders import Order, OrderDone
from gradwire_server.config import MasterConfig
from gradwire_server.master.reception import RUN_DEFAULT, name_of
from gradwire_server.metrics import ServerMetrics
from gradwire_server.runs.masters import INTERNAL_ERROR, Masters, Served
from gradwire_server.runs.orders import Orders, Powers
from gradwire_server.runs.relays import Relays
from gradwire_server.state.lobby import Lobby
from gradwire_server.state.roster import role_of

logger = logging.getLogger("gradwire.master")

KEYLESS_OPERATOR: Final = "without a key"
"""Name of an operator where there are no keys."""


class Newcomers:
    """Hands peers on to masters, and carries out orders."""

    def __init__(
        self,
        config: MasterConfig,
        metrics: ServerMetrics,
        masters: Masters,
        relays: Relays,
        on_denied: Callable[[frozenset[str]], None],
    ) -> None:
        self.takes_keyless_orders = False
        """Whether anyone may give orders: there are no keys, and only this machine reaches us."""
        self.lobby: Final = Lobby(config.join_timeout_seconds)
        self._config = config
        self._metrics = metrics
        self._masters = masters
        self._relays = relays
        self.orders: Final = Orders(
            Powers(
                status=self.status,
                runs=lambda: masters.in_progress,
                drain=self._set_draining,
                deny=on_denied,
            )
        )

    def status(self) -> dict[str, Any]:
        """Return the status of all runs, as values that JSON has."""
        runs = [master.status() for master in self._masters.in_progress.values()]
        return {"runs": runs, **self.summary()}

    def summary(self) -> dict[str, Any]:
        """Return the part of the status that is of no run."""
        return {
            "draining": self.orders.draining is not None,
            "denied": sorted(self.orders.denied),
            "master": self._masters.first.master.terms.status(),
        }

    def handle_event(self, connection: Connection, event: Event) -> None:
        """Act on an event of a connection that no master holds."""
        now = self._masters.now
        match event:
            case Connected():
                self._replace(connection)
                self.lobby.enter(Link(connection), now)
            case MessageReceived():
                self._receive(connection, event)
            case MessageDelivered():
                self.lobby.on_delivered(connection, event, now)
            case Disconnected():
                self.lobby.leave(connection)

    def _replace(self, connection: Connection) -> None:
        """Close other connections of the lobby with the same key."""
        identity = connection.identity
        if identity is None:
            return
        for other in list(self.lobby):
            if other.identity is not None and other.identity.key_id == identity.key_id:
                reason = f"another process came in with the same key, that of {identity.name}"
                self._expel(other, CloseCode.REPLACED, reason)

    def _receive(self, connection: Connection, event: MessageReceived) -> None:
        link = self.lobby.link_of(connection)
        if link is None:
            connection.release(event.charge)  # it is being closed
            return
        try:
            messages = link.receive(event)
            for place, message in enumerate(messages):
                self._act(link, message, messages[place:])
                if connection not in self.lobby:
                    return
        except InvalidMessageError as error:
            self._metrics.without_run.messages_invalid.inc()
            self._expel(connection, CloseCode.INVALID_MESSAGE, str(error))

    def _act(self, link: Link, message: Message, messages: Sequence[Message]) -> None:
        """Act on a message of a newcomer; `messages` are this one and those that came with it.

        Raises `InvalidMessageError` if the peer must not send it.
        """
        masters = self._masters
        if self.lobby.was_refused(link.connection):
            return  # else each further request would cause one more answer and line of log
        if isinstance(message, Join):
            served = self._relays.detour(link, message) or self._served_for(link, message)
            if isinstance(served, Refuse):
                self._refuse(link.connection, message, served)
                return
        elif isinstance(message, Follow | Promise):
            served = masters.first
        elif isinstance(message, Order):
            self._take_order(link, message)
            return
        elif isinstance(message, Relaying):
            self._take_relay(link, message, messages[1:])
            return
        else:
            raise InvalidMessageError(f"{name_of(message)} before JOIN")
        self.lobby.leave(link.connection)
        masters.guard(served, served.master.admit, link, messages, masters.now)

    def _take_relay(self, link: Link, relaying: Relaying, messages: Sequence[Message]) -> None:
        refused = self._relays.refusal(link.connection)
        if refused is not None:
            logger.warning("refused a relay at %s: %s", relaying.address, refused.reason)
            self.lobby.refuse(link.connection, refused)
            return
        self.lobby.leave(link.connection)
        self._relays.admit(link, relaying, messages)

    def _refuse(self, connection: Connection, join: Join, refused: Refuse) -> None:
        self._metrics.without_run.refusals.labels(refused.code).inc()
        identity = connection.identity
        name = name_in_roster(None if identity is None else identity.name, join.name)
        if refused.code == RefusalCode.USE_RELAY:
            logger.info("%s is sent to the relay at %s", name, refused.master)
        else:
            logger.warning("refused %s: %s", name, refused.reason)
        self.lobby.refuse(connection, refused)

    def _expel(self, connection: Connection, code: int, reason: str) -> None:
        logger.warning("closed a connection from %s: %s", connection.address, reason)
        self.lobby.leave(connection)
        connection.close(code, reason, self._masters.now)

    # Which run.

    def _served_for(self, link: Link, join: Join) -> Served | Refuse:
        """Return where a peer may join, perhaps a new master, or the refusal."""
        masters, role = self._masters, role_of(link.connection)
        if masters.has_one_run or role in (Role.OPERATOR, Role.STANDBY):
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

    # Orders.

    def order(self, operator: str, order: Order) -> OrderDone | Refuse:
        """Carry out an order, and count it."""
        answer = self._answer(operator, order)
        if isinstance(answer, Refuse):
            self._metrics.without_run.refusals.labels(answer.code).inc()
        else:
            self._metrics.orders.inc()
        return answer

    def _take_order(self, link: Link, order: Order) -> None:
        connection, identity = link.connection, link.connection.identity
        if identity is None and self.takes_keyless_orders:
            operator = KEYLESS_OPERATOR
        elif identity is None or identity.role is not Role.OPERATOR:
            raise InvalidMessageError(f"{order.action} ordered by a peer that is no operator")
        else:
            operator = identity.name
        self.lobby.answer(connection, self.order(operator, order), self._masters.now)
        limit = self._config.relay_backlog_bytes_max
        if connection.bytes_queued > limit:
            reason = f"{connection.bytes_queued} bytes wait for this operator; the limit is {limit}"
            self._expel(connection, EndCode.TOO_SLOW, reason)

    def _answer(self, operator: str, order: Order) -> OrderDone | Refuse:
        """Carry out an order; what a master raises ends the service of its run alone."""
        masters = self._masters
        answers: list[OrderDone | Refuse] = []

        def execute() -> None:
            answers.append(self.orders.execute(operator, order, masters.now))

        going = [served for served in masters if served.master.run is not None]
        of = [served for served in going if order.run in (None, served.name)]
        if len(of) == 1:
            masters.guard(of[0], execute)
        else:
            execute()
        return answers[0] if answers else Refuse(RefusalCode.ORDER, INTERNAL_ERROR)

    def _set_draining(self, draining: bool) -> None:
        self._masters.draining = draining
        for served in self._masters:
            served.master.state.draining = draining
