"""Snapshots: a whole replica on its way, in blocks.

From the first worker to the master, when a run begins, and from the master to every later worker.
A replica is a buffer of little-endian int32 here; nobody looks inside.
"""

from collections.abc import Iterator
from typing import Final

from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.link import Link
from gradwire_protocol.messages import BLOCK_ELEMENTS, Snapshot
from gradwire_protocol.shaped import Payload

ELEMENT_BYTES: Final = 4

BLOCKS_UNDER_WAY_MAX: Final = 4
"""Blocks handed to a connection at once: enough to fill it, and no second copy of the replica."""


class SnapshotFeed:
    """Sends the blocks of a snapshot, a few at a time.

    Parameters
    ----------
    values : bytes-like
        The replica. It must not change any more.
    link : Link
        Where to.
    """

    def __init__(self, values: Payload, link: Link) -> None:
        self._values = memoryview(values).cast("B")
        self._link = link
        self._starts: Iterator[int] = iter(
            range(0, len(self._values) // ELEMENT_BYTES, BLOCK_ELEMENTS)
        )
        self._under_way = 0
        while self._under_way < BLOCKS_UNDER_WAY_MAX and self._send():
            pass

    def on_delivered(self) -> bool:
        """Send the next block in place of one that arrived; return whether all have arrived."""
        self._under_way -= 1
        return not self._send() and not self._under_way

    def _send(self) -> bool:
        start = next(self._starts, None)
        if start is None:
            return False
        values = self._values[ELEMENT_BYTES * start : ELEMENT_BYTES * (start + BLOCK_ELEMENTS)]
        self._link.send_block(Snapshot(start, bytes(values)))
        self._under_way += 1
        return True


class SnapshotAssembly:
    """Puts the blocks of a snapshot together.

    They lie on a grid, as a `SnapshotFeed` cuts them: each begins at a multiple of
    `BLOCK_ELEMENTS`, and only the last one is shorter. So a peer cannot make the bookkeeping
    larger than the replica.

    Parameters
    ----------
    elements : int
        Length of the replica.
    """

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self.values = bytearray(ELEMENT_BYTES * elements)
        self.elements_received = 0
        """How much of the replica is there."""
        self._received = set[int]()

    def begin_again(self) -> None:
        """Wait for all blocks anew, of another sender perhaps."""
        for start in self._received:  # no more work than it was to put them there
            block = memoryview(self.values)[ELEMENT_BYTES * start :][
                : ELEMENT_BYTES * BLOCK_ELEMENTS
            ]
            block[:] = bytes(len(block))
        self.elements_received = 0
        self._received.clear()

    def add(self, block: Snapshot) -> bool:
        """Put a block in its place; return whether the replica is complete.

        Raises
        ------
        InvalidMessageError
            If the block is none of this replica's.
        """
        size, rest = divmod(len(block.values), ELEMENT_BYTES)
        where = f"Snapshot: {len(block.values)} bytes from element {block.start} on"
        if rest or block.start + size > self.elements:
            raise InvalidMessageError(f"{where}; the replica has {self.elements} elements")
        if block.start % BLOCK_ELEMENTS or size != min(BLOCK_ELEMENTS, self.elements - block.start):
            raise InvalidMessageError(
                f"{where}; it is cut into blocks of {BLOCK_ELEMENTS} elements"
            )
        if block.start not in self._received:
            self._received.add(block.start)
            at = ELEMENT_BYTES * block.start
            self.values[at : at + len(block.values)] = block.values
            self.elements_received += size
        return self.elements_received == self.elements
