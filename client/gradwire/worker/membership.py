"""`Membership`: what the two halves of a worker share.

The network half, `Worker`, notes by the ``on_...`` methods what the master says. The training half,
a `Participant`, reads the attributes, takes updates from the inbox, and posts to the network half
what to send. If each half has a thread, this is all that both touch. No method waits: the threads
or a simulator set `notify` and `post`.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gradwire.errors import GradwireError, ProtocolError
from gradwire.optimizer.delays import OwnStaleness
from gradwire.worker.inbox import INBOX_BYTES_MAX, Inbox, Rebase, complete
from gradwire.worker.sums import Sum
from gradwire_codecs import MalformedUpdateError
from gradwire_protocol.messages.admission import Peer, Welcome
from gradwire_protocol.messages.buffers.layout import Buffers
from gradwire_protocol.messages.replicas import Blocks
from gradwire_protocol.messages.updates import Aside

logger = logging.getLogger("gradwire.session")

ARRIVALS_MAX: Final = 64
"""Own updates whose way to the master is remembered until the training half asks."""


class Clocks:
    """What other workers have told of their steps."""

    def __init__(self) -> None:
        self.latest: Mapping[int, int] = {}
        """By rank: how many steps its last update contains, if it told that."""
        self.first = 0
        """The first clock that any worker told; 0 before that."""
        self.paces: dict[int, int] = {}
        """By rank: microseconds that a step takes without waits, if it told that. The training
        thread looks up single ranks only."""

    def hear(self, clocks: Mapping[int, int]) -> None:
        """Note the clocks told with updates."""
        if clocks:
            self.first = self.first or max(clocks.values())
            self.latest = {**self.latest, **clocks}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The master's blocks to compare our replica with."""

    blocks: Blocks
    missed: bool
    """Whether our replica lacks updates; otherwise it is damaged."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the master has said to a request for an item of a work."""

    request: int
    """Number of the request."""
    number: int | None
    """Number of the item that was granted; None if all are done, or if the work is refused."""
    refused: str


