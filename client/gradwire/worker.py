"""The worker: what a session says to the master and hears from it.

How far it has got says its `Stage`.

A worker that has lost its connection dials again for a while, and asks to take part as who it was:
with the same rank, and with all that it has. It is then sent the updates that it lacks, or, where
the master does not keep them any more, a snapshot; and sends again what the master does not have.

It does no I/O and owns no parameters: the network thread hands it events and the time, and what it
learns goes to a `Listener`, which hands it on to the training thread. In the simulator the same
object runs without any thread.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from gradwire.backoff import pauses
from gradwire.dialing import UDP, Dialing, Way
from gradwire.errors import (
    ConnectionLostError,
    GradwireError,
    ProtocolError,
    RefusedError,
    VersionMismatchError,
)
from gradwire.inbox import Rebase
from gradwire.kept import Kept, OwnUpdate
from gradwire.listener import Listener
from gradwire.stages import TRANSITIONS, Stage
from gradwire_protocol import (
    CloseCode,
    Connected,
    Connection,
    Disconnected,
    Endpoint,
    Event,
    InOrder,
    InvalidMessageError,
    MessageDelivered,
    MessageReceived,
)
from gradwire_protocol.link import Link, Message, UpdateReceived
from gradwire_protocol.messages import (
    SEQUENCE_MAX,
    SNAPSHOT_STREAM,
    Contents,
    EncodedUpdate,
    EndCode,
    Finish,
    Finished,
    Join,
    Leave,
    RefusalCode,
    Refuse,
    Resume,
    Roster,
    Snapshot,
    Stable,
    Welcome,
    total,
)
from gradwire_protocol.packets import VERSION
from gradwire_protocol.shaped import Payload
from gradwire_protocol.snapshots import SnapshotAssembly, SnapshotFeed

RECOVERABLE: Final = frozenset({CloseCode.IDLE, CloseCode.LOST, CloseCode.RESET})
"""Ends of a connection that nobody wanted: the worker dials again."""

RECONNECT_SECONDS: Final = 600.0
"""How long it goes on dialling: a machine has been started again by then."""

EARLY_UPDATES_MAX: Final = 1_024
"""Updates held until the WELCOME has come. It is repeated every few round trips where it is lost,
and a thousand workers send no more in that time."""


class Worker:
    """One session's side of the conversation with the master.

    Parameters
    ----------
    join : Join
        What to ask for.
    listener : Listener
    master : str
        How a person would write the master's address, for error messages.
    random : callable
        Returns numbers from 0 to 1, evenly distributed: when to dial again.
    reconnect_seconds : float
        How long to dial when the connection is lost.
    """

    def __init__(
        self,
        join: Join,
        listener: Listener,
        master: str,
        *,
        random: Callable[[], float],
        reconnect_seconds: float = RECONNECT_SECONDS,
    ) -> None:
        self.stage = Stage.CONNECTING
        self.rank = -1
        self.sequence = 0
        """Of our last update."""
        self._join = join
        self._listener = listener
        self._master = master
        self._link: Link | None = None
        self._dialing: Dialing | None = None
        self._assembly: SnapshotAssembly | None = None
        self._snapshot_complete = False
        self._early: list[UpdateReceived] = []
        self._feed: SnapshotFeed | None = None
        self._versions: Mapping[int, int] = {}
        self._origins: dict[int, InOrder[UpdateReceived]] = {}
        self._sizes: dict[int, int] = {}
        self._kept = Kept()
        self._random = random
        self._reconnect_seconds = reconnect_seconds
        self._welcome: Welcome | None = None
        """The first one."""
        self._workers = 0
        """How many take part, ourselves included."""
        self._accepted = 0
        """Of our own updates: how many the master had when it let us in."""
        self._based_on_max = 0
        self._before: tuple[Mapping[int, int], dict[int, InOrder[UpdateReceived]]] | None = None
        """The updates that our replica has, while another one comes in its place."""
        self._took_part = False
        """Whether it was live at any time: it is back then, and not new."""
        self._finish_said = False
        self._leave_reason: str | None = None
        """Why it goes, said while there was nobody to say it to."""
        self._lost: str | None = None
        """Why there is no connection; None while there is one, or never was."""

    @property
    def rtt(self) -> float | None:
        """Smoothed round-trip time to the master in seconds; None before the first sample."""
        return self._link.connection.rtt if self._link else None

    @property
    def transport(self) -> str:
        """What carries the packets to the master: ``"udp"`` or ``"tcp"``."""
        return self._dialing.way.name if self._dialing else ""

    @property
    def detour(self) -> str | None:
        """Why it is not what was tried first; None where it is."""
        return self._dialing.detour if self._dialing else None

    # What the session wants.

    def connect(self, endpoint: Endpoint, address: object, now: float) -> None:
        """Dial the master, by the one way there is."""
        way = Way(UDP, partial(endpoint.connect, address))
        self.dial(Dialing([way], self._master, endpoint.config.connect_timeout_seconds), now)

    def dial(self, dialing: Dialing, now: float) -> None:
        """Dial the master, by whichever way leads there."""
        self._dialing = dialing
        self._link = Link(dialing.dial(now))

    def found(self, values: Payload, now: float) -> None:
        """Start the run with a replica: little-endian int32, which must not change any more."""
        if self.stage is Stage.FOUNDING and self._link is not None:
            self._feed = SnapshotFeed(values, self._link)

    def found_again(self, values: Payload, versions: Mapping[int, int], now: float) -> None:
        """Give a master that was started anew our replica, with what it contains."""
        if self.stage is Stage.FOUNDING and self._is_cut_off and self._link is not None:
            self._accepted = versions[self.rank]
            self._based_on_max = total(versions, without=self.rank)
            self._link.send(Contents(versions))
            self._feed = SnapshotFeed(values, self._link)

    def push(self, bodies: Sequence[bytes], based_on: int, now: float) -> None:
        """Send encoded updates.

        Parameters
        ----------
        bodies : sequence of bytes
            In the order they were encoded.
        based_on : int
            How many updates of others the parameters contained that they were computed with.
        now : float
        """
        if not self._took_part or self.stage in (Stage.LEAVING, Stage.CLOSED):
            return
        for body in bodies:
            if self.sequence == SEQUENCE_MAX:
                self._fail(ProtocolError(f"{SEQUENCE_MAX} updates sent; join again"), now)
                return
            self.sequence += 1
            self._sizes[self.sequence] = len(body)
            update = OwnUpdate(self.sequence, based_on, body)
            self._kept.put(update)
            if self.stage is Stage.LIVE:
                self._send(update)

    def finish(self, now: float) -> None:
        """Say that no more updates come; `Listener.on_finished` is called when nobody sends any."""
        self._finish_said = self._took_part
        if self.stage is Stage.LIVE and self._link is not None:
            self._link.send(Finish(self.sequence))

    def leave(self, reason: str, now: float) -> None:
        """Go when everything we sent has arrived; who is cut off, when it is back."""
        if self._is_cut_off:
            self._leave_reason = reason
        elif self.stage in (Stage.FOUNDING, Stage.SYNCING, Stage.LIVE) and self._link is not None:
            self._link.send(Leave(self.sequence, reason))
            self._move_to(Stage.LEAVING)
        elif self.stage is not Stage.LEAVING:
            self.abort(reason, now)

    def abort(self, reason: str, now: float) -> None:
        """Go at once, whatever is under way."""
        if self.stage is Stage.CLOSED or self._link is None:
            return
        self._link.connection.close(EndCode.ABORTED, reason, now)
        self._close(None)

    # Input.

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act on what the connection to the master reports."""
        link = self._link
        if link is None or self.stage is Stage.CLOSED or connection is not link.connection:
            return
        match event:
            case Connected():
                link.send(self._request())
                self._move_to(Stage.JOINING)
            case MessageReceived():
                self._receive(link, event, now)
            case MessageDelivered():
                self._delivered(event)
            case Disconnected(code=CloseCode.UNREACHABLE) if self._dials_again(event, now):
                pass
            case Disconnected() if self._comes_back(event, now):
                pass
            case Disconnected():
                error = self._error(event)
                if error is None:  # the master has everything; its goodbye overtook the rest
                    for size in self._sizes.values():
                        self._listener.on_delivered(size)
                    self._sizes.clear()
                self._close(error)

    def handle_timer(self, now: float) -> None:
        """Dial again, when it is time to; the session's waits have their own deadlines."""
        deadline = self.next_timer()
        if self._dialing is not None and deadline is not None and now >= deadline:
            self._link = Link(self._dialing.dial(now))

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        if self._dialing is None or self.stage is not Stage.CONNECTING:
            return None
        return self._dialing.next_at

    # Private.

    def _dials_again(self, event: Disconnected, now: float) -> bool:
        return self._dialing is not None and self._dialing.failed(event.reason, now)

    @property
    def _is_cut_off(self) -> bool:
        """Whether it takes part, has lost its connection, and is not live again yet."""
        return self._lost is not None and self.stage is not Stage.CLOSED

    def _comes_back(self, event: Disconnected, now: float) -> bool:
        """Dial again, if a connection has ended that nobody wanted to end."""
        if event.code not in RECOVERABLE or not (self._is_cut_off or self.stage is Stage.LIVE):
            return False
        assert self._dialing is not None
        if self._lost is None:
            self._lost = event.reason
            self._dialing = self._dialing.again(self._reconnect_seconds, pauses(self._random))
            self._dialing.begin(now)
            self._listener.on_lost(event.reason)
        elif not self._dialing.failed(event.reason, now):
            return False
        self._assembly, self._snapshot_complete, self._feed = None, False, None
        self._early.clear()
        if self._before is not None:
            (self._versions, self._origins), self._before = self._before, None
        # What waits for its predecessors comes again, and its credit was the lost connection's.
        self._origins = {rank: InOrder(each.expected) for rank, each in self._origins.items()}
        self._move_to(Stage.CONNECTING)
        return True

    def _request(self) -> Join:
        """Return what to ask for: to take part, or to take part again."""
        if not self._took_part:
            return self._join
        versions = {
            **self._versions,
            **{rank: origin.expected - 1 for rank, origin in self._origins.items()},
        }
        versions.pop(self.rank, None)
        assert self._welcome is not None
        return replace(
            self._join,
            run=self._welcome.run,
            rank=self.rank,
            quantum_exponent=self._welcome.quantum_exponent,
            resume=Resume(self.rank, self.sequence, versions, self._workers),
        )

    def _send(self, update: OwnUpdate) -> None:
        assert self._link is not None
        payload = EncodedUpdate(update.sequence, update.based_on, update.body).pack()
        self._link.send_update(self.rank, update.sequence, payload)

    def _receive(self, link: Link, event: MessageReceived, now: float) -> None:
        try:
            for message in link.receive(event):
                if self.stage is Stage.CLOSED:
                    return
                self._take(message, now)
        except InvalidMessageError as error:
            link.connection.close(CloseCode.INVALID_MESSAGE, str(error), now)
            self._close(ProtocolError(f"the master at {self._master} sent nonsense: {error}"))

    def _take(self, message: Message, now: float) -> None:
        match message:
            case UpdateReceived():
                self._take_update(message)
            case Snapshot():
                self._take_block(message)
            case Welcome():
                self._take_welcome(message)
            case Roster():
                self._workers = len(message.peers)
                self._listener.on_roster(message.peers)
            case Stable():
                self._kept.forget(message.versions.get(self.rank, 0))
                self._listener.on_stable(message.versions)
            case Finished():
                self._listener.on_finished(message.versions)
            case Refuse():
                refused = RefusedError(
                    message.code, f"the master at {self._master} refused: {message.reason}"
                )
                self._fail(refused, now)
            case _:
                raise InvalidMessageError(f"{type(message).__name__} from a master")

    def _take_welcome(self, welcome: Welcome) -> None:
        difference = welcome.layout.difference(self._join.layout)
        if difference is not None:
            raise InvalidMessageError(f"Welcome with another layout: {difference}")
        if self.stage is not Stage.JOINING:
            raise InvalidMessageError(f"Welcome while {self.stage.name}")
        self._accepted = welcome.sequence
        if self._took_part:
            self._take_welcome_back(welcome)
        else:
            self._move_to(Stage.FOUNDING if welcome.founder else Stage.SYNCING)
            self.rank = welcome.rank
            self.sequence = welcome.sequence
            self._versions = welcome.versions
            self._welcome = welcome
            self._workers = len(welcome.roster)
            self._listener.on_welcome(welcome)
        if welcome.resumed:
            self._begin_again(None)
        else:
            self._begin_if_complete()
        early, self._early = self._early, []
        for update in early:
            self._take_update(update)

    def _take_welcome_back(self, welcome: Welcome) -> None:
        """Take up again what there was before the connection was lost."""
        if welcome.rank != self.rank:
            raise InvalidMessageError(
                f"Welcome back of rank {welcome.rank}; the rank was {self.rank}"
            )
        if welcome.founder:
            self._move_to(Stage.FOUNDING)
            self._listener.on_wanted()
            return
        if welcome.sequence > self.sequence or not self._kept.reaches_back_to(welcome.sequence):
            raise InvalidMessageError(
                f"Welcome back after update {welcome.sequence}; {self.sequence} were sent and "
                f"{len(self._kept)} are kept"
            )
        if not welcome.resumed:
            self._move_to(Stage.SYNCING)
            self._before = self._versions, self._origins
            self._versions, self._origins = welcome.versions, {}
            self._listener.on_resync()
        self._based_on_max = total(welcome.versions, without=self.rank)

    def _take_block(self, block: Snapshot) -> None:
        if self.stage not in (Stage.JOINING, Stage.SYNCING):
            return  # we began without it, or are about to go
        if self._assembly is None:
            self._assembly = SnapshotAssembly(self._join.layout.elements)
        self._snapshot_complete = self._assembly.add(block)
        self._listener.on_snapshot_progress(self._assembly.elements_received)
        self._begin_if_complete()

    def _begin_if_complete(self) -> None:
        """Begin when both are here, the WELCOME and the snapshot; they overtake each other."""
        if self.stage is Stage.SYNCING and self._snapshot_complete and self._assembly is not None:
            values, self._assembly = self._assembly.values, None
            if self._took_part:
                self._begin_again(Rebase(values, dict(self._versions), self._accepted))
            else:
                self._begin(values)

    def _begin(self, values: bytearray | None) -> None:
        """Begin, with a replica that has come, or with our own one."""
        self._move_to(Stage.LIVE)
        self._took_part = True
        self._listener.on_live(values)

    def _begin_again(self, rebase: Rebase | None) -> None:
        """Go on after the connection was lost, and send what the master does not have."""
        self._move_to(Stage.LIVE)
        self._lost = self._before = None
        for sequence in [each for each in self._sizes if each <= self._accepted]:
            self._listener.on_delivered(self._sizes.pop(sequence))
        self._listener.on_back(rebase)
        for update in self._kept.after(self._accepted):
            # It may have been computed with updates that this master has not accepted yet.
            self._send(replace(update, based_on=min(update.based_on, self._based_on_max)))
        assert self._link is not None
        if self._finish_said:
            self._link.send(Finish(self.sequence))
        if self._leave_reason is not None:
            self._link.send(Leave(self.sequence, self._leave_reason))
            self._move_to(Stage.LEAVING)

    def _take_update(self, received: UpdateReceived) -> None:
        if self.stage is Stage.JOINING:
            # The WELCOME, which says with what sequence to begin, was overtaken.
            if len(self._early) >= EARLY_UPDATES_MAX:
                raise InvalidMessageError(f"{EARLY_UPDATES_MAX} updates before WELCOME")
            self._early.append(received)
            return
        assert self._link is not None
        rank, sequence = received.rank, received.update.sequence
        if rank == self.rank:
            self._take_correction(self._link, received)
            return
        if rank not in self._origins:
            self._origins[rank] = InOrder(self._versions.get(rank, 0) + 1)
        origin = self._origins[rank]
        if origin.is_duplicate(sequence):
            self._link.connection.release(received.charge)
        for ready in origin.push(sequence, received):
            self._link.connection.release(ready.charge)
            self._listener.on_update(rank, ready.update)

    def _take_correction(self, link: Link, received: UpdateReceived) -> None:
        """Take an update of our own that comes back: the master has passed on less than it.

        Corrections need no order, and each comes once, like any message of a connection. The
        master says that the run is finished when all of them have arrived.
        """
        link.connection.release(received.charge)
        sequence = received.update.sequence
        if sequence > self.sequence:
            raise InvalidMessageError(f"correction of update {sequence}; {self.sequence} were sent")
        self._listener.on_correction(received.update)

    def _delivered(self, event: MessageDelivered) -> None:
        if event.stream == SNAPSHOT_STREAM:
            if self._feed is not None and self._feed.on_delivered():
                self._feed = None
                if self.stage is Stage.FOUNDING:
                    if self._took_part:
                        self._begin_again(None)
                    else:
                        self._begin(None)
        elif event.stream == self.rank:
            # What was sent again over another connection may have been delivered before: the master
            # had it, and lost the connection before it had looked at it.
            size = self._sizes.pop(event.number, None)
            if size is not None:
                self._listener.on_delivered(size)

    def _error(self, event: Disconnected) -> GradwireError | None:
        """Return what to tell the training thread about the end of the connection."""
        match event.code:
            case CloseCode.UNREACHABLE if self._lost is None:
                assert self._dialing is not None
                return self._dialing.error()
            case _ if self._lost is not None and event.code in {
                CloseCode.UNREACHABLE,
                *RECOVERABLE,
            }:
                return ConnectionLostError(
                    f"the connection to the master at {self._master} was lost ({self._lost}), and "
                    f"in {self._reconnect_seconds:g} s of dialling it did not come back: "
                    f"{event.reason}"
                )
            case CloseCode.VERSION:
                return VersionMismatchError(
                    f"the master at {self._master} speaks protocol version {event.reason}, this "
                    f"gradwire {VERSION}: install the same version of gradwire on both"
                )
            case CloseCode.FULL:
                return RefusedError(
                    RefusalCode.RUN_FULL, f"the master at {self._master} refused: {event.reason}"
                )
            case EndCode.LEFT if self.stage is Stage.LEAVING:
                return None
            case CloseCode.VIOLATION | CloseCode.FLOW_CONTROL | CloseCode.INVALID_MESSAGE:
                side = "says we have" if event.by_peer else "has"
                return ProtocolError(
                    f"the master at {self._master} {side} broken the protocol: {event.reason}"
                )
        return ConnectionLostError(
            f"the connection to the master at {self._master} is over: {event.reason}"
        )

    def _fail(self, error: GradwireError, now: float) -> None:
        assert self._link is not None
        self._link.connection.close(EndCode.ABORTED, "gave up", now)
        self._close(error)

    def _close(self, error: GradwireError | None) -> None:
        self._move_to(Stage.CLOSED)
        self._listener.on_closed(error)

    def _move_to(self, stage: Stage) -> None:
        assert stage in TRANSITIONS[self.stage], f"{self.stage} -> {stage}"
        self.stage = stage
