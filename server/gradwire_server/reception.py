"""The reception: connections that do not take part, and what they ask for: to join, or an order.

Of one key there is one connection, the newest. Who is let in leaves the lobby for the roster; who
is refused, or gives orders, stays there.
"""

import logging
from dataclasses import replace
from typing import Final

from gradwire_protocol import CloseCode, Connection, InOrder, InvalidMessageError, Role
from gradwire_protocol.link import Link, Message, UpdateReceived
from gradwire_protocol.messages import (
    REASON_CHARACTERS_MAX,
    Join,
    Order,
    Refuse,
    name_in_roster,
)
from gradwire_server.admission import no_memory_for, refusal, refusal_by_role
from gradwire_server.departures import Departures
from gradwire_server.founding import welcome
from gradwire_server.metrics import Departure
from gradwire_server.orders import Orders
from gradwire_server.pace import Pace
from gradwire_server.roster import Member, role_of
from gradwire_server.run import Run
from gradwire_server.state import State

logger = logging.getLogger("gradwire.master")

RUN_DEFAULT: Final = "default"
"""Name of a run that nobody has named."""


class Reception:
    """Deals with who does not take part.

    Parameters
    ----------
    state : State
    departures : Departures
    orders : Orders
    """

    def __init__(self, state: State, departures: Departures, orders: Orders) -> None:
        self._state = state
        self._departures = departures
        self._orders = orders

    def enter(self, connection: Connection) -> None:
        """Take in a new connection, in place of another one with the same key."""
        self._replace(connection)
        self._state.lobby.enter(connection, self._state.now)

    def receive(self, link: Link, message: Message) -> None:
        """Do what somebody asks for who does not take part.

        Raises
        ------
        InvalidMessageError
            If he must not ask for it.
        """
        if self._state.lobby.was_refused(link.connection):
            return  # or each further request would be one more answer, and one more line of log
        identity = link.connection.identity
        if isinstance(message, Join):
            self._join(link, message)
        elif not isinstance(message, Order):
            raise InvalidMessageError(f"{name_of(message)} before JOIN")
        elif identity is None or identity.role is not Role.OPERATOR:
            raise InvalidMessageError(f"{message.action} ordered by who is no operator")
        else:
            self._obey(link, identity.name, message)

    # Private.

    def _replace(self, connection: Connection) -> None:
        """Close the connection that another one has come for, with the same key."""
        identity = connection.identity
        if identity is None:
            return
        for other in [*self._state.lobby, *self._state.roster.connections]:
            if other.identity is not None and other.identity.key_id == identity.key_id:
                reason = f"another process came in with the same key, that of {identity.name}"
                self._departures.expel(other, CloseCode.REPLACED, reason, Departure.REPLACED)

    def _obey(self, link: Link, operator: str, order: Order) -> None:
        state = self._state
        answer = self._orders.obey(operator, order)
        if isinstance(answer, Refuse):
            state.metrics.refusals.labels(answer.code).inc()
        else:
            state.metrics.orders.inc()
        state.lobby.answer(link.connection, answer, state.now)
        self._departures.drop_if_too_slow(link.connection)

    def _join(self, link: Link, join: Join) -> None:
        run = self._run_for(link, join)
        if isinstance(run, Refuse):
            self._refuse(link.connection, join, run)
        else:
            self._let_in(link, join, run)

    def _run_for(self, link: Link, join: Join) -> Run | Refuse:
        """Return the run that somebody may join, a new one perhaps, or why he may not."""
        state, role = self._state, role_of(link.connection)
        run = state.run
        if run is not None and not state.roster.workers and join.run not in (None, run.name):
            run = None  # nobody is left in that run, and this worker means another one
        draining = self._orders.draining is not None
        refused = refusal_by_role(role, run, draining=draining) or refusal(
            join, state.config, run, state.roster
        )
        if refused is not None:
            return refused
        if run is not None:
            return run
        try:
            return Run.begin(join.run or state.config.run or RUN_DEFAULT, join)
        except MemoryError:
            return no_memory_for(join)

    def _refuse(self, connection: Connection, join: Join, refused: Refuse) -> None:
        self._state.metrics.refusals.labels(refused.code).inc()
        identity = connection.identity
        name = name_in_roster(None if identity is None else identity.name, join.name)
        logger.warning("refused %s: %s", name, refused.reason)
        # Names of parameters may be long, and a longer reason is no message.
        shown = replace(refused, reason=refused.reason[:REASON_CHARACTERS_MAX])
        self._state.lobby.refuse(connection, shown)

    def _let_in(self, link: Link, join: Join, run: Run) -> None:
        state, role = self._state, role_of(link.connection)
        state.lobby.leave(link.connection)
        if run is not state.run:
            self._departures.dismiss_observers()
            state.run = run
            state.metrics.parameters.set(join.layout.elements)
        rank = state.roster.free_rank(join.rank, role)
        first = run.relay.versions.get(rank, 0) + 1
        pace: Pace[UpdateReceived] = Pace(state.config.update_rate_max)
        member = Member(rank, join, link, InOrder(first), pace=pace)
        state.roster.add(member)
        state.metrics.joins.inc()
        state.count_members()
        what = "observes" if member.observes else "joined"
        logger.info("%s %s run %r", member.name, what, run.name)
        welcome(member, run, state.roster)
        state.tell_roster()


def name_of(message: Message) -> str:
    """Return what a message is called in errors."""
    return "update" if isinstance(message, UpdateReceived) else type(message).__name__