class Membership:
    """The state of one worker's membership of a run.

    Parameters
    ----------
    elements : int
        Length of the flat vector.
    inbox_bytes_max : int
        Bytes of peers' encoded updates that wait before the oldest are conflated.
    """

    connected = False
    """Whether a master has answered, now or before."""
    welcome: Welcome | None = None
    snapshot_elements = 0
    snapshot: memoryview | None = None
    live = False
    lost: str | None = None
    """Why there is no connection to the master now; None while there is one."""
    replica_wanted: int | None = None
    """If a restarted master waits for our replica: the last own update in it."""
    lender: Callable[[], None] | None = None
    """Gives the replica to such a master while the training thread may not step for long."""
    stopping: str | None = None
    """Why the master is about to end, so that it wants no more updates; None if it is not."""
    stop_reason: str | None = None
    """Why all workers are to end their training; None while they are not."""

    def __init__(self, elements: int, inbox_bytes_max: int = INBOX_BYTES_MAX) -> None:
        self.notify: Callable[[], None] = _nothing
        """Called whenever something has changed that the training half may wait for."""
        self.post: Callable[..., None] = _nothing
        """Makes the network half call a function with the arguments that follow, and with the time
        as ``now``. Calls keep the order in which they are posted. Does not wait for the call."""
        self.comply: Callable[..., None] = _nothing
        """`Worker.comply`, to be posted."""
        self._inbox_bytes_max = inbox_bytes_max
        self.resize(elements)
        self._sending = False
        self.comparison: Comparison | None = None
        self.repairing = False
        """Whether damage was found and is not repaired yet."""
        self.reconnections = self.rebases = 0
        self.peers: Sequence[Peer] = ()
        self.buffers_due = 0
        """How many messages with buffers of others are on their way since we were let in."""
        self.buffers: Mapping[int, Buffers] = {}
        """The buffers of others, by rank; at the end, those that every worker has."""
        self.stable: Mapping[int, int] = {}
        self.reached = (0, 0)
        """A position of the log up to which all is here, and the last own update in that. It may
        be further than what has come: own updates are not sent to us."""
        self.finished: Mapping[int, int] | None = None
        self.closed = False
        self.error: GradwireError | None = None
        self.answers: Mapping[str, Answer] = {}
        """By work: the answer to the last request for an item."""
        self.clocks = Clocks()
        self.updates_received = 0
        """Of our own."""
        self.updates_delivered = 0
        self.bytes_delivered = 0
        """Of our own encoded updates."""
        self.own_staleness = OwnStaleness()
        self._arrivals: deque[tuple[int, float]] = deque(maxlen=ARRIVALS_MAX)
        self._resync: Inbox | None = None
        """Updates after a replica on its way that will take the place of our own."""
        self._fence = 0
        """The position of the log that this replica has."""

    # The training half.

    @property
    def news(self) -> tuple[object, ...]:
        """What differs from before where the training half, which waits, may have work."""
        return (
            self.updates_received,
            self.peers,
            self.finished,
            self.answers,
            self.replica_wanted,
            self.comparison,
            self.lost,
            self.reconnections,
            self.stopping,
            self.stop_reason,
            self.closed,
        )

    @property
    def names(self) -> dict[int, str]:
        """By rank: the names of the workers that take part."""
        return {peer.rank: peer.name for peer in self.peers}

    @property
    def others(self) -> list[Peer]:
        """The other workers that have not finished."""
        assert self.welcome is not None
        own = self.welcome.rank
        return [peer for peer in self.peers if not peer.finished and peer.rank != own]

    @contextmanager
    def sending(self) -> Iterator[bool]:
        """Allow to encode and post inside the block, if its value is true.

        Everything that is encoded is then sent: only after it was posted is the master told which
        update is the last one. Each half first says what it does and then looks at what the other
        one does. So at least one of them sees the other, and complies. To comply twice does no
        harm.
        """
        self._sending = True
        try:
            yield self.stopping is None
        finally:
            self._sending = False
            if self.stopping is not None:
                self.post(self.comply, self.stopping)

    def take_arrivals(self) -> list[tuple[int, float]]:
        """Return sizes and seconds of the own updates that have arrived since the last call."""
        return [self._arrivals.popleft() for _ in range(len(self._arrivals))]

    # The network half.

    def on_connected(self) -> None:
        """Note that a master has answered."""
        self.connected = True
        self.notify()

    def resize(self, elements: int) -> None:
        """Note how many elements the replica has, before any update is here."""
        self._new_inbox = partial(Inbox, elements, self._inbox_bytes_max)
        self.inbox = self._new_inbox()

    def on_welcome(self, welcome: Welcome) -> None:
        """Note that the master lets us take part."""
        self.welcome = welcome
        self.peers = welcome.roster
        self.buffers_due = welcome.buffers
        self.notify()

    def on_snapshot_progress(self, elements: int) -> None:
        """Note how many elements of the replica have come."""
        self.snapshot_elements = elements

    def on_live(self, snapshot: memoryview | None) -> None:
        """Note that training can begin: the replica is here or, for the founder (None), there."""
        self.snapshot = snapshot
        self.live = True
        self.reconnections += self.lost is not None
        self.lost = None
        self.notify()

    def on_lost(self, reason: str) -> None:
        """Note that the connection is lost, and that the worker dials again."""
        self._resync = None
        self.repairing, self.comparison = False, None
        if self.lost is None:
            logger.warning(
                "the connection to the master is lost (%s): %s, and the master is dialled again",
                reason,
                "training goes on by itself" if self.live else "what has come is kept",
            )
        self.lost = reason
        self.notify()

    def on_replica_wanted(self, accepted: int) -> None:
        """Note that a restarted master wants our replica, with own updates up to this one."""
        self.replica_wanted = accepted
        lender = self.lender
        self.notify()
        if lender is not None:
            lender()

    def on_resync(self, position: int) -> None:
        """Keep what comes after a position apart, for a replica on its way that has all before."""
        self._resync = self._new_inbox()
        self._fence = position
        self.reached = (0, 0)

    def on_new_snapshot(self) -> None:
        """Forget the updates that have come: another snapshot comes, with its own."""
        self._resync = None
        self.inbox.take_all()

    def on_partial_replica(self, values: memoryview, blocks: Blocks) -> tuple[int, ...]:
        """Apply the updates that have come to a part of a replica; return which blocks differ."""
        assert self._resync is not None
        before, self.inbox, self._resync = self.inbox, self._resync, None
        return complete(values, before.take_all(), blocks)

    def on_resumed(self, rebase: Rebase | None) -> None:
        """Note that we take part again: with our replica, or with blocks of another one."""
        if rebase is not None:
            assert self._resync is not None
            self.inbox.restart(rebase, self._resync)
        self._resync = None
        self.comparison = None
        self.lost = None
        self.reconnections += 1
        self.rebases += rebase is not None
        self.notify()
        logger.info(
            "back at the master, %s",
            "with what was missed"
            if rebase is None
            else f"with {len(rebase.values)} blocks of its replica: too much was missed",
        )

    def on_blocks(self, blocks: Blocks, *, missed: bool) -> None:
        """Make the training half compare our replica with the master's."""
        self.comparison = Comparison(blocks, missed=missed)
        self.repairing = not missed
        self.notify()

    def on_repaired(self, rebase: Rebase | None) -> None:
        """Take the blocks that replace damaged ones; None if none was damaged."""
        if rebase is not None:
            self.inbox.put_rebase(rebase)
        self.repairing = False
        self.notify()

    def on_entries(self, total: Sum) -> None:
        """Take entries of the log."""
        span, own = total.span, total.rank
        self.clocks.paces |= {rank: pace for rank, pace in span.paces.items() if rank != own}
        clocks = {rank: clock for rank, clock in span.clocks.items() if rank != own}
        inbox = self._inbox(later=total.stop > self._fence)
        self._receive(total.updates, clocks, inbox.put, total)

    def on_delivered(self, size: int, seconds: float | None = None) -> None:
        """Note that the master has an own update with a body of `size` bytes.

        It took so many seconds after it was posted, if that is known.
        """
        if seconds is not None:
            self._arrivals.append((size, seconds))
        self.updates_delivered += 1
        self.bytes_delivered += size
        self.own_staleness.on_delivered(self.updates_received)
        self.notify()

    def on_roster(self, peers: Sequence[Peer]) -> None:
        """Note which workers take part now."""
        self.peers = peers
        self.notify()

    def on_buffers(self, buffers: Mapping[int, Buffers]) -> None:
        """Note what the buffers of others hold."""
        self.buffers = buffers

    def on_buffers_received(self) -> None:
        """Note that a message with buffers has come."""
        if self.buffers_due:
            self.buffers_due -= 1
            self.notify()

    def on_stable(self, versions: Mapping[int, int]) -> None:
        """Note that every live worker has these updates."""
        self.stable = versions
        self.notify()

    def on_reached(self, position: int, accepted: int) -> None:
        """Note that all is here up to a position of the log, and the last own update in it."""
        self.reached = position, accepted

    def on_finished(self, versions: Mapping[int, int]) -> None:
        """Note that all workers have finished, and which updates these are in all."""
        self.finished = versions
        self.notify()

    def on_aside(self, aside: Aside) -> None:
        """Note that the master keeps own updates aside; say so at once."""
        logger.warning(
            "the master keeps the updates of this worker aside, from update %d on: its norm is "
            "%.3g quanta, and with what the other workers send the limit is %.3g. Look at the loss "
            "and the learning rate of this worker; if they are right, have the operator of the "
            "master accept them: `gradwire operate release`, or start it with --outliers warn",
            aside.sequence,
            aside.norm,
            aside.limit,
        )

    def on_stopping(self, reason: str) -> None:
        """Note that the master is about to end: what is not sent yet stays in the residual."""
        logger.warning("the master is about to end, and what was sent arrives: %s", reason)
        self.stopping = reason
        if not self._sending:
            self.post(self.comply, reason)
        self.notify()

    def on_stop_training(self, reason: str) -> None:
        """Note that all workers are to end their training. The first reason counts."""
        if self.stop_reason is None:
            logger.info("all workers are to end their training: %s", reason)
            self.stop_reason = reason
            self.notify()

    def on_answer(self, work: str, answer: Answer) -> None:
        """Note the answer to a request for an item."""
        self.answers = {**self.answers, work: answer}
        self.notify()

    def on_closed(self, error: GradwireError | None) -> None:
        """Note that the membership is over. The first reason counts."""
        if not self.closed:
            self.closed = True
            self.error = error
        self.notify()

    # Private.

    def _inbox(self, *, later: bool) -> Inbox:
        """Return the inbox of an update before, or after, a replica that is on its way."""
        return self._resync if self._resync is not None and later else self.inbox

    def _receive(
        self,
        updates: int,
        clocks: Mapping[int, int],
        put: Callable[..., None],
        *arguments: Any,
    ) -> None:
        """Put what has come into an inbox, and note it."""
        try:
            put(*arguments)
        except MalformedUpdateError as error:
            # The master checks what it relays, so this cannot come from another worker.
            reason = f"the master relayed an update that cannot be applied: {error}"
            self.on_closed(ProtocolError(reason))
            return
        self.clocks.hear(clocks)
        self.updates_received += updates
        self.notify()


def _nothing(*arguments: Any) -> None:
    """Do nothing: no thread or simulator is there yet."""
