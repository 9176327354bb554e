"""`Membership`: what the network thread learns and the training thread reads.

It is the only thing both threads touch. The network thread calls the ``on_...`` methods, as the
worker's `Listener`; the training thread reads the attributes and waits for conditions on them,
always with a deadline.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition
from time import monotonic

from gradwire.errors import GradwireError, ProtocolError
from gradwire.threads.clocks import Clocks
from gradwire.threads.inbox import Inbox, complete
from gradwire.threads.own_staleness import OwnStaleness
from gradwire.worker.listener import Rebase
from gradwire.worker.peer_sequences import Sum
from gradwire_codecs import MalformedUpdateError
from gradwire_protocol.messages.admission import Peer, Welcome
from gradwire_protocol.messages.replicas import Blocks
from gradwire_protocol.messages.states import Buffers
from gradwire_protocol.messages.updates import EncodedUpdate

logger = logging.getLogger("gradwire.session")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a replica has to be compared with, and why."""

    blocks: Blocks
    missed: bool
    """Because of updates that it lacks, and not because it is damaged."""


class Membership:
    """The state of one worker's membership of a run.

    Parameters
    ----------
    elements : int
        Length of the flat vector.
    """

    welcome: Welcome | None = None
    snapshot_elements = 0
    snapshot: memoryview | None = None
    live = False
    lost: str | None = None
    """Why there is no connection to the master just now."""
    wanted = False
    """Whether a master that was started anew waits for our replica."""
    lender: Callable[[], None] | None = None
    """What gives it the replica, while the training thread may not step for long."""
    stopping: str | None = None
    """Why the master is about to end, if it is: it wants no more updates."""

    def __init__(self, elements: int) -> None:
        self.inbox = Inbox(elements)
        self.leave: Callable[[str], None] = lambda reason: None
        """Has the network thread leave because the master is about to end, after all that it was
        given before."""
        self._sending = False
        self.comparison: Comparison | None = None
        """What our replica has to be compared with."""
        self.mending = False
        """Whether damage was found, and is not mended yet."""
        self.reconnections = self.rebases = 0
        self.peers: Sequence[Peer] = ()
        self.buffers: Mapping[int, Buffers] = {}
        """What the buffers of others hold, by rank; at the end, what everyone has."""
        self.stable: Mapping[int, int] = {}
        self.finished: Mapping[int, int] | None = None
        self.closed = False
        self.error: GradwireError | None = None
        self.clocks = Clocks()
        self.updates_received = 0
        self.updates_clipped = 0
        """Of our own."""
        self.updates_delivered = 0
        self.bytes_delivered = 0
        """Of our own encoded updates."""
        self.own_staleness = OwnStaleness()
        self._resync: Inbox | None = None
        """What comes after a replica that is on its way, to take the place of our own."""
        self._fence: Mapping[int, int] = {}
        """What that replica contains."""
        self._elements = elements
        self._changed = Condition()

    # The training thread.

    def wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until a condition on this object holds, at most `timeout` seconds.

        Returns
        -------
        bool
            Whether it holds. A membership that is closed is not waited for.
        """
        deadline = monotonic() + timeout
        with self._changed:
            while not condition():
                left = deadline - monotonic()
                if left <= 0 or self.closed:
                    return condition()
                self._changed.wait(left)
        return True

    def notify(self) -> None:
        """Have those who wait look again at what they wait for."""
        with self._changed:
            self._changed.notify_all()

    @contextmanager
    def sending(self) -> Iterator[bool]:
        """Encode and hand over inside the block, if its value says so.

        So what is encoded is sent: the master is told which update is the last one when it has been
        handed over.
        """
        with self._changed:
            self._sending = self.stopping is None
        try:
            yield self._sending
        finally:
            with self._changed:
                was_sending, self._sending = self._sending, False
            if was_sending and self.stopping is not None:
                self.leave(self.stopping)

    # The network thread.

    def on_welcome(self, welcome: Welcome) -> None:
        """Note that we take part."""
        with self._changed:
            self.welcome = welcome
            self.peers = welcome.roster
            self._changed.notify_all()

    def on_snapshot_progress(self, elements: int) -> None:
        """Note how many elements of the replica have come."""
        self.snapshot_elements = elements

    def on_live(self, snapshot: memoryview | None) -> None:
        """Begin: the replica is here, or, for the founder (None), there."""
        with self._changed:
            self.snapshot = snapshot
            self.live = True
            self.reconnections += self.lost is not None
            self.lost = None
            self._changed.notify_all()

    def on_lost(self, reason: str) -> None:
        """Note that the connection is lost, and that the worker dials again."""
        self._resync = None
        self.mending, self.comparison = False, None
        with self._changed:
            if self.lost is None:
                logger.warning(
                    "the connection to the master is lost (%s): %s, and the master is dialled "
                    "again",
                    reason,
                    "training goes on by itself" if self.live else "what has come is kept",
                )
            self.lost = reason
            self._changed.notify_all()

    def on_wanted(self) -> None:
        """Note that the master was started anew and wants our replica."""
        with self._changed:
            self.wanted = True
            lender = self.lender
            self._changed.notify_all()
        if lender is not None:
            lender()

    def on_resync(self, versions: Mapping[int, int]) -> None:
        """Keep the updates beyond these for the replica that comes."""
        self._resync = Inbox(self._elements)
        self._fence = versions

    def on_anew(self) -> None:
        """Forget the updates that have come: what they are for comes anew, with others."""
        self._resync = None
        self.inbox.take()

    def on_part(self, values: memoryview, blocks: Blocks) -> tuple[int, ...]:
        """Apply the updates that have come to the part of a replica that has."""
        assert self._resync is not None
        before, self.inbox, self._resync = self.inbox, self._resync, None
        return complete(values, before.take(), blocks)

    def on_back(self, rebase: Rebase | None) -> None:
        """Note that we take part again: with our replica, or with another one in its place."""
        if rebase is not None:
            assert self._resync is not None
            self.inbox.restart(rebase, self._resync)
        self._resync = None
        with self._changed:
            self.comparison = None
            self.lost = None
            self.reconnections += 1
            self.rebases += rebase is not None
            self._changed.notify_all()
        logger.info(
            "back at the master, %s",
            "with what was missed"
            if rebase is None
            else f"with {len(rebase.values)} blocks of its replica: too much was missed",
        )

    def on_blocks(self, blocks: Blocks, *, missed: bool) -> None:
        """Have the training thread compare our replica with the master's."""
        with self._changed:
            self.comparison = Comparison(blocks, missed=missed)
            self.mending = not missed
            self._changed.notify_all()

    def on_mended(self, rebase: Rebase | None) -> None:
        """Take what comes in the place of damaged blocks."""
        if rebase is not None:
            self.inbox.mend(rebase)
        with self._changed:
            self.mending = False
            self._changed.notify_all()

    def on_update(self, rank: int, update: EncodedUpdate) -> None:
        """Take a peer's update."""
        self._put(rank, update, {rank: update.clock} if update.clock else {})

    def on_sum(self, total: Sum) -> None:
        """Take updates of peers that the master has added up."""
        self._take(lambda inbox: inbox.put_sum(total), total.updates, total.clocks)

    def on_correction(self, correction: EncodedUpdate) -> None:
        """Take what the master has clipped off an update of ours, with the sign turned."""
        self.updates_clipped += 1
        self._put(None, correction, {})

    def on_delivered(self, size: int) -> None:
        """Note that the master has an update of ours with a body of so many bytes."""
        with self._changed:
            self.updates_delivered += 1
            self.bytes_delivered += size
            self.own_staleness.delivered(self.updates_received)
            self._changed.notify_all()

    def on_roster(self, peers: Sequence[Peer]) -> None:
        """Note who takes part now."""
        with self._changed:
            self.peers = peers
            self._changed.notify_all()

    def on_buffers(self, buffers: Mapping[int, Buffers]) -> None:
        """Note what the buffers of others hold; nobody waits for that."""
        self.buffers = buffers

    def on_stable(self, versions: Mapping[int, int]) -> None:
        """Note that every live worker has these updates."""
        with self._changed:
            self.stable = versions
            self._changed.notify_all()

    def on_finished(self, versions: Mapping[int, int]) -> None:
        """Note that all workers have finished; these are all updates."""
        with self._changed:
            self.finished = versions
            self._changed.notify_all()

    def on_stopping(self, reason: str) -> None:
        """Note that the master is about to end: what is not sent yet waits in the residual."""
        logger.warning("the master is about to end, and what was sent arrives: %s", reason)
        with self._changed:
            self.stopping = reason
            sending = self._sending
            self._changed.notify_all()
        if not sending:
            self.leave(reason)

    def on_closed(self, error: GradwireError | None) -> None:
        """Note that it is over. The first reason counts."""
        with self._changed:
            if not self.closed:
                self.closed = True
                self.error = error
            self._changed.notify_all()

    # Private.

    def _put(self, rank: int | None, update: EncodedUpdate, clocks: Mapping[int, int]) -> None:
        later = rank is None or update.sequence > self._fence.get(rank, 0)
        self._take(lambda inbox: inbox.put(rank, update), 1, clocks, later=later)

    def _take(
        self,
        put: Callable[[Inbox], None],
        updates: int,
        clocks: Mapping[int, int],
        *,
        later: bool = True,
    ) -> None:
        try:
            put(self._resync if self._resync is not None and later else self.inbox)
        except MalformedUpdateError as error:
            # The master checks what it relays, so this cannot come from another worker.
            self.on_closed(ProtocolError(f"the master relayed an update of no use: {error}"))
            return
        with self._changed:
            self.clocks.hear(clocks)
            self.updates_received += updates
            self._changed.notify_all()
