"""Snapshots: a whole replica or some of its blocks under way.

A snapshot goes from the first worker to the master when a run begins, and from the master to every
later worker. A worker whose replica differs receives only the blocks that do. A replica is a buffer
of little-endian int32 here and is not interpreted; the codec packs and unpacks blocks.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from gradwire_protocol.delivery.shaped_message import Payload
from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.messages.fields import BLOCK_ELEMENTS
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.replicas import Snapshot

ELEMENT_BYTES: Final = 4

BLOCKS_UNDER_WAY_MAX: Final = 8
"""Blocks of up to 1 MB handed to a connection: enough for 1 Gbit/s over 50 ms. With more, a peer's
credit would not suffice for updates beside them."""

BLOCKS_AT_ONCE: Final = 2
"""Blocks packed one after the other. Packing one takes 2 ms, in which nothing else is done."""


def count_blocks(elements: int) -> int:
    """Return the number of blocks of a replica."""
    return -(-elements // BLOCK_ELEMENTS)


def block_span(number: int, elements: int) -> slice:
    """Return the elements of a replica in a block."""
    start = number * BLOCK_ELEMENTS
    return slice(start, min(start + BLOCK_ELEMENTS, elements))


def expand_block(block: Snapshot, elements: int, unpack: Callable[[bytes, int], bytes]) -> Snapshot:
    """Return a received block with unpacked elements, if it has a place in the replica.

    Parameters
    ----------
    unpack : callable
        Called with the packed values and the number of elements; raises `ValueError`.

    Raises
    ------
    InvalidMessageError
        If the values are no block of this replica.
    """
    if block.start % BLOCK_ELEMENTS or block.start >= elements:
        return block  # `accept_block` refuses it with the reason
    span = block_span(block.start // BLOCK_ELEMENTS, elements)
    try:
        return replace(block, values=unpack(block.values, span.stop - span.start))
    except ValueError as error:
        raise InvalidMessageError(f"Snapshot: {error}") from None


class SnapshotFeed:
    """Sends the blocks of a snapshot, a few at a time.

    Parameters
    ----------
    block : callable
        Returns the packed block with a number. All blocks have to be of one moment.
    """

    def __init__(self, block: Callable[[int], Payload], numbers: Iterable[int], link: Link) -> None:
        self._block = block
        self._numbers: Iterator[int] = iter(numbers)
        self._link = link
        self._under_way = 0
        self._send()

    @property
    def nbytes(self) -> int:
        """Most bytes that the blocks under way can take."""
        return self._under_way * Snapshot.BYTES_MAX

    @classmethod
    def of_replica(
        cls, values: Payload, link: Link, pack: Callable[[memoryview], Payload] = memoryview
    ) -> "SnapshotFeed":
        """Send a whole replica; `pack` may pack each block into fewer bytes."""
        whole = memoryview(values).cast("B").cast("i")
        numbers = range(count_blocks(len(whole)))
        return cls(lambda number: pack(whole[block_span(number, len(whole))]), numbers, link)

    def on_delivered(self) -> bool:
        """Send the next blocks after one has arrived; return whether all have arrived."""
        self._under_way -= 1
        self._send()
        return not self._under_way

    def _send(self) -> None:
        """Send a few blocks, if there is room for them."""
        room = min(BLOCKS_AT_ONCE, BLOCKS_UNDER_WAY_MAX - self._under_way)
        for number in islice(self._numbers, room):
            values = memoryview(self._block(number)).tobytes()
            self._link.send_block(Snapshot(number * BLOCK_ELEMENTS, values))
            self._under_way += 1


class BlockAssembly:
    """Collects the blocks with these numbers, of a replica of `elements` elements."""

    def __init__(self, elements: int, numbers: Iterable[int]) -> None:
        self._elements = elements
        self._wanted = set(numbers)
        self.values: dict[int, bytes] = {}
        """By number: the values received."""

    def accept_block(self, block: Snapshot) -> bool:
        """Store a block; return whether all have arrived.

        Raises
        ------
        InvalidMessageError
            If the block does not fit this replica or was not asked for.
        """
        number = _block_number(block, self._elements)
        if number not in self._wanted:
            raise InvalidMessageError(f"the peer sent block {number}, which was not asked for")
        self.values.setdefault(number, block.values)
        return len(self.values) == len(self._wanted)


class SnapshotAssembly:
    """Puts the blocks of a snapshot together.

    The blocks lie on the grid of a `SnapshotFeed`: each begins at a multiple of `BLOCK_ELEMENTS`,
    and only the last one is shorter. So a peer cannot make the bookkeeping larger than the replica.
    """

    def __init__(self, elements: int) -> None:
        self.elements = elements
        # Unlike a bytearray, zeros take no memory for pages that are not yet written.
        self.values = np.zeros(ELEMENT_BYTES * elements, np.uint8).data
        self.elements_received = 0
        """Elements of the replica received so far."""
        self._received = set[int]()

    def restart(self) -> None:
        """Forget all blocks and wait for them again, perhaps from another sender."""
        for start in self._received:  # clears only what was written
            block = self.values[ELEMENT_BYTES * start :][: ELEMENT_BYTES * BLOCK_ELEMENTS]
            block[:] = bytes(len(block))
        self.elements_received = 0
        self._received.clear()

    def accept_block(self, block: Snapshot) -> bool:
        """Store a block; return whether the replica is complete.

        Raises
        ------
        InvalidMessageError
            If the block does not fit this replica.
        """
        _block_number(block, self.elements)
        if block.start not in self._received:
            self._received.add(block.start)
            at = ELEMENT_BYTES * block.start
            self.values[at : at + len(block.values)] = block.values
            self.elements_received += len(block.values) // ELEMENT_BYTES
        return self.is_complete

    @property
    def is_complete(self) -> bool:
        """Whether all blocks have arrived."""
        return self.elements_received == self.elements


def _block_number(block: Snapshot, elements: int) -> int:
    """Return the number of a block, or raise `InvalidMessageError` if it does not fit."""
    size, rest = divmod(len(block.values), ELEMENT_BYTES)
    where = f"Snapshot: {len(block.values)} bytes from element {block.start} on"
    if rest or block.start + size > elements:
        raise InvalidMessageError(f"{where}; the replica has {elements} elements")
    if block.start % BLOCK_ELEMENTS or size != min(BLOCK_ELEMENTS, elements - block.start):
        raise InvalidMessageError(f"{where}; it is cut into blocks of {BLOCK_ELEMENTS} elements")
    return block.start // BLOCK_ELEMENTS
