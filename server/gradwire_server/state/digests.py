"""`Digests`: the digests that replicas must have, computed from the updates alone.

The digest of a sum is the sum of the digests. So the digest of every block follows from the block
at the beginning of the run and from the updates since, without reading the replica: it stays right
even when the replica itself is damaged. A worker's replica may be at an earlier position of the log
than the master's. So the latest digests are kept.
"""

from typing import Final

from gradwire_codecs import BlockDigests, Update
from gradwire_codecs.arrays import Int32Array
from gradwire_protocol.messages.snapshots import block_span

HISTORY: Final = 2**14
"""How many updates a worker may lack and still be checked: sixteen seconds of a thousand a second.
They take 1.5 MB."""


class Digests:
    """The digests that the replicas of one run must have.

    Parameters
    ----------
    values : ndarray of shape (N,), dtype int32
        The replica as it is now.
    position : int
        Of the log, that it has.
    """

    def __init__(self, values: Int32Array, position: int) -> None:
        self.blocks = BlockDigests.of(values, block_span(0, len(values)).stop)
        """The digest that each block of the master's replica must have."""
        self._at = {position: self.blocks.whole}

    def add(self, update: Update, position: int) -> None:
        """Add an update of the replica, or several as a sum, which takes it to a position."""
        self.blocks.add(update)
        self._at[position] = self.blocks.whole
        while len(self._at) > HISTORY:
            del self._at[next(iter(self._at))]

    def at(self, position: int) -> int | None:
        """Return the digest that a replica must have at a position.

        None where that is no longer, or not yet, known.
        """
        return self._at.get(position)
