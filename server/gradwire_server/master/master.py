"""The master: lets workers in, keeps the replica, passes every update on, notices who is gone.

Like everything below it, it does no I/O: the owner hands it the events of an endpoint and the
time; what it has to say goes into connections. One master serves one run at a time. The run
begins with the parameters of the first worker, goes on as long as the master lives, even while no
worker takes part, and ends when all live workers have finished it; the next worker then begins
a new one.

Observers get what workers get and have no say in any of this. Operators give orders (see `orders`).
Of two masters one serves a run, as `terms` has it; the other one is a `standby`.

::

                  ┌─▶ reception ──▶ admission, founding, orders
    events ──▶ Master ─▶ intake ──▶ decoding, vetting, relay
                  ├─▶ deliveries, stability, buffer_relay
                  ├─▶ departures, draining, terms
                  ├─▶ repairs, self_check, optimizer_states
                  └─▶ checkpoints

What they have in common is in `state`.
"""

import logging
from collections.abc import Callable
from typing import Any

from gradwire_protocol import (
    AddressChanged,
    CloseCode,
    Connected,
    Connection,
    Disconnected,
    Event,
    InvalidMessageError,
    MessageDelivered,
    MessageReceived,
)
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import Message, UpdateReceived
from gradwire_protocol.messages.replicas import Contents, Digest, Snapshot, Want
from gradwire_protocol.messages.standby import Follow, Promise
from gradwire_protocol.messages.states import Buffers, StatePart, WantState
from gradwire_protocol.messages.updates import Finish, Leave
from gradwire_server.checkpoints.schedule import CheckpointSchedule
from gradwire_server.checkpoints.writer import CheckpointWriter
from gradwire_server.config import MasterConfig
from gradwire_server.master.buffer_relay import BufferRelay
from gradwire_server.master.deliveries import Deliveries
from gradwire_server.master.departures import Departures
from gradwire_server.master.draining import Draining
from gradwire_server.master.intake import Consequences, Intake
from gradwire_server.master.optimizer_states import OptimizerStates
from gradwire_server.master.orders import Orders, Powers
from gradwire_server.master.reception import Reception, name_of
from gradwire_server.master.stability import Stability
from gradwire_server.master.status import status_of
from gradwire_server.master.terms import Terms
from gradwire_server.metrics import Departure, ServerMetrics
from gradwire_server.replica.founding import take_again, take_from_founder
from gradwire_server.replica.repairs import Repairs
from gradwire_server.replica.self_check import SelfCheck
from gradwire_server.state.leases import Leases
from gradwire_server.state.lobby import Lobby
from gradwire_server.state.roster import Member, Roster
from gradwire_server.state.run import Charge, Run
from gradwire_server.state.state import State
from gradwire_server.updates.decoding import Decoder, InlineDecoder

