"""`Worker`: what a session says to the master and hears from it.

Its `Stage` says how far it has got. Its parts handle the events::

                  ┌─▶ reconnection ──▶ dialing
    events ──▶ Worker ─▶ admission ──▶ snapshot
                  ├─▶ own_updates ──▶ update_log
                  ├─▶ buffers
                  ├─▶ work
                  ├─▶ scalars
                  └─▶ log_copy

They share `state`.

A worker is the network half of a `Participant`. It does no I/O and owns no parameters: the network
thread passes events and the time to it, and it notes what it learns in the `Membership`. In the
simulator the same object runs without any thread.
"""

from collections.abc import Callable, Sequence

from gradwire.errors import GradwireError, ProtocolError, RefusedError
from gradwire.settings.settings import RECONNECT_SECONDS
from gradwire.worker.admission import Admission
from gradwire.worker.buffers import SharedBuffers
from gradwire.worker.dialing import Dialing
from gradwire.worker.log_copy import LogCopy, NotKeptError
from gradwire.worker.membership import Membership
from gradwire.worker.own_updates import OwnUpdates
from gradwire.worker.reconnection import Reconnection
from gradwire.worker.scalars import LoggedScalars
from gradwire.worker.state import Stage, WorkerState
from gradwire.worker.update_log import OwnUpdate, OwnUpdateLog
from gradwire.worker.work import WorkExchange
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
from gradwire_protocol.delivery.shaped_message import Payload
from gradwire_protocol.messages.admission import Join, Promise, RefusalCode, Refuse, Roster, Welcome
from gradwire_protocol.messages.buffers.layout import BufferLayout, Buffers
from gradwire_protocol.messages.fields import SEQUENCE_MAX
from gradwire_protocol.messages.kinds import (
    CONTROL_STREAM,
    LOG_STREAM,
    LOGGED_STREAM,
    SNAPSHOT_STREAM,
    EndCode,
)
from gradwire_protocol.messages.link import EntriesReceived, Link, Message
from gradwire_protocol.messages.modes.mode import elements_max
from gradwire_protocol.messages.relays import Elsewhere
from gradwire_protocol.messages.replicas import Blocks, Digest, Snapshot
from gradwire_protocol.messages.updates import (
    Aside,
    Finish,
    Finished,
    Leave,
    Stable,
    Stopping,
)
from gradwire_protocol.messages.work import Grant, StopTraining


