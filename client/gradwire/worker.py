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

from gradwire.arriving import ArrivingReplica
from gradwire.dialing import UDP, Dialing, Way
from gradwire.errors import GradwireError, ProtocolError, RefusedError
from gradwire.inbox import Rebase
from gradwire.kept import OwnUpdate
from gradwire.listener import Listener
from gradwire.own_updates import OwnUpdates
from gradwire.peer_updates import PeerUpdates
from gradwire.reconnection import Reconnection
from gradwire.resync import Resync
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
from gradwire_protocol.shaped import Payload
from gradwire_protocol.snapshots import SnapshotFeed, unpacked

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
        self._join = join
        self._listener = listener
        self._master = master
        self._reconnection = Reconnection(master, reconnect_seconds, random)
        self._link: Link | None = None
        self._own = OwnUpdates(listener)
        self._peers = PeerUpdates(join.layout.elements, listener)
        self._replica = ArrivingReplica(join.layout.elements, listener)
        self._feed: SnapshotFeed | None = None
        """While the master is given our replica."""
        self._welcome: Welcome | None = None
        """The first one."""
        self._workers = self._term = 0
        """How many take part, ourselves included. The highest term that a master was followed in,
        or promised to be."""
        self._took_part = False
        """Whether it was live at any time: it is back then, and not new."""
        self._finish_said = False
        self._leave_reason: str | None = None
        """Why it goes, once it wants to."""

    @property
    def sequence(self) -> int:
        """Of our last update."""
        return self._own.sequence

    @property
    def rtt(self) -> float | None:
        """Smoothed round-trip time to the master in seconds; None before the first sample."""
        return self._link.connection.rtt if self._link else None

    @property
    def transport(self) -> str:
        """What carries the packets to the master: ``"udp"`` or ``"tcp"``."""
        dialing = self._reconnection.dialing
        return dialing.way.name if dialing else ""

    @property
    def detour(self) -> str | None:
        """Why it is not what was tried first; None where it is."""
        dialing = self._reconnection.dialing
        return dialing.detour if dialing else None

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
        self._reconnection.dialing = dialing
        self._link = Link(dialing.dial(now))

    def found(self, values: Payload, now: float) -> None:
        """Start the run with a replica: little-endian int32, which must not change any more."""
        if self.stage is Stage.FOUNDING and self._link is not None:
            self._feed = SnapshotFeed.of(values, self._link, _packed)

    def found_again(self, values: Payload, versions: Mapping[int, int], now: float) -> None:
        """Give a master that was started anew our replica, with what it contains."""
        if self.stage is Stage.FOUNDING and self._is_cut_off and self._link is not None:
            self._own.accepted = versions[self.rank]
            self._own.based_on_max = total(versions, without=self.rank)
            self._link.send(Contents(versions))
            self._feed = SnapshotFeed.of(values, self._link, _packed)

    def tell_digest(self, digest: Digest, now: float) -> None:
        """Tell the master what our replica is."""
        if self.stage is Stage.LIVE and self._link is not None:
            self._link.send(digest)

    def want(self, blocks: Blocks, numbers: Sequence[int], now: float) -> None:
        """Ask for the blocks that differ from those of the master, if it still says these."""
        resync = self._replica.resync
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
            update = self._own.put(body, based_on)
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
            if self._replica.resync is not None:
                self.want(self._replica.resync.blocks, (), now)  # its replica is of no use any more
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
            case Disconnected() if self._dials_again(event, now) or self._comes_back(event, now):
                pass
            case Disconnected():
                leaving = self.stage is Stage.LEAVING
                error = self._reconnection.error(event, leaving=leaving)
                if error is None:  # the master has everything; its goodbye overtook the rest
                    self._own.on_all_delivered()
                self._close(error)

    def handle_timer(self, now: float) -> None:
        """Dial again, when it is time to; the session's waits have their own deadlines."""
        deadline, dialing = self.next_timer(), self._reconnection.dialing
        if dialing is not None and deadline is not None and now >= deadline:
            self._link = Link(dialing.dial(now))

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        dialing = self._reconnection.dialing
        if dialing is None or self.stage is not Stage.CONNECTING:
            return None
        return dialing.next_at

    # Private.

    @property
    def _is_cut_off(self) -> bool:
        """Whether it takes part, has lost its connection, and is not live again yet."""
        return self._reconnection.lost is not None and self.stage is not Stage.CLOSED

    def _dials_again(self, event: Disconnected, now: float) -> bool:
        """Dial again, if nobody has answered and there is time."""
        unreachable = event.code == CloseCode.UNREACHABLE
        return unreachable and self._reconnection.failed(event.reason, now)

    def _comes_back(self, event: Disconnected, now: float) -> bool:
        """Dial again, if a connection has ended that nobody wanted to end."""
        was_cut_off = self._is_cut_off
        took_part = was_cut_off or self.stage in (Stage.SYNCING, Stage.LIVE)
        took_part |= self.stage is Stage.LEAVING and self._took_part
        if not took_part or not self._reconnection.lose(event, self._own.accepted, now):
            return False
        if not was_cut_off:
            self._listener.on_lost(event.reason)
        self._start_over()
        return True

    def _turned_away(self, error: GradwireError, master: str | None, now: float) -> None:
        """Try another master, or this one again, after one that is not in charge."""
        assert self._link is not None
        self._reconnection.learn(master)
        if not self._reconnection.failed(str(error), now):
            self._fail(error, now)
            return
        self._link.connection.close(EndCode.ABORTED, "looking for who is in charge", now)
        self._start_over()

    def _start_over(self) -> None:
        """Forget what the last attempt, or the last connection, has brought."""
        self._replica.start_over(keep=self._welcome is not None and not self._took_part)
        self._peers.start_over()
        self._feed = None
        self._move_to(Stage.CONNECTING)

    def _request(self) -> Join:
        """Return what to ask for: to take part, or to take part again."""
        if self._welcome is None:
            return self._join
        versions = self._peers.origins.contents
        if not self._took_part:
            return replace(self._join, run=self._welcome.run, partial=versions)
        versions.pop(self.rank, None)
        kept = self._peers.origins.kept.firsts(versions)
        if self._own.first_as_sent is not None:
            kept[self.rank] = self._own.first_as_sent
        return replace(
            self._join,
            run=self._welcome.run,
            rank=self.rank,
            quantum_exponent=self._welcome.quantum_exponent,
            resume=Resume(self.rank, self.sequence, versions, self._workers, kept, self._term),
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
                self._peers.add(message)
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
                self._own.kept.forget(message.versions.get(self.rank, 0))
                self._peers.origins.kept.forget_stable(message.versions)
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
            for own in self._own.between(first, last):
                self._send(own)
            return
        for update in self._peers.origins.kept.between(rank, first, last):
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
        self._reconnection.learn(welcome.standby)
        self._own.accepted = welcome.sequence
        if self._took_part:
            self._take_welcome_back(welcome)
        else:
            self._move_to(Stage.FOUNDING if welcome.founder else Stage.SYNCING)
            if welcome.compares:
                self._replica.check_has_part()
                self._listener.on_resync(welcome.versions)
            else:
                self._replica.drop_part()
            if not welcome.resumed:
                self._peers.origins.begin_with(welcome.versions)
            self.rank = welcome.rank
            self._own.sequence = welcome.sequence
            self._welcome = welcome
            self._workers = len(welcome.roster)
            self._listener.on_welcome(welcome)
        if self._took_part and welcome.resumed:
            self._begin_again(None)
        else:
            self._begin_if_complete()
        early, self._peers.early = self._peers.early, []
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
        self._own.check_reach_back()
        if not welcome.resumed:
            self._move_to(Stage.SYNCING)
            self._peers.origins.change_to(welcome.versions)
            self._listener.on_resync(welcome.versions)
        self._own.based_on_max = total(welcome.versions, without=self.rank)

    def _take_blocks(self, blocks: Blocks, now: float) -> None:
        """Have our replica compared with the master's: it lacks updates, or is damaged."""
        if self.stage not in (Stage.SYNCING, Stage.LIVE, Stage.LEAVING):
            raise InvalidMessageError(f"Blocks while {self.stage.name}")
        missed = self.stage is Stage.SYNCING
        self._replica.compare(blocks, missed=missed)
        if not self._took_part:
            self._replica.check_has_part()
            self._compare_part(now)
        elif self._leave_reason is not None:
            self.want(blocks, (), now)
        else:
            self._listener.on_blocks(blocks, missed=missed)

    def _compare_part(self, now: float) -> None:
        """Compare the part of a replica that we have, when its updates are here that come."""
        differing = self._replica.compare_part(self._peers.origins.reached, self.rank)
        if differing is not None:
            assert self._replica.resync is not None
            self.want(self._replica.resync.blocks, differing, now)

    def _end_resync(self, resync: Resync) -> None:
        """Go on with what came of a comparison."""
        self._replica.resync = None
        rebase = resync.rebase
        if not self._took_part:
            self._begin(self._replica.take_filled(rebase.values))
        elif resync.missed:
            self._begin_again(rebase)
        else:
            self._listener.on_mended(rebase if rebase.values else None)

    def _take_block(self, block: Snapshot) -> None:
        block = unpacked(block, self._join.layout.elements, unpack_block)
        resync = self._replica.resync
        if resync is not None:
            if resync.add(block):
                self._end_resync(resync)
        elif self.stage in (Stage.JOINING, Stage.SYNCING):
            self._replica.add(block)
            self._begin_if_complete()
        # Otherwise we began without it, or are about to go.

    def _begin_if_complete(self) -> None:
        """Begin when both are here, the WELCOME and the snapshot; they overtake each other."""
        values = self._replica.take() if self.stage is Stage.SYNCING else None
        if values is not None:
            self._begin(values)

    def _begin(self, values: memoryview | None) -> None:
        """Begin, with a replica that has come, or with our own one."""
        self._move_to(Stage.LIVE)
        self._took_part = True
        self._reconnection.lost = None
        self._listener.on_live(values)

    def _begin_again(self, rebase: Rebase | None) -> None:
        """Go on after the connection was lost, and send what the master does not have."""
        self._move_to(Stage.LIVE)
        self._reconnection.lost = None
        self._peers.origins.settle()
        self._own.on_accepted()
        self._listener.on_back(rebase)
        for update in self._own.lacking():
            self._send(update)
        assert self._link is not None
        if self._finish_said:
            self._link.send(Finish(self.sequence))
        if self._leave_reason is not None:
            self._link.send(Leave(self.sequence, self._leave_reason))
            self._move_to(Stage.LEAVING)

    def _take_update(self, received: UpdateReceived, now: float) -> None:
        assert self._link is not None
        if self.stage is Stage.JOINING:
            self._peers.hold(received)
        elif received.rank == self.rank:
            self._link.connection.release(received.charge)
            self._own.correct(received.update)
        elif self._peers.take(received, self._link.connection):
            self._compare_part(now)

    def _pass_over_if_complete(self) -> None:
        """Take a sum of updates that is here, if the WELCOME is, which says what we have."""
        assert self._link is not None
        if self.stage is not Stage.JOINING:
            self._peers.pass_over_if_complete(self.rank, self._link.connection)

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
            self._own.on_delivered(event.number)

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
