"""`SharedBuffers`: the latest buffers of every worker, as the master has them.

It belongs to the network thread. The master sends changes in order, so this is always what the
master had at some moment. When the master says that the run is finished, it is what every worker
has.

A restarted master knows no buffers. It is sent our own again, and those of workers that have
finished and may have left, because other workers may have ended with them.
"""

import logging
from collections.abc import Iterator

from gradwire.worker.membership import Membership
from gradwire_protocol.messages.buffers.layout import BufferLayout, Buffers

logger = logging.getLogger("gradwire.buffers")


class SharedBuffers:
    """The latest buffers of each rank.

    Parameters
    ----------
    layout : BufferLayout or None
        Of our own; buffers of another layout are dropped. None if no buffers are shared.
    """

    def __init__(self, layout: BufferLayout | None, membership: Membership) -> None:
        self.refused = 0
        """How many buffers of others could not be averaged."""
        self._layout = layout
        self._membership = membership
        self._own: Buffers | None = None
        self._known: dict[int, Buffers] = {}
        """Those of others, by rank; until ours were sent, also those of our rank's last worker."""
        self._final: dict[int, Buffers] = {}
        """What the last master had of finished workers, and this one has not sent yet."""
        self._is_finished = False
        self._complained_of: set[int] = set()

    def set_own(self, buffers: Buffers) -> None:
        """Keep what our own buffers hold now, in place of those of our rank's last worker."""
        self._own = buffers
        if self._known.pop(buffers.rank, None) is not None:
            self._tell()

    def receive(self, buffers: Buffers) -> None:
        """Take what the master says of a worker's buffers."""
        if self._layout is None:
            return
        rank = buffers.rank
        self._final.pop(rank, None)
        if self._own is not None and rank == self._own.rank:
            self._known[rank] = buffers  # ours came too late to count
        elif not buffers.nbytes:
            self._known.pop(rank, None)
        elif self._layout.unpack(buffers) is None:
            self._known.pop(rank, None)  # no longer the latest
            self._refuse(buffers)
        else:
            self._known[rank] = buffers
        self._tell()
        self._membership.on_buffers_received()

    def finish(self) -> None:
        """Note that the run is finished: every worker ends with what is here now."""
        self._is_finished = True

    def start_over(self) -> None:
        """Forget what the last connection has brought: a new master sends it again."""
        final = {rank: each for rank, each in self._known.items() if each.final}
        self._final = {**self._final, **final}
        if self._known:
            self._known = {}
            self._tell()

    def to_resend(self, own_rank: int) -> Iterator[Buffers]:
        """Yield the buffers that a master may lack."""
        if self._own is not None:
            yield self._own
        # It would take those of our rank's last worker for ours.
        yield from (each for rank, each in self._final.items() if rank != own_rank)

    def _tell(self) -> None:
        if not self._is_finished:
            self._membership.on_buffers(dict(self._known))

    def _refuse(self, buffers: Buffers) -> None:
        assert self._layout is not None
        self.refused += 1
        if buffers.rank in self._complained_of:
            return
        self._complained_of.add(buffers.rank)
        same = buffers.layout == self._layout.packed
        logger.warning(
            "buffers of rank %d are not averaged with ours: %s",
            buffers.rank,
            "not all of their values are finite" if same else "its module has other ones",
        )
