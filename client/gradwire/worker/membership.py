"""`Membership`: what the two halves of a worker know of each other.

The network half, `Worker`, notes with the ``on_...`` methods what it hears from the master. The
training half, a `Participant`, reads the attributes, takes updates out of the inbox, and posts to
the network half what is to be said. Where each half has a thread, this is all that both touch, and
no method waits: `notify` and `post` are what the threads, or a simulator, put there.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from gradwire.errors import GradwireError, ProtocolError
from gradwire.optimizer.own_staleness import OwnStaleness
from gradwire.worker.inbox import INBOX_BYTES_MAX, Inbox, Rebase, complete
from gradwire.worker.peer_sequences import Sum
from gradwire_codecs import MalformedUpdateError
from gradwire_protocol.messages.admission import Peer, Welcome
from gradwire_protocol.messages.replicas import Blocks
from gradwire_protocol.messages.states import Buffers
from gradwire_protocol.messages.updates import EncodedUpdate

logger = logging.getLogger("gradwire.session")


class Clocks:
    """What was heard of the steps of others."""

    def __init__(self) -> None:
        self.latest: Mapping[int, int] = {}
        """By rank: how many of its steps are in what was received of it last, where that is
        said."""
        self.first: int | None = None
        """What was heard first of anybody."""
        self.paces: dict[int, int] = {}
        """By rank: how many microseconds a step takes there, without waits, where that is said.
        The training thread looks up single ranks."""

    def hear(self, clocks: Mapping[int, int]) -> None:
        """Take in what was said with updates."""
        if clocks:
            self.first = max(clocks.values()) if self.first is None else self.first
            self.latest = {**self.latest, **clocks}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a replica has to be compared with, and why."""

    blocks: Blocks
    missed: bool
    """Because of updates that it lacks, and not because it is damaged."""


