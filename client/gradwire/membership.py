"""`Membership`: what the network thread learns and the training thread reads.

It is the only thing both threads touch. The network thread calls the ``on_...`` methods, as the
worker's `Listener`; the training thread reads the attributes and waits for conditions on them,
always with a deadline.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from threading import Condition
from time import monotonic

from gradwire.errors import GradwireError, ProtocolError
from gradwire.inbox import Inbox, Rebase
from gradwire_codecs import MalformedUpdateError
from gradwire_protocol.messages import EncodedUpdate, Peer, Welcome

logger = logging.getLogger("gradwire.session")


class Membership:
    """The state of one worker's membership of a run.

    Parameters
    ----------
    elements : int
        Length of the flat vector.
    """

    def __init__(self, elements: int) -> None:
        self.inbox = Inbox(elements)
        self.welcome: Welcome | None = None
        self.snapshot_elements = 0
        self.snapshot: bytearray | None = None
        self.live = False
        self.lost: str | None = None
        """Why there is no connection to the master just now."""
        self.wanted = False
        """Whether a master that was started anew waits for our replica."""
        self.reconnections = 0
        self.rebases = 0
        self.peers: Sequence[Peer] = ()
        self.stable: Mapping[int, int] = {}
        self.finished: Mapping[int, int] | None = None
        self.closed = False
        self.error: GradwireError | None = None
        self.updates_received = 0
        self.updates_clipped = 0
        """Of our own."""
        self.updates_delivered = 0
        self.bytes_delivered = 0
        """Of our own encoded updates."""
        self._resync: Inbox | None = None
        """What comes after a replica that is on its way, to take the place of our own."""
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

    def on_live(self, snapshot: bytearray | None) -> None:
        """Begin: the replica is here, or, for the founder (None), there."""
        with self._changed:
            self.snapshot = snapshot
            self.live = True
            self._changed.notify_all()

    def on_lost(self, reason: str) -> None:
        """Note that the connection is lost, and that the worker dials again."""
        self._resync = None
        with self._changed:
            if self.lost is None:
                logger.warning(
                    "the connection to the master is lost (%s): training goes on by itself, and "
                    "the master is dialled again",
                    reason,
                )
            self.lost = reason
            self._changed.notify_all()

    def on_wanted(self) -> None:
        """Note that the master was started anew and wants our replica."""
        with self._changed:
            self.wanted = True
            self._changed.notify_all()

    def on_resync(self) -> None:
        """Keep the updates from now on for the replica that comes."""
        self._resync = Inbox(self._elements)

    def on_back(self, rebase: Rebase | None) -> None:
        """Note that we take part again: with our replica, or with another one in its place."""
        if rebase is not None:
            assert self._resync is not None
            self.inbox.restart(rebase, self._resync)
        self._resync = None
        with self._changed:
            self.lost = None
            self.reconnections += 1
            self.rebases += rebase is not None
            self._changed.notify_all()
        logger.info(
            "back at the master, %s",
            "with what was missed" if rebase is None else "with its replica: too much was missed",
        )

    def on_update(self, rank: int, update: EncodedUpdate) -> None:
        """Take a peer's update."""
        self._put(rank, update)

    def on_correction(self, correction: EncodedUpdate) -> None:
        """Take what the master has clipped off an update of ours, with the sign turned."""
        self.updates_clipped += 1
        self._put(None, correction)

    def on_delivered(self, size: int) -> None:
        """Note that the master has an update of ours with a body of so many bytes."""
        with self._changed:
            self.updates_delivered += 1
            self.bytes_delivered += size
            self._changed.notify_all()

    def on_roster(self, peers: Sequence[Peer]) -> None:
        """Note who takes part now."""
        with self._changed:
            self.peers = peers
            self._changed.notify_all()

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

    def on_closed(self, error: GradwireError | None) -> None:
        """Note that it is over. The first reason counts."""
        with self._changed:
            if not self.closed:
                self.closed = True
                self.error = error
            self._changed.notify_all()

    # Private.

    def _put(self, rank: int | None, update: EncodedUpdate) -> None:
        try:
            (self.inbox if self._resync is None else self._resync).put(rank, update)
        except MalformedUpdateError as error:
            # The master checks what it relays, so this cannot come from another worker.
            self.on_closed(ProtocolError(f"the master relayed an update of no use: {error}"))
            return
        with self._changed:
            self.updates_received += 1
            self._changed.notify_all()
