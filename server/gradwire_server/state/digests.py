"""`Digests`: the digests that replicas must have, computed from the updates alone.

The digest of a sum is the sum of the digests. So the digest of every block follows from the block
at the beginning of the run and from the updates since, without reading the replica: it stays right
even when the replica itself is damaged. A worker's replica may contain other updates than the
master's. For its digest, the digests of each rank's updates are added up, and the latest sums are
kept.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from gradwire_codecs import BlockDigests, Update
from gradwire_codecs.arrays import Int32Array, UInt64Array
from gradwire_protocol.messages.snapshots import block_span

HISTORY: Final = 2**12
"""How many updates of each rank a worker may lack and still be checked: forty seconds of a hundred
a second. 8 bytes each are 32 KiB for a rank, and 2 MiB for 56 workers."""

MODULUS: Final = 2**64


class _Sums:
    """Running sums of the digests of one rank's updates, from the one after `first` on."""

    def __init__(self, first: int) -> None:
        self._first = self._last = first
        self.total = 0
        """Sum of all digests so far, modulo 2^64."""
        self._sums: UInt64Array = np.zeros(HISTORY, np.uint64)

    def add(self, sequence: int, digest: int) -> None:
        """Add the digest of the next update."""
        assert sequence == self._last + 1
        self._last = sequence
        self.total = (self.total + digest) % MODULUS
        self._sums[sequence % HISTORY] = self.total

    def up_to(self, sequence: int) -> int | None:
        """Return the sum up to an update; None where it is no longer, or not yet, known."""
        if not max(self._first, self._last - HISTORY + 1) <= sequence <= self._last:
            return None
        return int(self._sums[sequence % HISTORY]) if sequence > self._first else 0


class Digests:
    """The digests that the replicas of one run must have.

    Parameters
    ----------
    values : ndarray of shape (N,), dtype int32
        The replica as it is now.
    versions : mapping
        By rank, the last update that it contains.
    """

    def __init__(self, values: Int32Array, versions: Mapping[int, int]) -> None:
        self.blocks = BlockDigests.of(values, block_span(0, len(values)).stop)
        """The digest that each block of the master's replica must have."""
        self._first = self.blocks.whole
        self._ranks = {rank: _Sums(sequence) for rank, sequence in versions.items()}

    def add(self, rank: int, sequence: int, update: Update) -> None:
        """Add an update of the replica, in the form in which all workers receive it."""
        before = self.blocks.whole
        self.blocks.add(update)
        if rank not in self._ranks:
            self._ranks[rank] = _Sums(0)
        self._ranks[rank].add(sequence, (self.blocks.whole - before) % MODULUS)

    def skip_to(self, rank: int, sequence: int) -> None:
        """Skip lost updates of a rank, up to this one."""
        if rank in self._ranks:
            self._first = (self._first + self._ranks[rank].total) % MODULUS
        self._ranks[rank] = _Sums(sequence)

    def at(self, versions: Mapping[int, int]) -> int | None:
        """Return the digest that a replica with these updates must have.

        None where that is no longer, or not yet, known.
        """
        if any(sequence for rank, sequence in versions.items() if rank not in self._ranks):
            return None
        whole = self._first
        for rank, sums in self._ranks.items():
            total = sums.up_to(versions.get(rank, 0))
            if total is None:
                return None
            whole += total
        return whole % MODULUS
