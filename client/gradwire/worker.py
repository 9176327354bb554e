"""The worker: what a session says to the master and hears from it.

How far it has got says its `Stage`.

A worker that has lost its connection dials again for a while, and asks to take part as who it was:
with the same rank, and with all that it has. It is then sent the updates that it lacks, or, where
the master does not keep them any more, the blocks of the replica that differ; and sends again what
the master does not have.

It does no I/O and owns no parameters: the network thread hands it events and the time, and what it
learns goes to a `Listener`, which hands it on to the training thread. In the simulator the same
object runs without any thread.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

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
from gradwire.origins import Origins, SumAssembly
from gradwire.resync import Resync, fill
from gradwire.stages import TRANSITIONS, Stage
from gradwire_codecs import pack_block, unpack_block
from gradwire_protocol import (
    CloseCode,
    Connected,
    Connection,
    Disconnected,
    Endpoint,
    Event,
    InvalidMessageError,
    MessageDelivered,
    MessageReceived,
)
from gradwire_protocol.link import Link, Message, UpdateReceived
from gradwire_protocol.messages import (
    SEQUENCE_MAX,
    SNAPSHOT_STREAM,
    Blocks,
    Conflated,
    Contents,
    Digest,
    EncodedUpdate,
    EndCode,
    Finish,
    Finished,
    Join,
    Leave,
    Promise,
    Recall,
    RefusalCode,
    Refuse,
    Resume,
    Roster,
    Snapshot,
    Stable,
    Stopping,
    Want,
    Welcome,
    total,
)
from gradwire_protocol.packets import VERSION
from gradwire_protocol.shaped import Payload
from gradwire_protocol.snapshots import SnapshotAssembly, SnapshotFeed, unpacked

RECOVERABLE: Final = frozenset(
    {
        CloseCode.IDLE,
        CloseCode.LOST,
        CloseCode.RESET,
        CloseCode.STALLED,
        EndCode.STEPPED_DOWN,
        EndCode.TOO_SLOW,
    }
)
"""Ends of a connection that nobody wanted, or with a master that hands over, or that are over with
what waited for us: the worker dials again. A path that leads in one direction only for a while
stalls; one that swallows large packets does so again and again."""

REPEATED: Final = RECOVERABLE | {EndCode.REFUSED, EndCode.NO_JOIN}
"""Ends of an attempt to come back after which there can be another one. Why somebody is refused he
hears before."""

RECONNECT_SECONDS: Final = 600.0
"""How long it goes on dialling: a machine has been started again by then."""


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
        self._early: list[UpdateReceived] = []
        self._part: memoryview | None = None
        """What there is of a replica that was coming when the connection was lost."""
        self._resync: Resync | None = None
        """While our replica is compared with the master's."""
        self._feed: SnapshotFeed | None = None
        self._origins = Origins()
        self._sums = SumAssembly(join.layout.elements)
        self._sizes: dict[int, int] = {}
        self._kept = Kept()
        self._corrected = 0
        """The last own update that others have otherwise than we sent it: it was clipped."""
        self._dials_again_with = reconnect_seconds, random
        """How long, and what decides when."""
        self._welcome: Welcome | None = None
        """The first one."""
        self._accepted = self._based_on_max = 0
        """Of our own updates, and of others': how many the master had when it let us in."""
        self._workers = self._term = 0
        """How many take part, ourselves included. The highest term that a master was followed in,
        or promised to be."""
        self._took_part = False
        """Whether it was live at any time: it is back then, and not new."""
        self._finish_said = False
        self._leave_reason: str | None = None
        """Why it goes, once it wants to."""
        self._stalled_with = -1
        """How many of our updates the master had when a connection stalled last."""
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
        timeout = endpoint.config.connect_timeout_seconds
        self.dial(
            Dialing(
                [way], self._master, timeout,
                reach=lambda name, other: Way(name, partial(endpoint.connect, other), other),
            ),
            now,
        )  # fmt: skip

    def dial(self, dialing: Dialing, now: float) -> None:
        """Dial the master, by whichever way leads there."""
        self._dialing = dialing
        self._link = Link(dialing.dial(now))

    def found(self, values: Payload, now: float) -> None:
        """Start the run with a replica: little-endian int32, which must not change any more."""
        if self.stage is Stage.FOUNDING and self._link is not None:
            self._feed = SnapshotFeed.of(values, self._link, _packed)

    def found_again(self, values: Payload, versions: Mapping[int, int], now: float) -> None:
        """Give a master that was started anew our replica, with what it contains."""
        if self.stage is Stage.FOUNDING and self._is_cut_off and self._link is not None:
            self._accepted = versions[self.rank]
            self._based_on_max = total(versions, without=self.rank)
            self._link.send(Contents(versions))
            self._feed = SnapshotFeed.of(values, self._link, _packed)

    def tell_digest(self, digest: Digest, now: float) -> None:
        """Tell the master what our replica is."""
        if self.stage is Stage.LIVE and self._link is not None:
            self._link.send(digest)

    def want(self, blocks: Blocks, numbers: Sequence[int], now: float) -> None:
        """Ask for the blocks that differ from those of the master, if it still says these."""
        resync = self._resync
        if resync is None or resync.blocks is not blocks or self._link is None:
            return  # the connection was lost meanwhile, and there may be another one
        self._link.send(Want(tuple(numbers)))
        resync.ask(numbers)
        if not numbers:
            self._end_resync(resync)

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
        if self._is_cut_off and self._took_part:
            self._leave_reason = reason
            if self._resync is not None:
                self.want(self._resync.blocks, (), now)  # its replica is of no use any more
        elif self.stage in (Stage.FOUNDING, Stage.SYNCING, Stage.LIVE) and self._link is not None:
            self._leave_reason = reason
            self._link.send(Leave(self.sequence, reason))
            self._move_to(Stage.LEAVING)
        elif self.stage is not Stage.LEAVING:
            self.abort(reason, now)

    def comply(self, reason: str, now: float) -> None:
        """Go because the master is about to end; it knows which update is the last one then."""
        if self._took_part and not self._finish_said:
            self.leave(reason, now)

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
        took_part = self._is_cut_off or self.stage in (Stage.SYNCING, Stage.LIVE)
        took_part |= self.stage is Stage.LEAVING and self._took_part
        if event.code not in (REPEATED if self._is_cut_off else RECOVERABLE) or not took_part:
            return False
        if event.code == CloseCode.STALLED:
            if self._stalled_with == self._accepted:
                return False  # since then nothing has got through, although we were back
            self._stalled_with = self._accepted
        assert self._dialing is not None
        if self._lost is None:
            self._lost = event.reason
            seconds, random = self._dials_again_with
            self._dialing = self._dialing.again(seconds, pauses(random))
            self._dialing.begin(now)
            self._listener.on_lost(event.reason)
        elif not self._dialing.failed(event.reason, now):
            return False
        self._start_over()
        return True

    def _turned_away(self, error: GradwireError, master: str | None, now: float) -> None:
        """Try another master, or this one again, after one that is not in charge."""
        assert self._dialing is not None
        assert self._link is not None
        self._dialing.learn(master)
        if not self._dialing.failed(str(error), now):
            self._fail(error, now)
            return
        self._link.connection.close(EndCode.ABORTED, "looking for who is in charge", now)
        self._start_over()

    def _start_over(self) -> None:
        """Forget what the last attempt, or the last connection, has brought."""
        if self._welcome is not None and not self._took_part:
            self._keep_part()
        self._assembly = self._feed = self._resync = None
        self._early.clear()
        self._sums = SumAssembly(self._join.layout.elements)
        self._origins.start_over()
        self._move_to(Stage.CONNECTING)

    def _keep_part(self) -> None:
        """Keep what has come of the replica, for the next connection."""
        if self._part is None:
            elements = self._join.layout.elements
            self._part = (self._assembly or SnapshotAssembly(elements)).values
        elif self._resync is not None:
            fill(self._part, self._resync.rebase.values)

    def _request(self) -> Join:
        """Return what to ask for: to take part, or to take part again."""
        if self._welcome is None:
            return self._join
        versions = self._origins.contents
        if not self._took_part:
            return replace(self._join, run=self._welcome.run, partial=versions)
        versions.pop(self.rank, None)
        kept = self._origins.kept.firsts(versions)
        if self._kept.first is not None:
            kept[self.rank] = max(self._kept.first, self._corrected + 1)
        return replace(
            self._join,
            run=self._welcome.run,
            rank=self.rank,
            quantum_exponent=self._welcome.quantum_exponent,
            resume=Resume(
                self.rank,
                self.sequence,
                versions,
                self._workers,
                kept,
                self._term,
                leaving=self._leave_reason is not None,
            ),
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
                self._take_update(message, now)
            case Snapshot():
                self._take_block(message)
            case Conflated():
                self._sums.add(message)
                self._pass_over_if_complete()
            case Welcome():
                self._take_welcome(message, now)
            case Blocks():
                self._take_blocks(message, now)
            case Recall():
                self._send_again(message)
            case Promise():
                self._term = max(self._term, message.term)
                assert self._link is not None
                self._link.send(Promise(self._term))
            case Refuse():
                refused = RefusedError(
                    message.code, f"the master at {self._master} refused: {message.reason}"
                )
                if message.code == RefusalCode.NOT_IN_CHARGE and self.stage is Stage.JOINING:
                    self._turned_away(refused, message.master, now)
                else:
                    self._fail(refused, now)
            case _:
                self._take_news(message)

    def _take_news(self, message: Message) -> None:
        """Take what the master tells everyone."""
        match message:
            case Roster():
                self._workers = len(message.peers)
                self._listener.on_roster(message.peers)
            case Stable():
                self._kept.forget(message.versions.get(self.rank, 0))
                self._origins.kept.forget_stable(message.versions)
                self._listener.on_stable(message.versions)
            case Finished():
                self._listener.on_finished(message.versions)
            case Stopping():
                self._listener.on_stopping(message.reason)
            case _:
                raise InvalidMessageError(f"{type(message).__name__} from a master")

    def _send_again(self, recall: Recall) -> None:
        """Send a master that was started anew what it asks for, of our own or of another."""
        if not self._is_cut_off or self._link is None:
            raise InvalidMessageError("Recall from a master that has let us in")
        rank, first, last = recall.rank, recall.first, recall.last
        if rank == self.rank:
            for own in self._kept.after(first - 1):
                if own.sequence <= last:
                    self._send(own)
            return
        for update in self._origins.kept.between(rank, first, last):
            self._link.send_update(rank, update.sequence, update.pack())

    def _take_welcome(self, welcome: Welcome, now: float) -> None:
        difference = welcome.layout.difference(self._join.layout)
        if difference is not None:
            raise InvalidMessageError(f"Welcome with another layout: {difference}")
        if self.stage is not Stage.JOINING:
            raise InvalidMessageError(f"Welcome while {self.stage.name}")
        if welcome.term < self._term:
            behind = f"a master of term {welcome.term}, and one of {self._term} was followed"
            self._turned_away(RefusedError(RefusalCode.NOT_IN_CHARGE, behind), None, now)
            return
        self._term = welcome.term
        assert self._dialing is not None
        self._dialing.learn(welcome.standby)
        self._accepted = welcome.sequence
        if self._took_part:
            self._take_welcome_back(welcome)
        else:
            self._move_to(Stage.FOUNDING if welcome.founder else Stage.SYNCING)
            if welcome.compares:
                self._check_has_part()
                self._listener.on_resync(welcome.versions)
            elif self._part is not None:
                self._part = None
                self._listener.on_anew()
            if not welcome.resumed:
                self._origins.begin_with(welcome.versions)
            self.rank = welcome.rank
            self.sequence = welcome.sequence
            self._welcome = welcome
            self._workers = len(welcome.roster)
            self._listener.on_welcome(welcome)
        if self._took_part and welcome.resumed:
            self._begin_again(None)
        else:
            self._begin_if_complete()
        early, self._early = self._early, []
        for update in early:
            self._take_update(update, now)
        self._pass_over_if_complete()

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
            self._origins.change_to(welcome.versions)
            self._listener.on_resync(welcome.versions)
        self._based_on_max = total(welcome.versions, without=self.rank)

    def _take_blocks(self, blocks: Blocks, now: float) -> None:
        """Have our replica compared with the master's: it lacks updates, or is damaged."""
        if self.stage not in (Stage.SYNCING, Stage.LIVE, Stage.LEAVING):
            raise InvalidMessageError(f"Blocks while {self.stage.name}")
        missed = self.stage is Stage.SYNCING
        self._resync = Resync(blocks, self._join.layout.elements, missed=missed)
        if not self._took_part:
            self._check_has_part()
            self._compare_part(now)
        elif self._leave_reason is not None:
            self.want(blocks, (), now)
        else:
            self._listener.on_blocks(blocks, missed=missed)

    def _check_has_part(self) -> None:
        if self._part is None:
            raise InvalidMessageError("there is no replica here that could be compared")

    def _compare_part(self, now: float) -> None:
        """Compare the part of a replica that we have, when its updates are here that come."""
        resync, part = self._resync, self._part
        if resync is None or part is None or resync.is_asked:
            return
        if all(
            self._origins.reached(rank) >= sequence
            for rank, sequence in resync.blocks.versions.items()
            if rank != self.rank
        ):
            self.want(resync.blocks, self._listener.on_part(part, resync.blocks), now)

    def _end_resync(self, resync: Resync) -> None:
        """Go on with what came of a comparison."""
        self._resync = None
        rebase = resync.rebase
        if not self._took_part:
            assert self._part is not None
            values, self._part = self._part, None
            self._begin(fill(values, rebase.values))
        elif resync.missed:
            self._begin_again(rebase)
        else:
            self._listener.on_mended(rebase if rebase.values else None)

    def _take_block(self, block: Snapshot) -> None:
        block = unpacked(block, self._join.layout.elements, unpack_block)
        if self._resync is not None:
            if self._resync.add(block):
                self._end_resync(self._resync)
            return
        if self.stage not in (Stage.JOINING, Stage.SYNCING):
            return  # we began without it, or are about to go
        if self._assembly is None:
            self._assembly = SnapshotAssembly(self._join.layout.elements)
        self._assembly.add(block)
        self._listener.on_snapshot_progress(self._assembly.elements_received)
        self._begin_if_complete()

    def _begin_if_complete(self) -> None:
        """Begin when both are here, the WELCOME and the snapshot; they overtake each other."""
        assembly = self._assembly
        if self.stage is Stage.SYNCING and assembly is not None and assembly.is_complete:
            self._assembly = None
            self._begin(assembly.values)

    def _begin(self, values: memoryview | None) -> None:
        """Begin, with a replica that has come, or with our own one."""
        self._move_to(Stage.LIVE)
        self._took_part = True
        self._lost = None
        self._listener.on_live(values)

    def _begin_again(self, rebase: Rebase | None) -> None:
        """Go on after the connection was lost, and send what the master does not have."""
        self._move_to(Stage.LIVE)
        self._lost = None
        self._origins.settle()
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

    def _take_update(self, received: UpdateReceived, now: float) -> None:
        if self.stage is Stage.JOINING:
            # The WELCOME, which says with what sequence to begin, was overtaken. These keep what
            # they were charged with, so that the master's credit bounds how many they are.
            self._early.append(received)
            return
        assert self._link is not None
        if received.rank == self.rank:
            self._take_correction(self._link, received)
            return
        ready = self._origins.take(received)
        if ready is None:
            self._link.connection.release(received.charge)
        else:
            self._hand_on(self._link, ready)
            self._compare_part(now)

    def _hand_on(self, link: Link, ready: Sequence[UpdateReceived]) -> None:
        """Give the training thread updates whose turn it is."""
        for each in ready:
            link.connection.release(each.charge)
            self._listener.on_update(each.rank, each.update)

    def _pass_over_if_complete(self) -> None:
        """Take a sum of updates that is here; those in it come no more by themselves."""
        span = self._sums.span
        if span is None or self.stage is Stage.JOINING:
            return  # the WELCOME, which says what we have, was overtaken
        assert self._link is not None
        self._origins.check_follows(span, self.rank)
        self._listener.on_sum(self._sums.take())
        for rank, sequence in span.after.items():
            self._link.connection.pass_over(rank, sequence + 1)
            self._hand_on(self._link, self._origins.pass_over(rank, sequence))

    def _take_correction(self, link: Link, received: UpdateReceived) -> None:
        """Take an update of our own that comes back: the master has passed on less than it.

        Corrections need no order, and each comes once, like any message of a connection. The
        master says that the run is finished when all of them have arrived.
        """
        link.connection.release(received.charge)
        sequence = received.update.sequence
        if sequence > self.sequence:
            raise InvalidMessageError(f"correction of update {sequence}; {self.sequence} were sent")
        self._corrected = max(self._corrected, sequence)
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
                    f"in {self._dials_again_with[0]:g} s of dialling it did not come back: "
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
            case EndCode.LEFT if self._leave_reason is not None:
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


def _packed(block: memoryview) -> bytes:
    return pack_block(np.frombuffer(block, "<i4").astype(np.int32, copy=False))