class Worker:
    """One session's side of the conversation with the master.

    Parameters
    ----------
    join : Join
        What to ask for.
    master : str
        Its address, for error messages.
    random : callable
        Returns numbers from 0 to 1, evenly distributed: when to dial again.
    reconnect_seconds : float
        How long to dial when the connection is lost.
    buffers : BufferLayout, optional
        Of the buffers that are averaged, if there are any.
    """

    def __init__(
        self,
        join: Join,
        membership: Membership,
        master: str,
        *,
        random: Callable[[], float],
        reconnect_seconds: float = RECONNECT_SECONDS,
        buffers: BufferLayout | None = None,
    ) -> None:
        self._membership = membership
        membership.comply = self.comply
        self._master = master
        self._reconnection = Reconnection(master, reconnect_seconds, random)
        self._own = OwnUpdates(membership)
        self._log = LogCopy(elements_max(join.layout))
        self.state = WorkerState(
            join=join,
            membership=membership,
            reconnection=self._reconnection,
            own=self._own,
            log=self._log,
            buffers=SharedBuffers(buffers, membership),
        )
        """Shared with its parts."""
        self.work = WorkExchange(self.state)
        self.scalars = LoggedScalars(self._live_link, lambda: self.state.workers)
        self._leaving: str | None = None
        """Why it leaves, as soon as the master has what was logged."""
        self._admission = Admission(self.state, self.work)

    @property
    def stage(self) -> Stage:
        """How far it has got."""
        return self.state.stage

    @property
    def rank(self) -> int:
        """Names its updates; -1 before it is let in."""
        return self.state.rank

    @property
    def sequence(self) -> int:
        """Sequence of our last update."""
        return self._own.sequence

    @property
    def own_updates(self) -> OwnUpdateLog:
        """Own updates that some worker lacks."""
        return self._own.log

    @property
    def rtt(self) -> float | None:
        """Smoothed round-trip time to the master in seconds; None before the first sample."""
        return self.state.link.connection.rtt if self.state.link else None

    @property
    def transport(self) -> str:
        """What carries the packets to the master: ``"udp"`` or ``"tcp"``."""
        dialing = self._reconnection.dialing
        return dialing.way.name if dialing else ""

    @property
    def detour(self) -> str | None:
        """Why it is not the transport that was tried first; None if it is."""
        dialing = self._reconnection.dialing
        return dialing.detour if dialing else None

    @property
    def dialling_for(self) -> str:
        """What dialling waits for; empty before it begins."""
        dialing = self._reconnection.dialing
        return dialing.purpose if dialing else ""

    @property
    def buffers_refused(self) -> int:
        """How often the buffers of another worker could not be averaged."""
        return self.state.buffers.refused

    # Calls of the session.

    def dial(self, dialing: Dialing, now: float) -> None:
        """Dial the master by the first way of a dialing."""
        self._reconnection.dialing = dialing
        self.state.link = Link(dialing.dial(now))

    def found(self, values: Payload, buffers: Buffers | None, now: float) -> None:
        """Start the run with a replica: little-endian int32, which must not change any more.

        Our buffers become those of the run, too.
        """
        self._admission.found(values, buffers)

    def found_again(self, values: Payload, accepted: int, now: float) -> None:
        """Give a restarted master our replica, with own updates up to this one."""
        self._admission.found_again(values, accepted)

    def tell_digest(self, digest: Digest, now: float) -> None:
        """Tell the master the digest of our replica."""
        self.state.tell(digest)

    def want(self, blocks: Blocks, numbers: Sequence[int], now: float) -> None:
        """Ask for the blocks that differ from the master's, if the comparison is still current."""
        self._admission.want(blocks, numbers)
        self._forget_stable()

    def push(self, updates: Sequence[OwnUpdate], now: float) -> None:
        """Send updates that are in `own_updates`, in the order of their sequence."""
        if not self.state.took_part or self.stage in (Stage.LEAVING, Stage.CLOSED):
            return
        for update in updates:
            if update.sequence > SEQUENCE_MAX:
                self._fail(ProtocolError(f"{SEQUENCE_MAX} updates sent; join again"), now)
                return
            self._own.note_posted(update, now)
            if self.stage is Stage.LIVE:
                self.state.send(update)

    def share_buffers(self, buffers: Buffers, now: float) -> None:
        """Tell all workers what our buffers hold."""
        self.state.buffers.set_own(buffers)
        self.state.tell(buffers)

    def stop_training(self, reason: str, now: float) -> None:
        """Have all workers end their training."""
        self._membership.on_stop_training(reason)
        self.state.tell(StopTraining(reason))

    def finish(self, now: float) -> None:
        """Say that no more updates come; `Membership.finished` says when none comes at all."""
        self.state.has_finished = self.state.took_part
        self.state.tell(Finish(self.sequence))

    def leave(self, reason: str, now: float) -> None:
        """Leave when all we sent has arrived; without a connection, after coming back."""
        self._leaving = reason if self.scalars.holds_up(now) else None
        if self._leaving is not None:
            return
        link = self.state.link
        if self.state.is_cut_off and self.state.took_part:
            self.state.leave_reason = reason
            self._admission.cancel_comparison()
        elif self.stage in (Stage.FOUNDING, Stage.SYNCING, Stage.LIVE) and link is not None:
            self.state.leave_reason = reason
            link.send(Leave(self.sequence, reason))
            self.state.move_to(Stage.LEAVING)
        elif self.stage is not Stage.LEAVING:
            self.abort(reason, now)

    def comply(self, reason: str, now: float) -> None:
        """Leave because the master is about to end: so it knows which update is the last one."""
        if self.state.took_part and not self.state.has_finished:
            self.leave(reason, now)

    def abort(self, reason: str, now: float) -> None:
        """Leave at once, whatever is under way."""
        if self.stage is Stage.CLOSED or self.state.link is None:
            return
        if self._reconnection.dialing is not None:
            self._reconnection.dialing.stop(now)
        self.state.link.connection.close(EndCode.ABORTED, reason, now)
        self._close(None)

    # Events.

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Handle what the connection to the master reports."""
        dialing = self._reconnection.dialing
        if self.state.link is None or dialing is None or self.stage is Stage.CLOSED:
            return
        link = dialing.link_for(self.state.link, connection, event, now)
        if link is None:
            return
        self.state.link = link
        match event:
            case Connected():
                link.send(self._admission.request())
                self.state.move_to(Stage.JOINING)
                self._membership.on_connected()
            case MessageReceived():
                self._receive(link, event, now)
            case MessageDelivered():
                self._delivered(event, now)
                self._go_on_leaving(now)
            case Disconnected() if self._redial(event, now) or self._reconnect(event, now):
                pass
            case Disconnected():
                error = self._reconnection.error(event, leaving=self.state.leave_reason is not None)
                if error is None:  # the master has everything; its goodbye overtook the rest
                    self._own.on_delivered_up_to(self.sequence)
                self._close(error)

    def handle_timer(self, now: float) -> None:
        """Dial again, if it is time to. The session's waits have their own deadlines."""
        deadline, dialing = self.state.dials_at, self._reconnection.dialing
        if dialing is not None and deadline is not None and now >= deadline:
            self.state.link = Link(dialing.dial(now))
        self.scalars.handle_timer(now)
        self._go_on_leaving(now)

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        return earliest((self.state.dials_at, self.scalars.next_timer()))

    # Private.

    def _redial(self, event: Disconnected, now: float) -> bool:
        """Dial again, if no master has answered and there is time."""
        unreachable = event.code == CloseCode.UNREACHABLE
        return unreachable and self._reconnection.failed(event.reason, now)

    def _reconnect(self, event: Disconnected, now: float) -> bool:
        """Dial again, if a connection has ended that neither side wanted to end."""
        was_cut_off = self.state.is_cut_off
        took_part = was_cut_off or self.stage in (Stage.SYNCING, Stage.LIVE)
        took_part |= self.stage is Stage.LEAVING and self.state.took_part
        if not took_part or not self._reconnection.lose(event, self._own.accepted, now):
            return False
        if not was_cut_off:
            self._membership.on_lost(event.reason)
        self._start_over()
        return True

    def _try_another_master(self, error: GradwireError, master: str | None, now: float) -> None:
        """Try another master, or this one again, because this one is not in charge."""
        assert self.state.link is not None
        self._reconnection.add_master(master)
        if not self._reconnection.failed(str(error), now):
            self._fail(error, now)
            return
        self.state.link.connection.close(EndCode.ABORTED, "looking for the master in charge", now)
        self._start_over()

    def _start_over(self) -> None:
        """Forget what the last attempt, or the last connection, has brought."""
        self._admission.start_over()
        self._log.start_over()
        self.scalars.start_over()
        self.state.move_to(Stage.CONNECTING)

    def _receive(self, link: Link, event: MessageReceived, now: float) -> None:
        try:
            for message in link.receive(event):
                if self.stage is Stage.CLOSED:
                    return
                self._take(message, now)
        except InvalidMessageError as error:
            link.connection.close(CloseCode.INVALID_MESSAGE, str(error), now)
            self._close(ProtocolError(f"the master at {self._master} broke the protocol: {error}"))

    def _take(self, message: Message, now: float) -> None:
        match message:
            case Snapshot():
                self._admission.take_block(message)
            case EntriesReceived():
                self._receive_entries(message, now)
            case Welcome():
                self._take_welcome(message, now)
            case Blocks():
                self._admission.take_blocks(message)
            case Promise():
                self.state.term = max(self.state.term, message.term)
                assert self.state.link is not None
                self.state.link.send(Promise(self.state.term))
            case Refuse():
                self._take_refusal(message, now)
            case Elsewhere():
                for master in message.masters:
                    self._reconnection.add_master(master)
            case _:
                self._take_news(message)

    def _take_news(self, message: Message) -> None:
        """Take what the master tells all workers."""
        match message:
            case Roster():
                self.state.note_roster(message.peers)
                self._membership.on_roster(message.peers)
            case Stable():
                self._log.note_stable(message, self.rank)
                if self.stage is Stage.LIVE:
                    versions = self._log.versions
                    self._membership.on_reached(self._log.position, versions.get(self.rank, 0))
                self._membership.on_stable(message.versions)
                self._forget_stable()
            case Buffers() if self.stage is not Stage.JOINING:
                self.state.buffers.receive(message)
            case Finished():
                self.state.buffers.finish()
                self._membership.on_finished(message.versions)
            case Aside():
                self._membership.on_aside(message)
            case Stopping():
                self._membership.on_stopping(message.reason)
            case Grant():
                self.work.receive(message)
            case StopTraining():
                self._membership.on_stop_training(message.reason)
            case _:
                raise InvalidMessageError(f"{type(message).__name__} from a master")

    def _forget_stable(self) -> None:
        """Forget own updates that every worker has, unless they may have to be subtracted.

        A comparison may need them, and so may entries of the log that are not here yet.
        """
        if self._membership.comparison is None:
            accepted = self._log.versions.get(self.rank, 0)
            self._own.log.forget(min(self._membership.stable.get(self.rank, 0), accepted))

    def _take_refusal(self, refuse: Refuse, now: float) -> None:
        refused = RefusedError(
            refuse.code, f"the master at {self._master} refused: {refuse.reason}"
        )
        if refuse.code == RefusalCode.NOT_IN_CHARGE and self.stage is Stage.JOINING:
            self._try_another_master(refused, refuse.master, now)
        elif refuse.code == RefusalCode.RUN_FINISHED and self.state.has_left:
            self.abort("left before", now)
        else:
            self._fail(refused, now)

    def _take_welcome(self, welcome: Welcome, now: float) -> None:
        refused = self._admission.refusal(welcome)
        if refused is not None:
            self._try_another_master(refused, None, now)
            return
        self._reconnection.add_master(welcome.standby)
        try:
            self._admission.take_welcome(welcome)
        except NotKeptError:
            self._come_back("an own update of the log is not kept any more", now)
            return
        self._take_entries(now)

    def _receive_entries(self, received: EntriesReceived, now: float) -> None:
        if not self.state.gave_up:
            self._log.add(received)
            self._take_entries(now)

    def _take_entries(self, now: float) -> None:
        """Take the entries that follow what we have, once the WELCOME has said what that is."""
        link = self.state.link
        assert link is not None
        if self.stage is Stage.JOINING or self.state.gave_up:
            return
        try:
            while (taken := self._log.take_next(self.rank, self._own)) is not None:
                total, number = taken
                self._membership.on_entries(total)
                link.connection.skip_to(LOG_STREAM, number + 1)
        except NotKeptError:
            self._come_back("a sum has own updates that are not kept any more", now)
            return
        self._admission.compare_part()

    def _come_back(self, reason: str, now: float) -> None:
        """Dial again, and say over a new connection what is kept: the master goes by that.

        It keeps our place, as for a path on which nothing gets through.
        """
        assert self.state.link is not None
        self.state.link.connection.close(CloseCode.STALLED, reason, now)
        lost = Disconnected(CloseCode.RESET, reason, by_peer=False)
        if not self._reconnect(lost, now):  # it has taken too long already
            self._close(self._reconnection.error(lost, leaving=False))

    def _delivered(self, event: MessageDelivered, now: float) -> None:
        if event.stream == SNAPSHOT_STREAM:
            self._admission.on_block_delivered()
        elif event.stream == LOG_STREAM:
            self._admission.on_log_delivered()
        elif event.stream == CONTROL_STREAM:
            self._admission.on_control_delivered(event.number)
        elif event.stream == LOGGED_STREAM:
            self.scalars.on_delivered(now)
        elif event.stream == self.rank:
            self._own.on_delivered(event.number, now)

    def _live_link(self) -> Link | None:
        return self.state.link if self.stage is Stage.LIVE else None

    def _go_on_leaving(self, now: float) -> None:
        """Leave, if that had to wait for what was logged."""
        if self._leaving is not None:
            self.leave(self._leaving, now)

    def _fail(self, error: GradwireError, now: float) -> None:
        assert self.state.link is not None
        self.state.link.connection.close(EndCode.ABORTED, "gave up", now)
        self._close(error)

    def _close(self, error: GradwireError | None) -> None:
        self.state.move_to(Stage.CLOSED)
        self._membership.on_closed(error)