logger = logging.getLogger("gradwire.master")


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
        Called with the reason when the master is drained: it should stop then. It may be called
        again until it does.
    run : Run, optional
        The run to go on with, from a checkpoint.
    writer : CheckpointWriter, optional
        What writes checkpoints; without it there are none.
    """

    def __init__(
        self,
        config: MasterConfig,
        metrics: ServerMetrics,
        decoder: Decoder | None = None,
        *,
        on_denied: Callable[[frozenset[str]], None] = lambda names: None,
        on_drained: Callable[[str], None] = lambda reason: None,
        run: Run | None = None,
        writer: CheckpointWriter | None = None,
    ) -> None:
        self.config = config
        self._state = State(
            config=config,
            metrics=metrics,
            decoder=decoder or InlineDecoder(),
            lobby=Lobby(config.join_timeout_seconds),
            leases=Leases(config.rejoin_seconds, config.workers_max),
            run=run,
            charge=Charge.of(config.standby or config.standby_of),
        )
        if run is not None:
            run.charge = self._state.charge
        metrics.parameters.set(0 if run is None else run.layout.elements)
        self.checkpoints = CheckpointSchedule(self._state, writer)
        self._buffers = BufferRelay(self._state)
        self._departures = Departures(
            self._state,
            on_left=lambda member: self.terms.left(member),
            on_lost=lambda member: self._intake.hurry(member),
            on_forgotten=self._forget,
        )
        self.terms = Terms(self._state, self._departures)
        self._intake = Intake(
            config,
            metrics,
            self._state.decoder,
            self.roster,
            Consequences(self._accepted, self._departures.settle, self._departures.expel_unfit),
        )
        self._orders = Orders(
            self.roster,
            Powers(
                status=self.status,
                release=lambda member: self.release(member.rank, self._state.now),
                expel=self._departures.expel_by_order,
                deny=on_denied,
                checkpoint=self.checkpoints.ask,
            ),
        )
        self.reception = Reception(
            self._state, self._departures, self._orders, self.terms, self._buffers
        )
        self._draining = Draining(self._state, on_drained)
        self._repairs = Repairs(self._state)
        self._states = OptimizerStates(self._state)
        self._deliveries = Deliveries(
            self._state, self._repairs, self._departures, self._buffers, self._states
        )
        self._stability = Stability(self._state, self.terms)
        self._self_check = SelfCheck(self._state)
        self._on_drained = on_drained

    # Input.

    def begin(self, now: float) -> None:
        """Note that this master has just been started.

        Another one may have been killed in its place: its workers are let in first.
        """
        self._state.now = now
        self._state.expects_until = now + self.config.recovery_seconds

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act on what a connection reports."""
        self._state.now = now
        match event:
            case Connected():
                self.reception.enter(connection)
            case MessageReceived():
                self._receive(connection, event)
            case MessageDelivered():
                self._deliveries.note_delivered(connection, event)
            case AddressChanged():
                self._moved(connection, event)
            case Disconnected():
                self._state.lobby.leave(connection)
                member = self.roster.of(connection)
                if member is not None:
                    self._departures.disconnected(member, event)
        self._conclude()

    def handle_timer(self, now: float) -> None:
        """Act on every deadline at or before `now`."""
        self._state.now = now
        self._state.lobby.handle_timer(now)
        self._intake.handle_timer(now)
        self._stability.handle_timer()
        if self._self_check.handle_timer():
            self._repairs.forget_old()
        self._states.handle_timer()
        self._departures.handle_timer()
        self._conclude()

    def handle_decoded(self, now: float) -> None:
        """Go on with updates that were decoded meanwhile."""
        self._state.now = now
        self._state.decoder.deliver()
        self._conclude()

    def handle_written(self, now: float) -> None:
        """Go on after a checkpoint that was written meanwhile, or could not be."""
        self._state.now = now
        self._conclude()

    def handle_followed(self, now: float) -> None:
        """Go on after the run has changed of which a standby keeps a copy."""
        self._state.now = now
        self._conclude()

    def release(self, rank: int, now: float) -> None:
        """End a worker's quarantine: what was kept aside is accepted, and all that it sends.

        Raises
        ------
        UsageError
            If no worker of this rank is in quarantine.
        """
        self._state.now = now
        # What is being decoded comes after what is aside, and may turn out to be no update.
        self._state.decoder.drain(rank)
        member = self._departures.quarantined(rank)
        assert self.run is not None
        self._intake.release(self.run, member, now)
        self._buffers.release(member)

    def expel(self, rank: int, reason: str, now: float) -> None:
        """Send a worker away that is in quarantine; what was kept aside is dropped.

        Raises
        ------
        UsageError
            If no worker of this rank is in quarantine.
        """
        self._state.now = now
        self._departures.expel_quarantined(rank, reason)

    def drain(self, reason: str, now: float) -> None:
        """Let nobody in any more, and have everything arrive that is under way.

        `on_drained` is called with the reason when it has, or when that takes too long. Where there
        is another master, it is at once: workers go on with that, and send it what it lacks.
        """
        self._state.now = now
        if self.terms.other is not None:
            self._on_drained(reason)
            return
        self._draining.begin(reason)
        self._conclude()

    def stop(self, reason: str, now: float, *, broken: bool = False) -> None:
        """Tell everyone why, end all connections, and have what has changed written.

        Parameters
        ----------
        reason : str
        now : float
        broken : bool
            Whether it stops because of an error of ours: then nothing is written, as what there is
            may be wrong.
        """
        self._state.now = now
        self._state.decoder.drain()
        # Where there is another master, workers go on with that.
        code = EndCode.STOPPED if self.terms.other is None else EndCode.STEPPED_DOWN
        self._state.lobby.close(reason, now, code)
        self._departures.stop(reason, code)
        self.checkpoints.stop(broken=broken)

    # Output.

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        deadlines = (
            self._state.lobby.next_timer(),
            self._intake.next_timer(),
            self._stability.next_timer(),
            self._departures.next_timer(),
            self.reception.next_timer(),
            self._self_check.next_timer(),
            self._states.next_timer(),
            self.checkpoints.next_timer(),
            self._draining.next_timer(),
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def status(self) -> dict[str, Any]:
        """Return what there is to know of the run, as plain values."""
        status = status_of(self.run, self.roster, self._orders, self.checkpoints.status())
        return {**status, "master": self.terms.status()}

    @property
    def run(self) -> Run | None:
        """The run in progress."""
        return self._state.run

    @property
    def state(self) -> State:
        """What the parts have in common; for a standby, that is one of them."""
        return self._state

    @property
    def roster(self) -> Roster:
        """The members of the run."""
        return self._state.roster

    @property
    def unstable(self) -> int:
        """How many accepted updates some live worker does not have yet."""
        return self.run.relay.unstable if self.run else 0

    @property
    def states_awaited(self) -> int:
        """How many workers wait for the state of another worker's optimizer."""
        return len(self._states)

    # Messages.

    def _receive(self, connection: Connection, event: MessageReceived) -> None:
        member = self.roster.of(connection)
        link = member.link if member else self._state.lobby.link_of(connection)
        if link is None:
            connection.release(event.charge)  # it is on its way out
            return
        try:
            for message in link.receive(event):
                member = self.roster.of(connection)
                if member is not None:
                    self._from_member(member, message)
                elif connection not in self._state.lobby:
                    return  # it has just left; what it says after that is not heard
                else:
                    self.reception.receive(link, message)
        except InvalidMessageError as error:
            self._state.metrics.messages_invalid.inc()
            self._departures.expel(
                connection, CloseCode.INVALID_MESSAGE, str(error), Departure.FAULT
            )

    def _from_member(self, member: Member, message: Message) -> None:
        """Act on what observers may say as well as workers; the rest only workers may."""
        match message:
            case Follow() | Promise():
                self.terms.receive(member, message)
            case Digest() | Want():
                self._repairs.receive(member, message)
            case Leave():
                self._take_leave(member, message)
            case _ if member.observes:
                raise InvalidMessageError(f"{name_of(message)} from {member.name}, an observer")
            case _:
                self._from_worker(member, message)

    def _from_worker(self, member: Member, message: Message) -> None:
        match message:
            case UpdateReceived():
                self._take_update(member, message)
            case Contents() | Snapshot():
                take_from_founder(member, message, self.run, self.roster, self._state.now)
            case Buffers():
                self._buffers.receive(member, message)
            case WantState() | StatePart():
                self._states.receive(member, message)
            case Finish():
                self._take_finish(member, message)
            case _:
                raise InvalidMessageError(f"{name_of(message)} from {member.name}")

    def _take_leave(self, member: Member, leave: Leave) -> None:
        if not member.observes:
            self._intake.take_last(member, leave.sequence, leaves=True)
        member.leaving = leave.reason
        self._departures.settle(member)

    def _take_update(self, member: Member, update: UpdateReceived) -> None:
        assert self.run is not None
        if self.run.recovery is not None:
            take_again(member, update, self.run, self.roster, self._state.now)
        else:
            self._intake.accept_update(self.run, member, update, self._state.now)

    def _take_finish(self, member: Member, finish: Finish) -> None:
        if self._is_known_to_have_finished(member, finish):
            return  # it was let back in after the end, and says again what it had said
        self._intake.take_last(member, finish.sequence)
        self._state.tell_roster()
        self._departures.settle(member)

    def _is_known_to_have_finished(self, member: Member, message: Finish) -> bool:
        is_over = self.run is not None and self.run.finished
        return is_over and message.sequence == member.last_sequence and member.leaving is None

    def _moved(self, connection: Connection, event: AddressChanged) -> None:
        member = self.roster.of(connection)
        if member is not None:
            # A warning, of which logs take one a second: who has two addresses could move from one
            # to the other with every round trip.
            logger.warning("%s moved to %s", member.name, event.address)

    # What follows.

    def _forget(self, member: Member) -> None:
        """Forget what there was of a member that is gone."""
        self._intake.forget(member)
        self._buffers.forget(member)

    def _accepted(self, member: Member) -> None:
        """Act on an update that is in the replica and on its way."""
        self._stability.expect()
        self._state.queues_grew = True
        self._repairs.look_at(member)
        self._departures.settle(member)

    def _conclude(self) -> None:
        """Do what is due after everything that happens."""
        self.terms.conclude()
        self._states.conclude()
        self.reception.let_in_held()
        self._stability.conclude()
        self._self_check.conclude()
        self.checkpoints.conclude()
        self._departures.drop_all_too_slow()
        # It is time to stop when the last worker of a drained master has left. An operator may
        # still have to hear that his order was carried out; he hangs up then.
        operator = self._orders.draining
        if operator is not None and not self.roster.workers and not self._state.lobby.has_operators:
            self._on_drained(f"the master was stopped by operator {operator}, who drained it")
        self._draining.conclude()
