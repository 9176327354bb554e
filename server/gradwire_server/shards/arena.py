"""`Arena`: memory that all processes see, in which one of them puts payloads for the others.

There is one arena for each process. Only its owner decides what lies where, so no lock is needed;
who reads a record that names a place copies what is there and says so. `Room` keeps the books.

An arena is a file without a name: it takes memory only where something was ever written, and is
gone with the last process that has it. Payloads lie as low in it as they can, so that the same
pages are used again and again.
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
"""Of each process. What finds no room travels in its record instead, which takes longer; so it is
no matter of being right or wrong, and holds what is on its way while nobody is behind."""

GRAIN_BYTES: Final = 4 * KIB
"""A payload takes whole pages, and leaves no gaps that only a smaller one could fill."""

Bytes: TypeAlias = NDArray[np.uint8]


class Room:
    """Which parts of an arena are taken: the lowest that is large enough is taken first.

    Parameters
    ----------
    size : int
        Bytes of it all.
    """

    def __init__(self, size: int) -> None:
        # Gaps, by their place; no two of them touch.
        self._starts = [0] if size else []
        self._stops = [size] if size else []
        self._taken: dict[int, int] = {}

    def __len__(self) -> int:
        """Return how many parts are taken."""
        return len(self._taken)

    def allocate(self, size: int) -> int | None:
        """Return where so many bytes are from now on taken; None if there is no such gap."""
        size = _grains(size)
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
        """Give back what was taken at a place."""
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
    """Shared memory of one process.

    Parameters
    ----------
    descriptor : int
        Of the file, from `new_file`; it can be closed after this.
    """

    def __init__(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        self.room = Room(size)
        """Kept by the owner only."""
        self._bytes: Bytes = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)

    @staticmethod
    def new_file(name: str, size: int = ARENA_BYTES) -> int:
        """Return the descriptor of a new file to make arenas of, in every process that has it."""
        descriptor = os.memfd_create(name)
        os.truncate(descriptor, size)
        return descriptor

    def store(self, content: ShapedMessage | Payload) -> int | None:
        """Put a payload, or that of a message, somewhere; return where, or None without room."""
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
        """Return what lies at a place."""
        return self._bytes[start : start + size].data


def size_of(content: ShapedMessage | Payload) -> int:
    """Return the bytes of a payload, or of that of a message."""
    if isinstance(content, ShapedMessage):
        return content.total
    return memoryview(content).nbytes


def _copy_payload(message: ShapedMessage, target: Bytes) -> None:
    """Copy the payload of a message, one fragment behind the other."""
    whole, size = message.count - 1, message.fragment_bytes
    if whole:
        columns = message.rows[:whole, HEADERS_BYTES : HEADERS_BYTES + size]
        target[: whole * size].reshape(whole, size)[:] = columns
    target[whole * size :] = message.payload_of(whole)


def _grains(size: int) -> int:
    assert size > 0
    return -(-size // GRAIN_BYTES) * GRAIN_BYTES