class Membership:
    """The state of one worker's membership of a run, between its two halves.

    Parameters
    ----------
    elements : int
        Length of the flat vector.
    inbox_bytes_max : int
        Encoded updates of peers that wait before they are conflated.
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

    def __init__(self, elements: int, inbox_bytes_max: int = INBOX_BYTES_MAX) -> None:
        self.notify: Callable[[], None] = _nothing
        """Called whenever something has changed that the training half may wait for."""
        self.post: Callable[..., None] = _nothing
        """Has the network half call a function with the arguments behind it, and with the time as
        ``now``, in the order in which they are posted. Does not wait for it."""
        self.comply: Callable[..., None] = _nothing
        """`Worker.comply`, to be posted."""
        self._new_inbox = partial(Inbox, elements, inbox_bytes_max)
        self.inbox = self._new_inbox()
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

    # The training half.

    @contextmanager
    def sending(self) -> Iterator[bool]:
        """Encode and hand over inside the block, if its value says so.

        So what is encoded is sent: the master is told which update is the last one when it has been
        handed over. Each half first says what it does and then looks at what the other one does:
        so at least one of them sees the other, and complies. To comply twice does no harm.
        """
        self._sending = True
        try:
            yield self.stopping is None
        finally:
            self._sending = False
            if self.stopping is not None:
                self.post(self.comply, self.stopping)

    # The network half.

    def on_welcome(self, welcome: Welcome) -> None:
        """Note that we take part."""
        self.welcome = welcome
        self.peers = welcome.roster
        self.notify()

    def on_snapshot_progress(self, elements: int) -> None:
        """Note how many elements of the replica have come."""
        self.snapshot_elements = elements

    def on_live(self, snapshot: memoryview | None) -> None:
        """Begin: the replica is here, or, for the founder (None), there."""
        self.snapshot = snapshot
        self.live = True
        self.reconnections += self.lost is not None
        self.lost = None
        self.notify()

    def on_lost(self, reason: str) -> None:
        """Note that the connection is lost, and that the worker dials again."""
        self._resync = None
        self.mending, self.comparison = False, None
        if self.lost is None:
            logger.warning(
                "the connection to the master is lost (%s): %s, and the master is dialled again",
                reason,
                "training goes on by itself" if self.live else "what has come is kept",
            )
        self.lost = reason
        self.notify()

    def on_wanted(self) -> None:
        """Note that the master was started anew and wants our replica."""
        self.wanted = True
        lender = self.lender
        self.notify()
        if lender is not None:
            lender()

    def on_resync(self, versions: Mapping[int, int]) -> None:
        """Keep the updates beyond these for the replica that comes."""
        self._resync = self._new_inbox()
        self._fence = versions

    def on_anew(self) -> None:
        """Forget the updates that have come: what they are for comes anew, with others."""
        self._resync = None
        self.inbox.take_all()

    def on_part(self, values: memoryview, blocks: Blocks) -> tuple[int, ...]:
        """Apply the updates that have come to the part of a replica that has."""
        assert self._resync is not None
        before, self.inbox, self._resync = self.inbox, self._resync, None
        return complete(values, before.take_all(), blocks)

    def on_back(self, rebase: Rebase | None) -> None:
        """Note that we take part again: with our replica, or with another one in its place."""
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
        """Have the training thread compare our replica with the master's."""
        self.comparison = Comparison(blocks, missed=missed)
        self.mending = not missed
        self.notify()

    def on_mended(self, rebase: Rebase | None) -> None:
        """Take what comes in the place of damaged blocks."""
        if rebase is not None:
            self.inbox.mend(rebase)
        self.mending = False
        self.notify()

    def on_update(self, rank: int, update: EncodedUpdate) -> None:
        """Take a peer's update."""
        is_later = update.sequence > self._fence.get(rank, 0)
        try:
            self._inbox(later=is_later).put_update(rank, update)
        except MalformedUpdateError as error:
            self._close_for(error)
        else:
            if update.pace:
                self.clocks.paces[rank] = update.pace
            self._note_received(1, {rank: update.clock} if update.clock else {})

    def on_sum(self, total: Sum) -> None:
        """Take updates of peers that the master has added up."""
        try:
            self._inbox(later=True).put_sum(total)
        except MalformedUpdateError as error:
            self._close_for(error)
        else:
            self._note_received(total.updates, total.clocks)

    def on_correction(self, correction: EncodedUpdate) -> None:
        """Take what the master has clipped off an update of ours, with the sign turned."""
        self.updates_clipped += 1
        try:
            self._inbox(later=True).put_update(None, correction)
        except MalformedUpdateError as error:
            self._close_for(error)
        else:
            self._note_received(1, {})

    def on_delivered(self, size: int) -> None:
        """Note that the master has an update of ours with a body of so many bytes."""
        self.updates_delivered += 1
        self.bytes_delivered += size
        self.own_staleness.on_delivered(self.updates_received)
        self.notify()

    def on_roster(self, peers: Sequence[Peer]) -> None:
        """Note who takes part now."""
        self.peers = peers
        self.notify()

    def on_buffers(self, buffers: Mapping[int, Buffers]) -> None:
        """Note what the buffers of others hold; nobody waits for that."""
        self.buffers = buffers

    def on_stable(self, versions: Mapping[int, int]) -> None:
        """Note that every live worker has these updates."""
        self.stable = versions
        self.notify()

    def on_finished(self, versions: Mapping[int, int]) -> None:
        """Note that all workers have finished; these are all updates."""
        self.finished = versions
        self.notify()

    def on_stopping(self, reason: str) -> None:
        """Note that the master is about to end: what is not sent yet waits in the residual."""
        logger.warning("the master is about to end, and what was sent arrives: %s", reason)
        self.stopping = reason
        if not self._sending:
            self.post(self.comply, reason)
        self.notify()

    def on_closed(self, error: GradwireError | None) -> None:
        """Note that it is over. The first reason counts."""
        if not self.closed:
            self.closed = True
            self.error = error
        self.notify()

    # Private.

    def _inbox(self, *, later: bool) -> Inbox:
        """Return where an update belongs that comes after a replica on its way, or before it."""
        return self._resync if self._resync is not None and later else self.inbox

    def _note_received(self, updates: int, clocks: Mapping[int, int]) -> None:
        self.clocks.hear(clocks)
        self.updates_received += updates
        self.notify()

    def _close_for(self, error: MalformedUpdateError) -> None:
        # The master checks what it relays, so this cannot come from another worker.
        reason = f"the master relayed an update that cannot be applied: {error}"
        self.on_closed(ProtocolError(reason))


def _nothing(*arguments: Any) -> None:
    """Do nothing: nobody has put anything there yet."""
