"""`ReplicaCopy`: the replica at one moment, for members that are sent blocks of it."""

import logging
from collections.abc import Iterator, Mapping

from gradwire_codecs import digest_of, pack_block, unflip
from gradwire_codecs.arrays import Int32Array, UInt64Array
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.replicas import Blocks
from gradwire_protocol.messages.snapshots import block_span, count_blocks

logger = logging.getLogger("gradwire.master")


class ReplicaCopy:
    """An immutable copy of the replica, which takes ownership of all its arguments.

    All members that need a copy of the same moment share it.

    Parameters
    ----------
    values : ndarray of shape (N,), dtype int32
    versions : mapping
        By rank, the last update in it.
    digests : ndarray of shape (blocks,), dtype uint64
        The digest that each block must have.
    """

    def __init__(
        self,
        values: Int32Array,
        versions: Mapping[int, int],
        digests: UInt64Array,
        layout: Layout,
    ) -> None:
        self.versions = versions
        self._values = values
        self._digests = digests
        self._layout = layout

    def __len__(self) -> int:
        """Return the number of blocks."""
        return count_blocks(len(self._values))

    def __iter__(self) -> Iterator[int]:
        """Iterate over the numbers of the blocks."""
        return iter(range(len(self)))

    def block(self, number: int) -> bytes:
        """Return a block in its wire format, after flipping back a single wrong bit in it."""
        block = self._values[block_span(number, len(self._values))]
        check_block(block, number, self._digests, self._layout)
        return pack_block(block)

    @property
    def blocks(self) -> Blocks:
        """The message with the digests of all blocks."""
        return Blocks(self.versions, self._digests.astype("<u8").tobytes())


def check_block(
    block: Int32Array, number: int, digests: UInt64Array, layout: Layout
) -> bool | None:
    """Compare a block of the replica with its digest, and flip back a single wrong bit.

    Parameters
    ----------
    block : ndarray of shape (n,), dtype int32
        A view of the replica, or of a copy; a wrong bit is corrected in it.
    digests : ndarray of shape (blocks,), dtype uint64
        The digest that each block must have.

    Returns
    -------
    bool or None
        None where the block was intact; else whether it is correct now.
    """
    start = block_span(number, layout.elements).start
    digest = int(digests[number])
    if digest_of(block, start) == digest:
        return None
    element = unflip(block, start, digest)
    if element is None:
        first, last = layout.locate(start), layout.locate(start + len(block) - 1)
        logger.error(
            "block %d of the replica (%s to %s) is not what the updates lead to, and more than one "
            "bit of it is wrong: this machine's memory was damaged. Start the master on another "
            "machine, without --resume: it recovers the run from its workers",
            number,
            first,
            last,
        )
        return False
    logger.error(
        "a bit of the replica was wrong in %s, and was flipped back: this machine's memory was "
        "damaged",
        layout.locate(element),
    )
    return True
