"""The master: lets workers in, keeps the replica, passes every update on, notices who is gone.

Like everything below it, it does no I/O: the owner hands it the events of an endpoint and the
time; what it has to say goes into connections. One master serves one run at a time. The run
begins with the parameters of the first worker, goes on as long as the master lives, even while no
worker takes part, and ends when all live workers have finished it; the next worker then begins
a new one.
"""

import logging
from functools import partial
from typing import Final

from gradwire_codecs import MalformedUpdateError, Update
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
    Snapshot,
    Stable,
    Welcome,
    total,
)
from gradwire_protocol.messages import Roster as RosterMessage
from gradwire_protocol.snapshots import SnapshotFeed
from gradwire_server.admission import no_memory_for, refusal
from gradwire_server.config import MasterConfig
from gradwire_server.decoding import Decoded, Decoder, InlineDecoder
from gradwire_server.lobby import Lobby
from gradwire_server.metrics import Departure, ServerMetrics
from gradwire_server.roster import Member, Phase, Roster
from gradwire_server.run import Run

logger = logging.getLogger("gradwire.master")

RUN_DEFAULT: Final = "default"
"""Name of a run that nobody has named."""


class Master:
    """One run's centre.

    Parameters
    ----------
    config : MasterConfig
    metrics : ServerMetrics
    decoder : Decoder, optional
        What decodes updates; at once, unless given.
    """

    def __init__(
        self, config: MasterConfig, metrics: ServerMetrics, decoder: Decoder | None = None
    ) -> None:
        self.config = config
        self._decoder = decoder or InlineDecoder()
        self.roster = Roster()
        self.run: Run | None = None
        self._metrics = metrics
        self._lobby = Lobby(config.join_timeout_seconds)
        self._stable_told: dict[int, int] = {}
        self._stable_due: float | None = None
        self._now = 0.0

    # Input.

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act on what a connection reports."""
        self._now = now
        match event:
            case Connected():
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

    def handle_timer(self, now: float) -> None:
        """Act on every deadline at or before `now`."""
        self._now = now
        self._lobby.handle_timer(now)
        if self._stable_due is not None and now >= self._stable_due:
            self._tell_stable()

    def handle_decoded(self, now: float) -> None:
        """Go on with updates that were decoded meanwhile."""
        self._now = now
        self._decoder.deliver()

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
        deadlines = (self._lobby.next_timer(), self._stable_due)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

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
                elif isinstance(message, Join):
                    self._join(link, message)
                else:
                    raise InvalidMessageError(f"{_name_of(message)} before JOIN")  # noqa: TRY301
        except InvalidMessageError as error:
            self._on_invalid(connection, error)

    def _on_invalid(self, connection: Connection, error: InvalidMessageError) -> None:
        self._metrics.messages_invalid.inc()
        self._expel(connection, CloseCode.INVALID_MESSAGE, str(error), Departure.FAULT)

    def _from_member(self, member: Member, message: Message) -> None:
        match message:
            case UpdateReceived():
                self._take_update(member, message)
            case Snapshot():
                self._take_block(member, message)
            case Finish():
                member.last_sequence = message.sequence
                self._tell_roster()
                self._settle(member)
            case Leave():
                member.last_sequence = message.sequence
                member.leaving = message.reason
                self._settle(member)
            case _:
                raise InvalidMessageError(f"{type(message).__name__} from {member.name}")

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

    def _disconnected(self, connection: Connection, event: Disconnected) -> None:
        self._lobby.leave(connection)
        member = self.roster.of(connection)
        if member is None:
            return
        if event.by_peer or event.code == CloseCode.LOST:
            departure = Departure.DISCONNECTED
        elif event.code == CloseCode.IDLE:
            departure = Departure.IDLE
        else:
            departure = Departure.FAULT
        logger.warning("%s is gone: %s", member.name, event.reason)
        self._remove(member, departure)

    # Joining.

    def _join(self, link: Link, join: Join) -> None:
        run = self.run
        if run is not None and not len(self.roster) and join.run not in (None, run.name):
            run = None  # nobody is left in that run, and this worker means another one
        refused = refusal(join, self.config, run, self.roster)
        if refused is None and run is None:
            try:
                run = Run.begin(join.run or self.config.run or RUN_DEFAULT, join)
            except MemoryError:
                refused = no_memory_for(join)
        if refused is not None:
            self._metrics.refusals.labels(refused.code).inc()
            logger.warning("refused %s: %s", join.name, refused.reason)
            self._lobby.refuse(link.connection, refused)
            return
        assert run is not None
        self._lobby.leave(link.connection)
        if run is not self.run:
            self.run = run
            self._stable_told = {}
            self._metrics.parameters.set(join.layout.elements)
        rank = self.roster.free_rank(join.rank)
        first = self.run.relay.versions.get(rank, 0) + 1
        member = Member(rank, join, link, InOrder(first))
        self.roster.add(member)
        self._metrics.joins.inc()
        self._metrics.workers.set(len(self.roster))
        logger.info("%s joined run %r", member.name, self.run.name)
        if run.founded:
            self._let_in(member, run, run.snapshot())
        elif not any(other.phase is Phase.FOUNDING for other in self.roster):
            self._ask_to_found(member, run)
        # else it is welcomed when the first parameters are here, and with them the quantum
        self._tell_roster()

    def _ask_to_found(self, member: Member, run: Run) -> None:
        """Let a worker's parameters start the run."""
        member.move_to(Phase.FOUNDING)
        self._welcome(member, run, founder=True)

    def _let_in(self, member: Member, run: Run, snapshot: bytes) -> None:
        """Give a worker the run's parameters."""
        member.move_to(Phase.SYNCING)
        self._welcome(member, run, founder=False)
        member.feed = SnapshotFeed(snapshot, member.link)

    def _welcome(self, member: Member, run: Run, *, founder: bool) -> None:
        member.link.send(
            Welcome(
                run=run.name,
                rank=member.rank,
                sequence=member.updates.expected - 1,
                quantum_exponent=run.replica.quantum_exponent,
                layout=run.layout,
                roster=self.roster.peers(),
                founder=founder,
                versions=dict(run.relay.versions),
            )
        )

    def _take_block(self, member: Member, block: Snapshot) -> None:
        run = self.run
        if run is None or run.assembly is None or member.phase is not Phase.FOUNDING:
            raise InvalidMessageError(f"Snapshot from {member.name}, who was not asked for it")
        if not run.assembly.add(block):
            return
        run.assembly = None
        member.move_to(Phase.LIVE)
        logger.info("run %r begins with %d parameters", run.name, run.layout.elements)
        snapshot = run.snapshot()
        for other in self.roster:
            if other.phase is Phase.WAITING:
                self._let_in(other, run, snapshot)

    def _found_again(self) -> None:
        """Ask the next one for the first parameters, where the first one is gone."""
        run = self.run
        if run is None or run.founded or any(m.phase is Phase.FOUNDING for m in self.roster):
            return
        heir = next(iter(self.roster), None)
        if heir is None:
            self.run = None
            return
        run.begin_again(heir.join)
        self._ask_to_found(heir, run)

    # Updates.

    def _take_update(self, member: Member, received: UpdateReceived) -> None:
        if received.rank != member.rank:
            raise InvalidMessageError(f"{member.name} sent an update of rank {received.rank}")
        if member.phase not in (Phase.SYNCING, Phase.LIVE):
            raise InvalidMessageError(f"{member.name} sent an update before it had the parameters")
        sequence = received.update.sequence
        if member.last_sequence is not None and sequence > member.last_sequence:
            raise InvalidMessageError(
                f"{member.name} sent update {sequence} after its last one, {member.last_sequence}"
            )
        if member.updates.is_duplicate(sequence):
            member.link.connection.release(received.charge)
            self._metrics.updates_duplicate.inc()
            return
        run = self.run
        assert run is not None
        for ready in member.updates.push(sequence, received):
            self._decoder.decode(
                member.rank,
                ready.update.body,
                run.layout.elements,
                partial(self._take_decoded, run, member, ready),
            )

    def _take_decoded(
        self, run: Run, member: Member, received: UpdateReceived, decoded: Decoded
    ) -> None:
        """Accept an update that was found to be one, or end the connection it came from."""
        connection = member.link.connection
        connection.release(received.charge)
        if run is not self.run or received.update.sequence != run.relay.next_of(member.rank):
            return  # the run is over, or an earlier one was not fit for it
        if isinstance(decoded, MalformedUpdateError):
            self._metrics.updates_malformed.inc()
            self._expel(connection, EndCode.MALFORMED_UPDATE, str(decoded), Departure.FAULT)
            return
        try:
            self._accept(run, member, received, decoded)
        except InvalidMessageError as error:
            self._on_invalid(connection, error)
        else:
            self._settle(member)

    def _accept(self, run: Run, member: Member, received: UpdateReceived, decoded: Update) -> None:
        """Add an update to the replica and pass it on."""
        update = received.update
        staleness = total(run.relay.versions, without=member.rank) - update.based_on
        if staleness < 0:
            raise InvalidMessageError(
                f"update {update.sequence} of {member.name} is based on {update.based_on} "
                f"updates of others; {update.based_on + staleness} were accepted"
            )
        run.replica.apply(decoded)
        others = [other for other in self.roster if other is not member]
        run.relay.accept(
            member.rank,
            update.sequence,
            received.message,
            [other for other in others if other.phase in (Phase.SYNCING, Phase.LIVE)],
            self._now,
        )
        self._metrics.updates_accepted.inc()
        self._metrics.update_bytes.observe(len(update.body))
        self._metrics.update_density.observe(len(decoded.index) / decoded.length)
        self._metrics.update_staleness.observe(staleness)
        if self._stable_due is None:
            self._stable_due = self._now + self.config.stable_interval_seconds
        for other in others:
            self._drop_if_too_slow(other)

    def _drop_if_too_slow(self, member: Member) -> None:
        if self.roster.of(member.link.connection) is not member:
            return
        queued, limit = member.link.connection.bytes_queued, self.config.relay_queue_bytes_max
        if queued > limit:
            reason = f"{queued} bytes wait for this worker; the limit is {limit}"
            self._expel(member.link.connection, EndCode.TOO_SLOW, reason, Departure.TOO_SLOW)

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
        run = self.run
        if run is None or member.last_sequence is None:
            return
        if member.last_sequence > run.relay.versions.get(member.rank, 0):
            return
        if member.leaving is not None:
            logger.info("%s left: %s", member.name, member.leaving or "done")
            member.link.connection.close(EndCode.LEFT, "left", self._now)
            self._remove(member, Departure.LEFT)
        else:
            self._finish_if_all_have()

    def _finish_if_all_have(self) -> None:
        run = self.run
        if run is None or run.finished or not len(self.roster):
            return
        versions = run.relay.versions
        if all(
            m.last_sequence is not None and versions.get(m.rank, 0) >= m.last_sequence
            for m in self.roster
        ):
            run.finished = True
            self._metrics.runs_finished.inc()
            logger.info("run %r is finished", run.name)
            self._tell_all(Finished(dict(versions)))

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
        self._found_again()
        self._finish_if_all_have()
        if self.run is not None and self.run.finished and not len(self.roster):
            self.run = None
        if self.run is None:
            self._metrics.parameters.set(0)

    def _forget(self, member: Member, departure: Departure) -> None:
        self.roster.remove(member)
        if self.run is not None:
            self.run.relay.remove(member)
        self._metrics.leaves.labels(departure).inc()
        self._metrics.workers.set(len(self.roster))

    # Saying things.

    def _tell_roster(self) -> None:
        peers = self.roster.peers()
        self._tell_all(RosterMessage(peers))

    def _tell_all(self, message: Control) -> None:
        packed = message.pack()
        for member in self.roster:
            member.link.send(message, packed)


def _name_of(message: Message) -> str:
    return "update" if isinstance(message, UpdateReceived) else type(message).__name__
