"""`Resync`: blocks of the replica on their way to a worker that compares its own with the master's.

The master says the digest of every block (BLOCKS), the training thread finds out which differ, and
these are asked for (WANT) and come. Nothing of that outlives the connection.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradwire_codecs.arrays import UInt64Array
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.records import DIGEST_BYTES, Blocks, Snapshot
from gradwire_protocol.messages.snapshots import ELEMENT_BYTES, BlockAssembly, count_blocks, span_of


@dataclass(frozen=True, slots=True)
class Rebase:
    """Blocks of the master's replica in place of the worker's own."""

    blocks: Blocks
    """What the worker compared its replica with."""
    values: Mapping[int, bytes]
    """By number, the blocks that differ: little-endian int32."""
    missed: bool
    """Whether they differ because of updates that the worker has missed, and that are in its
    replica from now on; else because of damage."""


class Resync:
    """One comparison.

    Parameters
    ----------
    blocks : Blocks
        What the master says.
    elements : int
        Length of the replica.
    missed : bool
        Whether it is because of missed updates, and not because of damage.

    Raises
    ------
    InvalidMessageError
        If it says something about another number of blocks.
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

    def add(self, block: Snapshot) -> bool:
        """Take a block; return whether all are here.

        Raises
        ------
        InvalidMessageError
            If it was not asked for.
        """
        if self._assembly is None:
            raise InvalidMessageError("a block of the replica that was not asked for")
        return self._assembly.add(block)

    @property
    def is_asked(self) -> bool:
        """Whether it is known which blocks differ."""
        return self._assembly is not None

    @property
    def rebase(self) -> Rebase:
        """What came of it."""
        values = {} if self._assembly is None else self._assembly.values
        return Rebase(self.blocks, values, self.missed)


def fill(replica: memoryview, blocks: Mapping[int, bytes]) -> memoryview:
    """Put blocks, by number, into their places; return the replica."""
    for number, values in blocks.items():
        start = ELEMENT_BYTES * span_of(number, len(replica) // ELEMENT_BYTES).start
        replica[start : start + len(values)] = values
    return replica


def digests_in(blocks: Blocks) -> UInt64Array:
    """Return the digests that the master says its blocks have."""
    return np.frombuffer(blocks.digests, "<u8").astype(np.uint64, copy=False)
