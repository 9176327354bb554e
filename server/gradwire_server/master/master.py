"""The master: admits workers, keeps the replica, relays every update, removes lost members.

It does no I/O: its owner, `Runs`, passes it the events of connections and the time, and it queues
messages in connections. One master serves one run at a time. The run begins with the parameters of
the first worker, continues as long as the master lives, even while no worker is connected, and ends
when all live workers have finished it; the next worker then begins a new one.

Observers are sent what workers are sent, and nothing waits for them. Of two masters, one serves a
run, and the other one is a `standby`; see `terms`.

::

                  ┌─▶ reception ──▶ admission, founding
    events ──▶ Master ─▶ intake ──▶ decoding, vetting, relay
                  ├─▶ deliveries, stability, buffer_relay
                  ├─▶ departures, draining, terms
                  ├─▶ repairs, items
                  └─▶ checkpoints

`state` has the state that they share.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from gradwire_protocol import (
    AddressChanged,
    CloseCode,
    Connection,
    Disconnected,
    Event,
    InvalidMessageError,
    MessageDelivered,
    MessageReceived,
    UsageError,
)
from gradwire_protocol.connection.timers import earliest
from gradwire_protocol.messages.admission import Follow, Join, Promise
from gradwire_protocol.messages.buffers.layout import Buffers
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import EntriesReceived, Link, Message, UpdateReceived
from gradwire_protocol.messages.logged.histograms import Histograms
from gradwire_protocol.messages.logged.scalars import Logged
from gradwire_protocol.messages.replicas import Contents, Digest, Snapshot, Want
from gradwire_protocol.messages.updates import Finish, Leave
from gradwire_protocol.messages.work import StopTraining, Work
from gradwire_server.checkpoints.schedule import CheckpointSchedule
from gradwire_server.checkpoints.writer import CheckpointWriter
from gradwire_server.config import MasterConfig
from gradwire_server.master.buffer_relay import BufferRelay
from gradwire_server.master.deliveries import Deliveries
from gradwire_server.master.departures import Departures
from gradwire_server.master.draining import Draining
from gradwire_server.master.intake import Intake
from gradwire_server.master.items import Items
from gradwire_server.master.reception import Reception, name_of
from gradwire_server.master.rounds import RoundKeeper
from gradwire_server.master.stability import Stability
from gradwire_server.master.status import status_of
from gradwire_server.master.terms import Terms
from gradwire_server.metrics import Departure, RunMetrics
from gradwire_server.replica.founding import receive_block, receive_contents, receive_entries
from gradwire_server.replica.repairs import Repairs
from gradwire_server.series.histograms import LayerHistograms
from gradwire_server.series.series import Series
from gradwire_server.state.finished_runs import FinishedRuns
from gradwire_server.state.leases import Leases
from gradwire_server.state.lobby import Lobby
from gradwire_server.state.roster import Member, Roster
from gradwire_server.state.run import Leadership, Run
from gradwire_server.state.runs_over import RunsOver
from gradwire_server.state.state import State
from gradwire_server.state.totals import Totals
from gradwire_server.updates.decoding import Decoder, InlineDecoder

logger = logging.getLogger("gradwire.master")


class Master:
    """Serves one run at a time.

    Parameters
    ----------
    lobby : Lobby, optional
        That of its daemon.
    decoder : Decoder, optional
        Without it, updates are decoded at once.
    on_drained : callable
        Called with the reason when the master is drained, and again until it stops.
    run : Run, optional
        The run to resume, from a checkpoint.
    writer : CheckpointWriter, optional
        Without it, no checkpoints are written.
    totals : Totals, optional
        What it takes together with other masters, of limits that hold for all of them.
    finished_runs : FinishedRuns, optional
        Where it notes its runs that have finished, as other masters do.
    runs_over : RunsOver, optional
        Where it leaves what people can still look at of them.
    """

    def __init__(
        self,
        config: MasterConfig,
        metrics: RunMetrics,
        decoder: Decoder | None = None,
        *,
        lobby: Lobby | None = None,
        on_drained: Callable[[str], None] = lambda reason: None,
        run: Run | None = None,
        writer: CheckpointWriter | None = None,
        totals: Totals | None = None,
        finished_runs: FinishedRuns | None = None,
        runs_over: RunsOver | None = None,
    ) -> None:
        self.config = config
        self._state = State(
            config=config,
            metrics=metrics,
            decoder=decoder or InlineDecoder(),
            lobby=lobby or Lobby(config.join_timeout_seconds),
            leases=Leases(config.rejoin_seconds, config.workers_max),
            leadership=Leadership.of(config.standby or config.standby_of),
            new_run=config.new_run,
            totals=totals or Totals(),
            finished_runs=FinishedRuns() if finished_runs is None else finished_runs,
            runs_over=RunsOver() if runs_over is None else runs_over,
        )
        self._state.totals.add(self._state)
        if run is not None:
            self._state.serve(run)
        self.checkpoints = CheckpointSchedule(self._state, writer)
        self._buffers = BufferRelay(self._state)
        self.items = Items(self._state)
        self._departures = Departures(
            self._state,
            on_left=lambda member: self.terms.note_left(member),
            on_lost=lambda member: self._intake.flush(member),
            on_forgotten=self._forget,
        )
        self.terms = Terms(self._state, self._departures)
        self._rounds = RoundKeeper(self._state)
        self._intake = Intake(
            config,
            metrics,
            self._state.decoder,
            self.roster,
            self._departures,
            self._rounds,
            self._accepted,
        )
        self.reception = Reception(
            self._state, self._departures, self.terms, self._buffers, self.items
        )
        self._draining = Draining(self._state, on_drained)
        self._repairs = Repairs(self._state)
        self._deliveries = Deliveries(self._state, self._repairs, self._departures, self._buffers)
        self._stability = Stability(self._state, self.terms, self.items)
        self._on_drained = on_drained

    # Input.

    def begin(self, now: float) -> None:
        """Note that this master has just been started.

        It may replace one that was killed: for a while, only that one's workers are admitted.
        """
        self._state.now = now
        if not self._state.new_run:
            self._state.expects_returns_until = now + self.config.recovery_seconds

    def admit(
        self, link: Link, request: Join | Follow | Promise, messages: Sequence[Message], now: float
    ) -> None:
        """Act on a request of a connection in the lobby.

        Where it makes the peer a member, also act on the messages that came after it.
        """
        self._state.now = now
        try:
            self.reception.receive(link, request)
        except InvalidMessageError as error:
            self._expel_for(link.connection, error)
        self._receive_messages(link.connection, messages)
        self._conclude()

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act on an event of a member, or on the end of a connection that has asked to be one."""
        self._state.now = now
        member = self.roster.of(connection)
        match event:
            case MessageReceived():
                self._receive(connection, event)
            case _ if member is None:
                pass  # it is being closed
            case MessageDelivered():
                self._deliveries.note_delivered(member, event)
            case AddressChanged():
                # A warning, of which the log takes one a second: a peer with two addresses could
                # move with every round trip.
                logger.warning("%s moved to %s", member.name, event.address)
            case Disconnected():
                self._departures.disconnected(member, event)
        self._conclude()

    def handle_timer(self, now: float) -> None:
        """Act on every deadline at or before `now`."""
        self._state.now = now
        self._intake.handle_timer(now)
        self._stability.handle_timer()
        self._repairs.handle_timer()
        self.items.handle_timer()
        if self.run is not None and self.run.relay.is_due:
            self._relay(self.run)
        self._departures.handle_timer()
        self._conclude()

    def handle_decoded(self, now: float) -> None:
        """Act on updates that were decoded meanwhile."""
        self._state.now = now
        self._state.decoder.deliver()
        self._conclude()

    def handle_progress(self, now: float) -> None:
        """Act on the outcome of a checkpoint, or on changes of a standby to its copy of the run."""
        self._state.now = now
        self._conclude()

    def release(self, rank: int, now: float) -> None:
        """End a worker's quarantine: accept the updates kept aside, and all later ones.

        Raises `UsageError` if no worker of this rank is in quarantine.
        """
        self._state.now = now
        # Updates in the decoder come after those kept aside, and may be malformed.
        self._state.decoder.drain(rank)
        member = self.roster.at(rank)
        if member is None or member.quarantine is None:
            raise UsageError(f"no worker of rank {rank} is in quarantine")
        assert self.run is not None
        self._intake.release(self.run, member, now)
        self._buffers.release(member)

    def expel(self, rank: int, reason: str, now: float) -> None:
        """Close the connection of a member, which may join again."""
        self._state.now = now
        member = self.roster.at(rank)
        assert member is not None, "only members are expelled"
        self._departures.expel_by_order(member, reason)
        self._conclude()

    def order_checkpoint(self) -> str:
        """Order a checkpoint; return an answer. Raises `UsageError` if none can be written."""
        self._conclude()  # the one before may have been written meanwhile
        answer = self.checkpoints.ask()
        self._conclude()
        return answer

    def end_run(self, reason: str, now: float) -> str:
        """End the run in progress: its workers are sent away, and the next one begins another.

        Returns what has become of it. Raises `UsageError` if there is none.
        """
        self._state.now = now
        ended = self._departures.end_run(reason)
        self._conclude()
        return ended

    def stop_training(self, reason: str, now: float) -> None:
        """Have all workers end their training. Raises `UsageError` if there is no run."""
        self._state.now = now
        if self.run is None:
            raise UsageError("there is no run whose training could end")
        self.items.stop_training(reason)
        self._conclude()

    def pause_items(self, now: float, *, paused: bool, epochs: int | None = None) -> None:
        """Grant no items any more, or those of so many epochs, or all again.

        Raises `UsageError` if there is no run.
        """
        self._state.now = now
        if self.run is None:
            raise UsageError("there is no run with items")
        self.items.pause(paused=paused, epochs=epochs)
        self._conclude()

    def drain(self, reason: str, now: float) -> None:
        """Admit no worker any more, and deliver all messages under way.

        `on_drained` is called with the reason when that is done, or takes too long. Where there is
        another master it is called at once: workers go to that one, and send it what it lacks.
        """
        self._state.now = now
        if self.terms.other is not None:
            self._on_drained(reason)
            return
        self._draining.begin(reason)
        self._conclude()

    def stop(self, reason: str, now: float, *, broken: bool = False) -> None:
        """Close all connections with the reason, and write a last checkpoint.

        After an internal error (`broken`), no checkpoint is written: the state may be wrong.
        """
        self._state.now = now
        self._state.decoder.drain()
        # The code sends workers to the other master, where there is one.
        code = EndCode.STOPPED if self.terms.other is None else EndCode.STEPPED_DOWN
        self._departures.stop(reason, code)
        self.checkpoints.stop(broken=broken)

    # Output.

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        deadlines = (
            self._intake.next_timer(),
            self._stability.next_timer(),
            self._departures.next_timer(),
            self.reception.next_timer(),
            self._repairs.next_timer(),
            self.items.next_timer(),
            self.checkpoints.next_timer(),
            self._draining.next_timer(),
            self._rounds.next_timer(),
            # When all is handled that has come in, not after each message: so updates that have
            # come together are sent together.
            self._state.now if self.run is not None and self.run.relay.is_due else None,
        )
        return earliest(deadlines)

    def status(self) -> dict[str, Any]:
        """Return the status of the run in progress, as values that JSON has."""
        assert self.run is not None
        state = self._state
        return status_of(self.run, self.roster, self.checkpoints.status(), now=state.now)

    @property
    def is_over(self) -> bool:
        """Whether it has no run, nobody waits for one, and nothing is left to do for the last."""
        state = self._state
        is_used = len(state.roster) or state.lobby.at(state) or self.checkpoints.busy
        return state.run is None and not is_used

    @property
    def is_abandoned(self) -> bool:
        """Whether its run has no member, and none that may come back under its rank."""
        state = self._state
        is_used = len(state.roster) or state.lobby.at(state) or state.leases.ranks(state.now)
        return state.run is not None and not is_used

    @property
    def run(self) -> Run | None:
        """The run in progress."""
        return self._state.run

    @property
    def series(self) -> Series | None:
        """What was logged in the run, or in the last one while there is no other."""
        return self._state.ended_series if self.run is None else self.run.series

    @property
    def state(self) -> State:
        """The state that all parts share; `Standby` is one of them."""
        return self._state

    @property
    def roster(self) -> Roster:
        """The members of the run."""
        return self._state.roster

    @property
    def unstable(self) -> int:
        """How many accepted updates some live worker does not have yet."""
        return self.run.relay.unstable if self.run else 0

    # Messages.

    def _receive(self, connection: Connection, event: MessageReceived) -> None:
        member = self.roster.of(connection)
        if member is None:
            connection.release(event.charge)  # it is being closed
            return
        try:
            messages = member.link.receive(event)
        except InvalidMessageError as error:
            self._expel_for(connection, error)
        else:
            self._receive_messages(connection, messages)

    def _receive_messages(self, connection: Connection, messages: Sequence[Message]) -> None:
        try:
            for message in messages:
                member = self.roster.of(connection)
                if member is None:
                    return  # it has just left; messages after LEAVE are ignored
                self._from_member(member, message)
        except InvalidMessageError as error:
            self._expel_for(connection, error)

    def _expel_for(self, connection: Connection, error: InvalidMessageError) -> None:
        state, code, reason = self._state, CloseCode.INVALID_MESSAGE, str(error)
        state.metrics.messages_invalid.inc()
        member = self.roster.of(connection)
        if member is None:
            state.lobby.expel(connection, code, reason, state.now)
        else:
            self._departures.expel(member, code, reason, Departure.FAULT)

    def _from_member(self, member: Member, message: Message) -> None:
        """Act on a message of a member; some messages only workers may send."""
        match message:
            case Follow() | Promise():
                self.terms.receive(member, message)
            case Digest():
                self._repairs.receive_digest(member, message)
            case Want():
                self._repairs.receive_want(member, message)
            case Leave():
                self._receive_leave(member, message)
            case _ if member.observes:
                raise InvalidMessageError(f"{name_of(message)} from {member.name}, an observer")
            case _:
                self._from_worker(member, message)

    def _from_worker(self, member: Member, message: Message) -> None:
        match message:
            case UpdateReceived():
                self._receive_update(member, message)
            case EntriesReceived():
                self._receive_entries(member, message)
            case Contents():
                receive_contents(member, message, self.run, self.roster, self._state.now)
            case Snapshot():
                receive_block(member, message, self.run, self.roster, self._state.now)
            case Buffers():
                self._buffers.receive(member, message)
            case Work():
                self.items.receive(member, message)
            case Logged() | Histograms():
                self._receive_logged(member, message)
            case StopTraining():
                self.items.receive_stop(member, message)
            case Finish():
                self._receive_finish(member, message)
            case _:
                raise InvalidMessageError(f"{name_of(message)} from {member.name}")

    def _receive_leave(self, member: Member, leave: Leave) -> None:
        if not member.observes:
            self._intake.set_last_sequence(member, leave.sequence, leaves=True)
        member.leaving = leave.reason
        self._departures.check_completion(member)

    def _receive_update(self, member: Member, update: UpdateReceived) -> None:
        assert self.run is not None
        self._intake.accept_update(self.run, member, update, self._state.now)

    def _receive_entries(self, member: Member, received: EntriesReceived) -> None:
        assert self.run is not None
        receive_entries(member, received, self.run, self.roster, self._state.now)

    def _receive_logged(self, member: Member, logged: Logged | Histograms) -> None:
        assert self.run is not None
        if isinstance(logged, Histograms):
            self._receive_histograms(self.run.histograms, member, logged)
            return
        series, metrics = self.run.series, self._state.metrics
        taken, dropped = series.taken, series.dropped
        series.add(member.rank, member.join.worker_id, logged, self._state.now)
        metrics.scalars_taken.inc(series.taken - taken)
        metrics.scalars_dropped.inc(series.dropped - dropped)

    def _receive_histograms(
        self, kept: LayerHistograms, member: Member, message: Histograms
    ) -> None:
        metrics, taken, dropped = self._state.metrics, kept.taken, kept.dropped
        present = {worker.rank for worker in self.roster.workers}
        kept.add(member.rank, member.join.worker_id, message, present, self._state.now)
        metrics.histograms_taken.inc(kept.taken - taken)
        metrics.histograms_dropped.inc(kept.dropped - dropped)

    def _receive_finish(self, member: Member, finish: Finish) -> None:
        is_over = self.run is not None and self.run.finished
        if is_over and finish.sequence == member.last_sequence and member.leaving is None:
            return  # it has returned after the end of the run, and repeats its FINISH
        self._intake.set_last_sequence(member, finish.sequence)
        self._state.tell_roster()
        self._departures.check_completion(member)

    # Consequences.

    def _forget(self, member: Member) -> None:
        """Forget the updates and buffers of a member that was removed."""
        self._intake.forget(member)
        self._buffers.forget(member)
        self.items.forget(member)
        self._rounds.forget(member)

    def _accepted(self, member: Member) -> None:
        """Act on an update that is in the replica and queued for the others."""
        self._stability.expect()
        self._repairs.check_digest(member)
        self._departures.check_completion(member)

    def _relay(self, run: Run) -> None:
        """Send every member what it lacks and can take."""
        run.relay.serve(self._state.now)
        if run.relay.feeds.has_news:
            run.relay.feeds.has_news = False
            self._departures.finish_run_if_complete()
            self._departures.end_run_if_over()
        self._departures.drop_for_memory()
        self._state.queues_grew = True

    def _conclude(self) -> None:
        """Do what is due after every event."""
        self.terms.conclude()
        if self.terms.in_charge and self._rounds.conclude():
            self._stability.expect()
            self._departures.finish_run_if_complete()
        self._buffers.begin()
        self.reception.answer_deferred()
        self._stability.conclude()
        self.items.conclude()
        self.checkpoints.conclude()
        self._departures.drop_all_too_slow()
        self._draining.conclude()
