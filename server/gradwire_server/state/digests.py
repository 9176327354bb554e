"""`Digests`: what a replica has to be, by its updates alone, now and at version vectors of late.

The digest of a sum is the sum of the digests. So what every block of the replica has to be follows
from what it was when the run began and from the updates since, and nobody has to look at it: it
stays right also when the replica itself is damaged. And what a worker's replica has to be, that
contains other updates than the master's, is as easily told: the digests of each rank's updates are
added up, and for the last ones the sums are kept.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from gradwire_codecs import BlockDigests, Update
from gradwire_codecs.arrays import Int32Array, UInt64Array
from gradwire_protocol.messages.snapshots import block_span

HISTORY: Final = 2**12
"""Updates of each rank that a worker may be behind with and still be checked: forty seconds of a
hundred a second. 8 bytes each are 32 KiB for a rank, and 2 MiB for 56 workers."""

MODULUS: Final = 2**64


class _Sums:
    """The digests of one rank's updates, added up.

    Parameters
    ----------
    first : int
        The sequence from which on they are added up.
    """

    def __init__(self, first: int) -> None:
        self._first = self._last = first
        self.total = 0
        """Of all of them."""
        self._sums: UInt64Array = np.zeros(HISTORY, np.uint64)

    def add(self, sequence: int, digest: int) -> None:
        """Add the digest of the next update."""
        assert sequence == self._last + 1
        self._last = sequence
        self.total = (self.total + digest) % MODULUS
        self._sums[sequence % HISTORY] = self.total

    def up_to(self, sequence: int) -> int | None:
        """Return the sum up to an update; None where it is not kept."""
        if not max(self._first, self._last - HISTORY + 1) <= sequence <= self._last:
            return None
        return int(self._sums[sequence % HISTORY]) if sequence > self._first else 0


class Digests:
    """The digests of one run's replica.

    Parameters
    ----------
    values : ndarray of shape (N,), dtype int32
        The replica as it is now.
    versions : mapping
        What it contains.
    """

    def __init__(self, values: Int32Array, versions: Mapping[int, int]) -> None:
        self.blocks = BlockDigests.of(values, block_span(0, len(values)).stop)
        """What every block has to be."""
        self._first = self.blocks.whole
        self._ranks = {rank: _Sums(sequence) for rank, sequence in versions.items()}

    def add(self, rank: int, sequence: int, update: Update) -> None:
        """Follow an update of the replica, as all workers get it."""
        before = self.blocks.whole
        self.blocks.add(update)
        if rank not in self._ranks:
            self._ranks[rank] = _Sums(0)
        self._ranks[rank].add(sequence, (self.blocks.whole - before) % MODULUS)

    def skip_to(self, rank: int, sequence: int) -> None:
        """Go on behind updates that are not in the replica, up to this one."""
        if rank in self._ranks:
            self._first = (self._first + self._ranks[rank].total) % MODULUS
        self._ranks[rank] = _Sums(sequence)

    def at(self, versions: Mapping[int, int]) -> int | None:
        """Return what the digest of a replica has to be that contains these updates.

        None where that is not known any more, or not yet.
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
