"""`IncomingReplica`: a replica on its way to a worker.

It comes as a snapshot. If the connection is lost meanwhile, what has come is a *part*, and is
compared with the master's replica over the next connection. A worker that has taken part compares
its own replica. Either way only the blocks come that differ: the master sends the digest of every
block (BLOCKS), the worker finds out which differ, asks for them (WANT), and gets them. No `Resync`
outlives its connection.
"""

from collections.abc import Mapping, Sequence

from gradwire.worker.inbox import Rebase
from gradwire.worker.membership import Membership
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.fields import DIGEST_BYTES
from gradwire_protocol.messages.replicas import Blocks, Snapshot
from gradwire_protocol.messages.snapshots import (
    ELEMENT_BYTES,
    BlockAssembly,
    SnapshotAssembly,
    block_span,
    count_blocks,
)


class Resync:
    """One comparison of a replica with the master's, because of missed updates or of damage.

    Raises `InvalidMessageError` if the master has another number of blocks.
    """

    def __init__(self, blocks: Blocks, elements: int, *, missed: bool) -> None:
        said, there_are = len(blocks.digests) / DIGEST_BYTES, count_blocks(elements)
        if said != there_are:
            raise InvalidMessageError(f"digests of {said:g} blocks; the replica has {there_are}")
        self.blocks = blocks
        self.missed = missed
        self._elements = elements
        self._assembly: BlockAssembly | None = None

    def ask(self, numbers: Sequence[int]) -> None:
        """Note which blocks are asked for."""
        self._assembly = BlockAssembly(self._elements, numbers)

    def add_block(self, block: Snapshot) -> bool:
        """Take a block; return whether all are here.

        Raises `InvalidMessageError` if it was not asked for.
        """
        if self._assembly is None:
            raise InvalidMessageError("a block of the replica that was not asked for")
        return self._assembly.accept_block(block)

    @property
    def is_asked(self) -> bool:
        """Whether the blocks that differ were asked for."""
        return self._assembly is not None

    @property
    def rebase(self) -> Rebase:
        """The blocks that have come."""
        values = {} if self._assembly is None else self._assembly.values
        return Rebase(self.blocks, values, self.missed)


def fill(replica: memoryview, blocks: Mapping[int, bytes]) -> memoryview:
    """Write blocks, by number, into a replica; return it."""
    for number, values in blocks.items():
        start = ELEMENT_BYTES * block_span(number, len(replica) // ELEMENT_BYTES).start
        replica[start : start + len(values)] = values
    return replica


class IncomingReplica:
    """What has come of a replica."""

    def __init__(self, elements: int, membership: Membership) -> None:
        self.resync: Resync | None = None
        """Set while a replica is compared with the master's."""
        self._elements = elements
        self._membership = membership
        self._assembly: SnapshotAssembly | None = None
        self._part: memoryview | None = None
        """What had come of a replica when the connection was lost."""

    def start_over(self, *, keep: bool) -> None:
        """Note that the connection is lost; `keep` what has come if the next one needs it."""
        if keep and self._part is None:
            self._part = (self._assembly or SnapshotAssembly(self._elements)).values
        elif keep and self._part is not None and self.resync is not None:
            fill(self._part, self.resync.rebase.values)
        self._assembly = self.resync = None

    # A snapshot.

    def add_block(self, block: Snapshot) -> None:
        """Take a block of a snapshot."""
        if self._assembly is None:
            self._assembly = SnapshotAssembly(self._elements)
        self._assembly.accept_block(block)
        self._membership.on_snapshot_progress(self._assembly.elements_received)

    def take_snapshot(self) -> memoryview | None:
        """Return the snapshot and forget it, if all of it is here; otherwise None."""
        assembly = self._assembly
        if assembly is None or not assembly.is_complete:
            return None
        self._assembly = None
        return assembly.values

    # A comparison.

    def check_has_part(self) -> None:
        """Raise `InvalidMessageError` if there is no part to compare."""
        if self._part is None:
            raise InvalidMessageError("there is no replica here that could be compared")

    def drop_part(self) -> None:
        """Forget the part, if there is one: the master sends a new snapshot."""
        if self._part is not None:
            self._part = None
            self._membership.on_new_snapshot()

    def compare_part(self, position: int) -> Sequence[int] | None:
        """Return which blocks of the part differ, once it has all of the log that the master had.

        None if there is nothing to compare, or not yet. `position` is how far the log is here.
        """
        resync, part = self.resync, self._part
        if resync is None or part is None or resync.is_asked:
            return None
        if position < resync.blocks.position:
            return None
        return self._membership.on_partial_replica(part, resync.blocks)

    def take_completed_part(self, blocks: Mapping[int, bytes]) -> memoryview:
        """Return the part and forget it, filled with the blocks, by number, that it lacked."""
        assert self._part is not None
        values, self._part = self._part, None
        return fill(values, blocks)
