"""`ReplicaCopy`: the replica at one moment, for members that are sent blocks of it.

A replica of hundreds of megabytes takes a tenth of a second to copy, and longer if the system has
to provide the memory first. Updates would wait for that. So a copy is made block by block, while
updates go on changing the replica: updates add integers, so those since that moment can be
subtracted from a block exactly.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from gradwire_codecs import Update, digest_of, pack_block
from gradwire_codecs.arrays import Int32Array, UInt64Array
from gradwire_codecs.format.update import DenseUpdate
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.replicas import Blocks
from gradwire_protocol.messages.snapshots import block_span, count_blocks

logger = logging.getLogger("gradwire.master")

UPDATES_MAX: Final = 64
"""A copy is complete after this many updates at most: until then it keeps the hits of each."""

KEPT_SHARE: Final = 0.25
"""Most bytes of updates that are kept, as a share of the bytes copied."""

HIT_BYTES: Final = 12
"""Position, count and change."""


class ReplicaCopy:
    """An immutable copy of the replica.

    All members that need a copy of the same moment share it.

    Parameters
    ----------
    replica : ndarray of shape (N,), dtype int32
        Goes on changing; `on_update` is called after every update.
    position : int
        Of the log, that the copy has.
    versions : mapping
        By rank, the last update in the copy.
    digests : ndarray of shape (blocks,), dtype uint64
        The digest that each block must have. Kept, not copied: they must not change.
    """

    def __init__(
        self,
        replica: Int32Array,
        position: int,
        versions: Mapping[int, int],
        digests: UInt64Array,
        layout: Layout,
    ) -> None:
        self.position = position
        self.versions = versions
        self._replica = replica
        self._values = np.empty_like(replica)  # takes no memory until it is written to
        self._digests = digests
        self._layout = layout
        self._missing = dict.fromkeys(range(len(self)))
        """An ordered set: the numbers of the blocks that are not copied."""
        self._since: list[Update] = []
        """The updates that the replica contains and the copy does not, while blocks are missing."""
        self._kept_bytes = self._copied_bytes = 0
        """Of those updates, and of the blocks that are copied."""

    def __len__(self) -> int:
        """Return the number of blocks."""
        return count_blocks(len(self._values))

    def __iter__(self) -> Iterator[int]:
        """Iterate over the numbers of the blocks."""
        return iter(range(len(self)))

    @property
    def is_complete(self) -> bool:
        """Whether all blocks are copied, so that updates to the replica do not matter any more."""
        return not self._missing

    def on_update(self, update: Update) -> None:
        """Note an update that the replica now contains, and copy some more blocks."""
        if self.is_complete:
            return
        self._since.append(update)
        held = update.length if isinstance(update, DenseUpdate) else 0
        self._kept_bytes += max(HIT_BYTES * update.hits, held)
        for _ in range(-(-len(self) // UPDATES_MAX)):
            self._copy_next()
        while self._missing and self._kept_bytes > KEPT_SHARE * self._copied_bytes:
            self._copy_next()

    def block(self, number: int) -> bytes:
        """Return a block in its wire format."""
        if number in self._missing:
            self._copy(number)
        block = self._values[block_span(number, len(self._values))]
        check_block(block, number, self._digests, self._layout)
        return pack_block(block)

    @property
    def blocks(self) -> Blocks:
        """The message with the digests of all blocks."""
        return Blocks(self.position, self.versions, self._digests.astype("<u8").tobytes())

    def _copy_next(self) -> None:
        number = next(iter(self._missing), None)
        if number is not None:
            self._copy(number)

    def _copy(self, number: int) -> None:
        """Copy a block, and subtract the updates since."""
        span = block_span(number, len(self._values))
        block = self._values[span]
        block[:] = self._replica[span]
        for update in self._since:
            start, stop = max(update.start, span.start), min(update.stop, span.stop)
            if start < stop:
                part = update.within(start, stop)
                block[part.index - np.uint32(span.start)] -= part.change
        self._copied_bytes += block.nbytes
        del self._missing[number]
        if self.is_complete:
            self._since.clear()


def check_block(block: Int32Array, number: int, digests: UInt64Array, layout: Layout) -> None:
    """Say so if a block of the replica is not what the updates lead to.

    Parameters
    ----------
    block : ndarray of shape (n,), dtype int32
    digests : ndarray of shape (blocks,), dtype uint64
        The digest that each block must have.
    """
    start = block_span(number, layout.elements).start
    if digest_of(block, start) != int(digests[number]):
        logger.error(
            "block %d of the replica (%s to %s) is not what the updates lead to: this machine's "
            "memory was damaged. Start the master on another machine, without --resume: it "
            "recovers the run from its workers",
            number,
            layout.locate(start),
            layout.locate(start + len(block) - 1),
        )
