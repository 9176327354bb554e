"""`ReplicaCopy`: the replica as it was at one moment, for whoever is sent all or some of it."""

import logging
from collections.abc import Iterator, Mapping

from gradwire_codecs import digest_of, pack_block, unflip
from gradwire_codecs.arrays import Int32Array, UInt64Array
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.replicas import Blocks
from gradwire_protocol.messages.snapshots import block_span, count_blocks

logger = logging.getLogger("gradwire.master")


class ReplicaCopy:
    """A copy of the replica that does not change any more.

    Shared by all who are let in at the same moment, and gone with the last of them.

    Parameters
    ----------
    values : ndarray of shape (N,), dtype int32
        Taken over.
    versions : mapping
        What it contains; taken over.
    digests : ndarray of shape (blocks,), dtype uint64
        What every block has to be; taken over.
    layout : Layout
        Names the parameters.
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
        """Return of how many blocks it is."""
        return count_blocks(len(self._values))

    def __iter__(self) -> Iterator[int]:
        """Iterate over their numbers."""
        return iter(range(len(self)))

    def block(self, number: int) -> bytes:
        """Return a block as it travels.

        A bit of it that is wrong is turned back.
        """
        block = self._values[block_span(number, len(self._values))]
        check_block(block, number, self._digests, self._layout)
        return pack_block(block)

    @property
    def blocks(self) -> Blocks:
        """What there is to compare with."""
        return Blocks(self.versions, self._digests.astype("<u8").tobytes())


def check_block(
    block: Int32Array, number: int, digests: UInt64Array, layout: Layout
) -> bool | None:
    """Compare a block of the replica with its digest, and turn back a bit that is wrong.

    Parameters
    ----------
    block : ndarray of shape (n,), dtype int32
        A view of the replica, or of a copy.
    number : int
        Which block it is.
    digests : ndarray of shape (blocks,), dtype uint64
        What every block has to be.

    Returns
    -------
    bool or None
        None where it is what it has to be, and else whether it is again.
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
            "bit of it is wrong: this machine's memory was damaged. Start the master anew on "
            "another one: it gets the run back from its workers",
            number,
            first,
            last,
        )
        return False
    logger.error(
        "a bit of the replica was wrong in %s, and was turned back: this machine's memory was "
        "damaged",
        layout.locate(element),
    )
    return True
