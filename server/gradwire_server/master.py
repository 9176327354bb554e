"""The master: lets workers in, keeps the replica, passes every update on, notices who is gone.

Like everything below it, it does no I/O: the owner hands it the events of an endpoint and the
time; what it has to say goes into connections. One master serves one run at a time. The run
begins with the parameters of the first worker, goes on as long as the master lives, even while no
worker takes part, and ends when all live workers have finished it; the next worker then begins
a new one.

Observers get what workers get and have no say in any of this. Operators give orders (see `orders`).
Of one key there is one connection: the newest.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from gradwire_protocol import (
    AddressChanged,
    CloseCode,
    Connected,
    Connection,
    Disconnected,
    Event,
    InOrder,
    InvalidMessageError,
    MessageDelivered,
    MessageReceived,
    Role,
    UsageError,
)
from gradwire_protocol.link import Control, Link, Message, UpdateReceived
from gradwire_protocol.messages import (
    CONTROL_STREAM,
    SNAPSHOT_STREAM,
    EndCode,
    Finish,
    Finished,
    Join,
    Leave,
    Order,
    Refuse,
    Snapshot,
    Stable,
    name_in_roster,
)
from gradwire_protocol.messages import Roster as RosterMessage
from gradwire_server.admission import no_memory_for, refusal, refusal_by_role
from gradwire_server.config import MasterConfig
from gradwire_server.decoding import Decoder, InlineDecoder
from gradwire_server.founding import found_again, take_block, welcome
from gradwire_server.intake import Consequences, Intake
from gradwire_server.lobby import Lobby
from gradwire_server.metrics import Departure, ServerMetrics
from gradwire_server.orders import Orders, Powers
from gradwire_server.pace import Pace
from gradwire_server.roster import Member, Phase, Roster, role_of
from gradwire_server.run import Run
from gradwire_server.status import status_of

logger = logging.getLogger("gradwire.master")

RUN_DEFAULT: Final = "default"
"""Name of a run that nobody has named."""

DEPARTURES: Final[dict[int, Departure]] = {
    CloseCode.LOST: Departure.DISCONNECTED,
    CloseCode.IDLE: Departure.IDLE,
    CloseCode.DENIED: Departure.DENIED,
}
"""What it is called when a connection ended with a code of the transport; else it is a fault."""


class Master:
    """One run's centre.

    Parameters
    ----------
    config : MasterConfig
    metrics : ServerMetrics
    decoder : Decoder, optional
        What decodes updates; at once, unless given.
    on_denied : callable
        Called with all names denied by order whenever these have changed. Whose name is among them
        has to be let in no more, and his connection to be closed.
    on_drained : callable
        Called with who drained the master when the last worker has left: it should stop then. It
        may be called again until it does.
    """

    def __init__(
        self,
        config: MasterConfig,
        metrics: ServerMetrics,
        decoder: Decoder | None = None,
        *,
        on_denied: Callable[[frozenset[str]], None] = lambda names: None,
        on_drained: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.config = config
        self._decoder = decoder or InlineDecoder()
        self.roster = Roster()
        self.run: Run | None = None
        self._metrics = metrics
        self._intake = Intake(
            config,
            metrics,
            self._decoder,
            self.roster,
            Consequences(self._accepted, self._settle, self._unfit),
        )
        self._lobby = Lobby(config.join_timeout_seconds)
        self._orders = Orders(
            self.roster,
            Powers(
                status=self.status,
                release=lambda member: self.release(member.rank, self._now),
                expel=self._expel_by_order,
                deny=on_denied,
            ),
        )
        self._on_drained = on_drained
        self._stable_told: dict[int, int] = {}
        self._stable_due: float | None = None
        self._now = 0.0

    # Input.

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act on what a connection reports."""
        self._now = now
        match event:
            case Connected():
                self._replace(connection)
                self._lobby.enter(connection, now)
            case MessageReceived():
                self._receive(connection, event)
            case MessageDelivered():
                self._delivered(connection, event)
            case AddressChanged():
                member = self.roster.of(connection)
                if member is not None:
                    logger.info("%s moved to %s", member.name, event.address)
            case Disconnected():
                self._disconnected(connection, event)
        self._tell_if_drained()

    def handle_timer(self, now: float) -> None:
        """Act on every deadline at or before `now`."""
        self._now = now
        self._lobby.handle_timer(now)
        self._intake.handle_timer(now)
        if self._stable_due is not None and now >= self._stable_due:
            self._tell_stable()
        self._tell_if_drained()

    def handle_decoded(self, now: float) -> None:
        """Go on with updates that were decoded meanwhile."""
        self._now = now
        self._decoder.deliver()

    def release(self, rank: int, now: float) -> None:
        """End a worker's quarantine: what was kept aside is accepted, and all that it sends.

        Raises
        ------
        UsageError
            If no worker of this rank is in quarantine.
        """
        self._now = now
        member = self._quarantined(rank)
        assert self.run is not None
        self._intake.release(self.run, member, now)

    def expel(self, rank: int, reason: str, now: float) -> None:
        """Send a worker away that is in quarantine; what was kept aside is dropped.

        Raises
        ------
        UsageError
            If no worker of this rank is in quarantine.
        """
        self._now = now
        self._dismiss(self._quarantined(rank), reason)

    def stop(self, reason: str, now: float) -> None:
        """Tell everyone why, and end all connections."""
        self._now = now
        self._decoder.drain()
        self._lobby.close(reason, now)
        for member in self.roster:
            member.link.connection.close(EndCode.STOPPED, reason, now)
            self._forget(member, Departure.STOPPED)

    # Output.

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        deadlines = (self._lobby.next_timer(), self._intake.next_timer(), self._stable_due)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def status(self) -> dict[str, Any]:
        """Return what there is to know of the run, as plain values."""
        return status_of(self.run, self.roster, self._orders)

    @property
    def unstable(self) -> int:
        """How many accepted updates some live worker does not have yet."""
        return self.run.relay.unstable if self.run else 0

    # Messages.

    def _receive(self, connection: Connection, event: MessageReceived) -> None:
        member = self.roster.of(connection)
        link = member.link if member else self._lobby.link_of(connection)
        if link is None:
            connection.release(event.charge)  # it is on its way out
            return
        try:
            for message in link.receive(event):
                member = self.roster.of(connection)
                if member is not None:
                    self._from_member(member, message)
                elif connection not in self._lobby:
                    return  # it has just left; what it says after that is not heard
                else:
                    self._from_stranger(link, message)
        except InvalidMessageError as error:
            self._on_invalid(connection, error)

    def _on_invalid(self, connection: Connection, error: InvalidMessageError) -> None:
        self._metrics.messages_invalid.inc()
        self._expel(connection, CloseCode.INVALID_MESSAGE, str(error), Departure.FAULT)

    def _from_stranger(self, link: Link, message: Message) -> None:
        identity = link.connection.identity
        if isinstance(message, Join):
            self._join(link, message)
        elif not isinstance(message, Order):
            raise InvalidMessageError(f"{_name_of(message)} before JOIN")
        elif identity is None or identity.role is not Role.OPERATOR:
            raise InvalidMessageError(f"{message.action} ordered by who is no operator")
        else:
            self._obey(link, identity.name, message)

    def _obey(self, link: Link, operator: str, order: Order) -> None:
        answer = self._orders.obey(operator, order)
        if isinstance(answer, Refuse):
            self._metrics.refusals.labels(answer.code).inc()
        else:
            self._metrics.orders.inc()
        self._lobby.answer(link.connection, answer, self._now)
        self._drop_if_too_slow(link.connection)

    def _from_member(self, member: Member, message: Message) -> None:
        if member.observes and not isinstance(message, Leave):
            raise InvalidMessageError(f"{_name_of(message)} from {member.name}, an observer")
        match message:
            case UpdateReceived():
                self._take_update(member, message)
            case Snapshot():
                take_block(member, message, self.run, self.roster)
            case Finish():
                member.last_sequence = message.sequence
                self._tell_roster()
                self._settle(member)
            case Leave():
                member.last_sequence = message.sequence
                member.leaving = message.reason
                self._settle(member)
            case _:
                raise InvalidMessageError(f"{_name_of(message)} from {member.name}")

    def _delivered(self, connection: Connection, event: MessageDelivered) -> None:
        self._lobby.on_delivered(connection, event, self._now)
        member = self.roster.of(connection)
        if member is None:
            return
        if event.stream == SNAPSHOT_STREAM:
            if member.feed is not None and member.feed.on_delivered():
                member.feed = None
                member.move_to(Phase.LIVE)
                self._metrics.snapshots_sent.inc()
        elif event.stream != CONTROL_STREAM and self.run is not None:
            accepted_at = self.run.relay.on_delivered(member, event.stream, event.number)
            if accepted_at is not None:
                self._metrics.updates_relayed.inc()
                self._metrics.relay_delay.observe(self._now - accepted_at)
            if event.stream == member.rank:
                self._finish_if_all_have()  # a correction: the run does not finish without it

    def _disconnected(self, connection: Connection, event: Disconnected) -> None:
        self._lobby.leave(connection)
        member = self.roster.of(connection)
        if member is None:
            return
        if event.by_peer:
            departure = Departure.DISCONNECTED
        else:
            departure = DEPARTURES.get(event.code, Departure.FAULT)
        logger.warning("%s is gone: %s", member.name, event.reason)
        self._remove(member, departure)

    # Joining.

    def _replace(self, connection: Connection) -> None:
        """Close the connection that another one has come for, with the same key."""
        identity = connection.identity
        if identity is None:
            return
        for other in [*self._lobby, *self.roster.connections]:
            if other.identity is not None and other.identity.key_id == identity.key_id:
                reason = f"another process came in with the same key, that of {identity.name}"
                self._expel(other, CloseCode.REPLACED, reason, Departure.REPLACED)

    def _join(self, link: Link, join: Join) -> None:
        run, role = self.run, role_of(link.connection)
        if run is not None and not self.roster.workers and join.run not in (None, run.name):
            run = None  # nobody is left in that run, and this worker means another one
        draining = self._orders.draining is not None
        refused = refusal_by_role(role, run, draining=draining) or refusal(
            join, self.config, run, self.roster
        )
        if refused is None and run is None:
            try:
                run = Run.begin(join.run or self.config.run or RUN_DEFAULT, join)
            except MemoryError:
                refused = no_memory_for(join)
        if refused is not None:
            self._metrics.refusals.labels(refused.code).inc()
            logger.warning("refused %s: %s", _shown_name(link.connection, join), refused.reason)
            self._lobby.refuse(link.connection, refused)
            return
        assert run is not None
        self._lobby.leave(link.connection)
        if run is not self.run:
            self._dismiss_observers()
            self.run = run
            self._stable_told = {}
            self._metrics.parameters.set(join.layout.elements)
        rank = self.roster.free_rank(join.rank, role)
        first = self.run.relay.versions.get(rank, 0) + 1
        pace: Pace[UpdateReceived] = Pace(self.config.update_rate_max)
        member = Member(rank, join, link, InOrder(first), pace=pace)
        self.roster.add(member)
        self._metrics.joins.inc()
        self._count_members()
        what = "observes" if member.observes else "joined"
        logger.info("%s %s run %r", member.name, what, self.run.name)
        welcome(member, run, self.roster)
        self._tell_roster()

    # Updates.

    def _take_update(self, member: Member, received: UpdateReceived) -> None:
        assert self.run is not None
        self._intake.take(self.run, member, received, self._now)

    def _accepted(self, member: Member) -> None:
        """Act on an update that is in the replica and on its way."""
        if self._stable_due is None:
            self._stable_due = self._now + self.config.stable_interval_seconds
        for other in self.roster:
            if other is not member:
                self._drop_if_too_slow(other.link.connection)
        self._settle(member)

    def _unfit(self, member: Member, code: int, reason: str) -> None:
        """Send a worker away whose update does not fit the run."""
        self._expel(member.link.connection, code, reason, Departure.FAULT)

    def _drop_if_too_slow(self, connection: Connection) -> None:
        if self.roster.of(connection) is None and connection not in self._lobby:
            return
        queued, limit = connection.bytes_queued, self.config.relay_queue_bytes_max
        if queued > limit:
            reason = f"{queued} bytes wait for this worker; the limit is {limit}"
            self._expel(connection, EndCode.TOO_SLOW, reason, Departure.TOO_SLOW)

    def _tell_stable(self) -> None:
        self._stable_due = None
        if self.run is None:
            return
        stable = self.run.relay.stable
        if stable != self._stable_told:
            self._stable_told = stable
            self._tell_all(Stable(stable))
        if self.run.relay.unstable:
            self._stable_due = self._now + self.config.stable_interval_seconds

    # Leaving.

    def _settle(self, member: Member) -> None:
        """See whether a member's last update is in, and what follows from it."""
        if member.observes:
            self._let_go(member)
            return
        run = self.run
        if run is None or member.last_sequence is None:
            return
        if member.aside is not None:
            if member.leaving is not None:
                self._dismiss(member, "it left")
            else:
                self._finish_if_all_have()  # nobody waits for it any more
            return
        if member.last_sequence > run.relay.versions.get(member.rank, 0):
            return
        if member.leaving is not None:
            self._let_go(member)
        else:
            self._finish_if_all_have()

    def _let_go(self, member: Member) -> None:
        """Part with who has said that it leaves, and of whom all is here."""
        logger.info("%s left: %s", member.name, member.leaving or "done")
        member.link.connection.close(EndCode.LEFT, "left", self._now)
        self._remove(member, Departure.LEFT)

    def _finish_if_all_have(self) -> None:
        run = self.run
        if run is None or run.finished:
            return
        versions = run.relay.versions
        waited_for = [member for member in self.roster.workers if member.aside is None]
        if waited_for and all(
            member.last_sequence is not None
            and versions.get(member.rank, 0) >= member.last_sequence
            and not member.lacks_correction
            for member in waited_for
        ):
            run.finished = True
            self._metrics.runs_finished.inc()
            logger.info("run %r is finished", run.name)
            for member in self.roster:
                if member.aside is not None:
                    self._dismiss(member, "the run is finished")
            self._tell_all(Finished(dict(versions)))

    def _quarantined(self, rank: int) -> Member:
        member = self.roster.at(rank)
        if member is None or member.aside is None:
            raise UsageError(f"no worker of rank {rank} is in quarantine")
        return member

    def _dismiss(self, member: Member, why: str) -> None:
        """Send a worker away that is in quarantine."""
        reason = (
            f"in quarantine since an update was far larger than the others': {why}; "
            f"{len(member.aside or ())} updates were dropped"
        )
        connection = member.link.connection
        self._expel(connection, EndCode.QUARANTINED, reason, Departure.QUARANTINED)

    def _dismiss_observers(self) -> None:
        """Send away who observes a run that is over, for another one begins."""
        for member in self.roster:
            reason = "the run that was observed is over, and another one begins"
            self._expel(member.link.connection, EndCode.RUN_OVER, reason, Departure.RUN_OVER)

    def _expel_by_order(self, member: Member, reason: str) -> None:
        if member.aside is not None:
            self._dismiss(member, reason)
        else:
            connection = member.link.connection
            self._expel(connection, EndCode.EXPELLED, reason, Departure.EXPELLED)

    def _expel(self, connection: Connection, code: int, reason: str, departure: Departure) -> None:
        """End a connection for a fault of the other side."""
        connection.close(code, reason, self._now)
        self._lobby.leave(connection)
        member = self.roster.of(connection)
        if member is None:
            logger.warning("closed a connection from %s: %s", connection.address, reason)
        else:
            logger.warning("closed the connection of %s: %s", member.name, reason)
            self._remove(member, departure)

    def _remove(self, member: Member, departure: Departure) -> None:
        self._decoder.drain()  # what it sent counts, and its rank may soon be another's
        if member not in self.roster:
            return  # what it sent was such that it is gone already
        self._forget(member, departure)
        self._tell_roster()
        if self.run is not None and not found_again(self.run, self.roster):
            self.run = None
        self._finish_if_all_have()
        if self.run is not None and self.run.finished and not self.roster.workers:
            self.run = None
        if self.run is None:
            self._metrics.parameters.set(0)

    def _forget(self, member: Member, departure: Departure) -> None:
        self.roster.remove(member)
        self._intake.forget(member)
        if self.run is not None:
            self.run.relay.remove(member)
        self._metrics.leaves.labels(departure).inc()
        self._count_members()

    def _count_members(self) -> None:
        workers = len(self.roster.workers)
        self._metrics.workers.set(workers)
        self._metrics.observers.set(len(self.roster) - workers)

    def _tell_if_drained(self) -> None:
        """Say that it is time to stop, when the last worker has left.

        An operator may still have to hear that his order was carried out; he hangs up then.
        """
        operator = self._orders.draining
        if operator is not None and not self.roster.workers and not self._lobby.has_operators:
            self._on_drained(f"operator {operator}, who drained it")

    # Saying things.

    def _tell_roster(self) -> None:
        peers = self.roster.peers()
        self._tell_all(RosterMessage(peers))

    def _tell_all(self, message: Control) -> None:
        packed = message.pack()
        for member in self.roster:
            member.link.send(message, packed)


def _shown_name(connection: Connection, join: Join) -> str:
    identity = connection.identity
    return name_in_roster(None if identity is None else identity.name, join.name)


def _name_of(message: Message) -> str:
    return "update" if isinstance(message, UpdateReceived) else type(message).__name__
