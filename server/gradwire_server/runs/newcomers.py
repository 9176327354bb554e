"""`Newcomers` passes requests of peers in the lobby to masters, and carries out orders.

A peer that asks to join is handed to the master of the run that it names. One that names none is
handed to that of the only run in progress, or else of the default name.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

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
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import Link, Message
from gradwire_protocol.messages.orders import Order, OrderDone
from gradwire_server.config import MasterConfig
from gradwire_server.master.reception import RUN_DEFAULT, name_of
from gradwire_server.metrics import ServerMetrics
from gradwire_server.runs.masters import INTERNAL_ERROR, Masters, Served
from gradwire_server.runs.orders import Orders, Powers
from gradwire_server.state.roster import role_of

KEYLESS_OPERATOR: Final = "without a key"
"""Name of an operator where there are no keys."""


class Newcomers:
    """Hands peers in the lobby to masters, and carries out orders."""

    def __init__(
        self,
        config: MasterConfig,
        metrics: ServerMetrics,
        masters: Masters,
        on_denied: Callable[[frozenset[str]], None],
    ) -> None:
        self.takes_keyless_orders = False
        """Whether anyone may give orders: there are no keys, and only this machine reaches us."""
        self._config = config
        self._metrics = metrics
        self._masters = masters
        self._lobby = masters.lobby
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
        return {
            "runs": [master.status() for master in self._masters.in_progress.values()],
            "draining": self.orders.draining is not None,
            "denied": sorted(self.orders.denied),
            "master": self._masters.first.master.terms.status(),
        }

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
        elif isinstance(message, Order):
            self._take_order(link, message)
            return
        else:
            raise InvalidMessageError(f"{name_of(message)} before JOIN")
        masters.by_connection[link.connection] = served
        masters.guard(served, served.master.admit, link, message, messages, masters.now)

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

    def _take_order(self, link: Link, order: Order) -> None:
        connection, identity = link.connection, link.connection.identity
        if identity is None and self.takes_keyless_orders:
            operator = KEYLESS_OPERATOR
        elif identity is None or identity.role is not Role.OPERATOR:
            raise InvalidMessageError(f"{order.action} ordered by a peer that is no operator")
        else:
            operator = identity.name
        answer = self._answer(operator, order)
        if isinstance(answer, Refuse):
            self._metrics.without_run.refusals.labels(answer.code).inc()
        else:
            self._metrics.orders.inc()
        self._lobby.answer(connection, answer, self._masters.now)
        limit = self._config.relay_backlog_bytes_max
        if connection.bytes_queued > limit:
            reason = f"{connection.bytes_queued} bytes wait for this operator; the limit is {limit}"
            self._lobby.expel(connection, EndCode.TOO_SLOW, reason, self._masters.now)

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
