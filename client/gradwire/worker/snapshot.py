"""`ArrivingReplica`: the replica on its way to a worker.

It comes as a snapshot. If the connection is lost meanwhile, what has come of it is a *part*, which
is compared with the master's replica over the next connection. A worker that has taken part
compares its own. Either way only the blocks come that differ.
"""

from collections.abc import Callable, Mapping, Sequence

from gradwire.worker.listener import Listener
from gradwire.worker.resync import Resync, fill
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.records import Blocks, Snapshot
from gradwire_protocol.messages.snapshots import SnapshotAssembly


class ArrivingReplica:
    """What has come of a replica.

    Parameters
    ----------
    elements : int
        Its length.
    listener : Listener
        Is told how far it has come, and asked to compare a part.
    """

    def __init__(self, elements: int, listener: Listener) -> None:
        self.resync: Resync | None = None
        """While a replica is compared with the master's."""
        self._elements = elements
        self._listener = listener
        self._assembly: SnapshotAssembly | None = None
        self._part: memoryview | None = None
        """What there is of a replica that was coming when the connection was lost."""

    def start_over(self, *, keep: bool) -> None:
        """Note that the connection is lost.

        Parameters
        ----------
        keep : bool
            Whether what has come is wanted over the next one.
        """
        if keep and self._part is None:
            self._part = (self._assembly or SnapshotAssembly(self._elements)).values
        elif keep and self._part is not None and self.resync is not None:
            fill(self._part, self.resync.rebase.values)
        self._assembly = self.resync = None

    # A whole one.

    def add(self, block: Snapshot) -> None:
        """Take a block of a snapshot."""
        if self._assembly is None:
            self._assembly = SnapshotAssembly(self._elements)
        self._assembly.add(block)
        self._listener.on_snapshot_progress(self._assembly.elements_received)

    def take(self) -> memoryview | None:
        """Give the snapshot away, if all of it is here."""
        assembly = self._assembly
        if assembly is None or not assembly.is_complete:
            return None
        self._assembly = None
        return assembly.values

    # What differs.

    def check_has_part(self) -> None:
        """Refuse a comparison where there is nothing to compare.

        Raises
        ------
        InvalidMessageError
            Then.
        """
        if self._part is None:
            raise InvalidMessageError("there is no replica here that could be compared")

    def drop_part(self) -> None:
        """Forget the part, if there is one: the master begins anew with a snapshot."""
        if self._part is not None:
            self._part = None
            self._listener.on_anew()

    def compare(self, blocks: Blocks, *, missed: bool) -> None:
        """Begin a comparison; see `Resync`."""
        self.resync = Resync(blocks, self._elements, missed=missed)

    def compare_part(self, reached: Callable[[int], int], rank: int) -> Sequence[int] | None:
        """Compare the part, when the updates are here which the master's replica contains.

        Parameters
        ----------
        reached : callable
            Told a rank, returns up to where its updates are here.
        rank : int
            Our own, which has none yet.

        Returns
        -------
        sequence of int or None
            Which blocks differ; None where there is nothing to compare, or not yet.
        """
        resync, part = self.resync, self._part
        if resync is None or part is None or resync.is_asked:
            return None
        if any(
            reached(other) < sequence
            for other, sequence in resync.blocks.versions.items()
            if other != rank
        ):
            return None
        return self._listener.on_part(part, resync.blocks)

    def take_filled(self, blocks: Mapping[int, bytes]) -> memoryview:
        """Give the part away, with the blocks, by number, that were missing of it."""
        assert self._part is not None
        values, self._part = self._part, None
        return fill(values, blocks)
