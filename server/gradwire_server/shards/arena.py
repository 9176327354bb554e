"""`Arena`: shared memory, in which one process stores payloads for the others.

Each process has an arena. Only its owner allocates in it, so no lock is needed; a process that
receives a record with a place copies the payload and then says so. `Room` allocates.

An arena is a file without a name: it takes memory only for pages that were written, and disappears
with the last process that has it. Payloads are stored as low as possible, so that the same pages
are used again.
"""

import mmap
import os
from bisect import bisect_left
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol import ShapedMessage
from gradwire_protocol.delivery.shaped_message import HEADERS_BYTES, Payload
from gradwire_protocol.limits import KIB, MIB

ARENA_BYTES: Final = 64 * MIB
"""Size of each arena: enough for the payloads under way while no process is slow. A payload that
does not fit is sent in its record instead, which takes longer."""

GRAIN_BYTES: Final = 4 * KIB
"""Payloads take whole pages, so that no gaps are left that only smaller ones could fill."""

Bytes: TypeAlias = NDArray[np.uint8]


class Room:
    """A first-fit allocator for the bytes of an arena."""

    def __init__(self, size: int) -> None:
        # The gaps, in order; no two of them touch.
        self._starts = [0] if size else []
        self._stops = [size] if size else []
        self._taken: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the number of allocations."""
        return len(self._taken)

    def allocate(self, size: int) -> int | None:
        """Allocate bytes and return their offset; None if no gap is large enough."""
        assert size > 0
        size = -(-size // GRAIN_BYTES) * GRAIN_BYTES
        for index, (start, stop) in enumerate(zip(self._starts, self._stops, strict=True)):
            if stop - start == size:
                del self._starts[index], self._stops[index]
            elif stop - start > size:
                self._starts[index] += size
            else:
                continue
            self._taken[start] = start + size
            return start
        return None

    def free(self, start: int) -> None:
        """Free the allocation at an offset."""
        stop = self._taken.pop(start)
        starts, stops = self._starts, self._stops
        index = bisect_left(starts, start)
        after = index < len(starts) and starts[index] == stop
        before = index > 0 and stops[index - 1] == start
        if before and after:
            stops[index - 1] = stops.pop(index)
            del starts[index]
        elif before:
            stops[index - 1] = stop
        elif after:
            starts[index] = start
        else:
            starts.insert(index, start)
            stops.insert(index, stop)


class Arena:
    """The shared memory that one process owns.

    Parameters
    ----------
    descriptor : int
        Of the file, from `new_file`. The caller still owns it, and may close it.
    """

    def __init__(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        self.room = Room(size)
        """Used only in the process that owns the arena."""
        self._bytes: Bytes = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)

    @staticmethod
    def new_file(name: str, size: int = ARENA_BYTES) -> int:
        """Return the descriptor of a new file; each process that has it can map the arena."""
        descriptor = os.memfd_create(name)
        os.truncate(descriptor, size)
        return descriptor

    def store(self, content: ShapedMessage | Payload) -> int | None:
        """Store a payload, or that of a message; return its offset, or None without room."""
        size = size_of(content)
        start = self.room.allocate(size)
        if start is None:
            return None
        target = self._bytes[start : start + size]
        if isinstance(content, ShapedMessage):
            _copy_payload(content, target)
        else:
            target[:] = np.frombuffer(content, np.uint8)
        return start

    def at(self, start: int, size: int) -> memoryview:
        """Return a view of the bytes at an offset."""
        return self._bytes[start : start + size].data


def size_of(content: ShapedMessage | Payload) -> int:
    """Return the size in bytes of a payload, or of that of a message."""
    if isinstance(content, ShapedMessage):
        return content.total
    return memoryview(content).nbytes


def _copy_payload(message: ShapedMessage, target: Bytes) -> None:
    """Copy the payload of a message, which lies in one row for each fragment."""
    whole, size = message.count - 1, message.fragment_bytes
    if whole:
        columns = message.rows[:whole, HEADERS_BYTES : HEADERS_BYTES + size]
        target[: whole * size].reshape(whole, size)[:] = columns
    target[whole * size :] = message.payload_of(whole)
