"""The threshold pass over a whole vector: its buffers, and dense updates.

The buffers have room for three hits in a hundred elements. If there are more, the first pass has
counted them by chunks; the vector is then cut into ranges whose hits fit, and each range is scanned
again when the caller asks for its hits. Room that was never used takes no memory.
"""

import math
from typing import Final

import numpy as np

from gradwire_codecs.arrays import Float32Array, Int8Array, Int32Array, Int64Array, UInt32Array
from gradwire_codecs.errors import NonFiniteError, OutOfRangeError
from gradwire_codecs.kernels import lattice
from gradwire_codecs.kernels.threshold import CHUNK, NOT_FINITE, OUT_OF_RANGE, SLACK, scan

HITS_CAPACITY_SHARE: Final = 32
"""Elements per hit that there is room for; a hit takes 8 bytes, and there is room for `CHUNK` hits
or more. That is three times what policies aim at by default: a second scan doubles a step's
time."""

MARGIN: Final = 2.0**-16
"""More than three roundings of float32 to at most twice the range, 2^-24 each."""


class ThresholdPass:
    """Scans for hits, any number of times, in buffers made once.

    The arguments are those of the kernel `scan`.
    """

    def __init__(
        self,
        parameters: Float32Array,
        stored: Float32Array,
        values: Int32Array,
        quantum: np.float32,
    ) -> None:
        self._parameters = parameters
        self._stored = stored
        self._values = values
        self._quantum = quantum
        elements = parameters.size
        self.capacity = capacity_of(elements)
        self._index: UInt32Array = np.empty(self.capacity + SLACK, np.uint32)
        self._count: Int32Array = np.empty(self.capacity + SLACK, np.int32)
        self._chunk_hits: Int32Array = np.empty(-(-elements // CHUNK), np.int32)
        self._start = 0
        self._multiple = self._magnitude_max = 1
        """Of the last `scan`."""
        self._found: tuple[int, int] | None = None
        """The range whose hits are all in the buffers, if there is one."""
        self._hits = 0
        self._committed: Int64Array = np.zeros(1, np.int64)
        """Hits that were added to the replica: `roll_back` takes them back."""
        self._limit = 2.0**31 * float(quantum)
        self._stored_max = math.inf if stored.size else 0.0
        """No element of `stored` has a larger magnitude."""

    def scan(
        self,
        start: int,
        stop: int,
        multiple: int,
        magnitude_max: int,
        *,
        absorbing: bool = False,
        committing: bool = False,
    ) -> list[tuple[int, int]]:
        """Scan elements; return the ranges, in order, to ask `hits_in` for.

        There is one range, several if the buffers have no room for all hits, or none if there are
        no hits.

        Parameters
        ----------
        start, stop, multiple, magnitude_max : int
            As for the kernel `scan`.
        absorbing : bool
            Whether to `absorb` as well, unless there is an error.
        committing : bool
            Whether to add the hits to the replica as well, if there is room for all of them. Then
            `committed` is true, and `confirm` or `roll_back` has to follow. `stored` must be empty.

        Raises
        ------
        NonFiniteError, OutOfRangeError
            For the first such element among those that have reached their threshold.
        """
        self._found = None
        self._start, self._multiple, self._magnitude_max = start, multiple, magnitude_max
        safe = absorbing and self._nothing_can_fail(start, stop)
        complete = self._scan(start, stop, self.capacity, absorbing=safe, committing=committing)
        if absorbing and not safe:
            self.absorb(start, stop)
        if complete:
            self._found = start, stop
        else:
            self.roll_back()
        return ranges_of(start, stop, self._chunk_hits_of(start, stop), self.capacity)

    @property
    def committed(self) -> bool:
        """Whether the last `scan` has added the hits to the replica."""
        return bool(self._committed[0])

    def confirm(self) -> None:
        """Leave in the replica what `scan` has added."""
        self._committed[:] = 0

    def roll_back(self) -> None:
        """Take out of the replica what `scan` has added, even if it failed."""
        hits = int(self._committed[0])
        self._committed[0] = 0
        change = self._count[:hits] * np.int32(-self._multiple)
        lattice.add_to_replica(self._values, self._index[:hits], change)

    def hits_in(self, start: int, stop: int) -> tuple[UInt32Array, Int32Array]:
        """Return positions and signed thresholds of the hits in a range that `scan` returned.

        They are views of the buffers, valid until the next call.
        """
        if (start, stop) != self._found:
            self._scan(start, stop, int(self._chunk_hits_of(start, stop).sum()))
            self._found = start, stop
        return self._index[: self._hits], self._count[: self._hits]

    def absorb(self, start: int, stop: int) -> float:
        """Move what the optimizer has changed from the parameters to `stored`.

        Returns the largest magnitude that the range of `stored` has then.
        """
        top = _magnitude(
            lattice.absorb(self._parameters, self._stored, self._values, self._quantum, start, stop)
        )
        self._note_max(top, start, stop)
        return top

    def peak(self, start: int, stop: int) -> float:
        """Return the largest magnitude of the residual in a range, after `absorb`, if it is stored.

        No element may be at fault.
        """
        if self._stored.size:
            return self.absorb(start, stop)
        parameters, values = self._parameters[start:stop], self._values[start:stop]
        return _magnitude(lattice.max_ahead_bits(parameters, values, self._quantum))

    def take(self, start: int, stop: int, multiple: int, magnitude_max: int) -> Int8Array:
        """Take counts of a threshold out of the residual of a range; call `peak` for it first.

        Return the count of each element, an array of shape (stop - start,), dtype int8.
        """
        counts = np.empty(stop - start, np.int8)
        tau, most = np.float32(multiple) * self._quantum, np.float32(magnitude_max)
        if self._stored.size:
            top = lattice.take_stored(self._stored[start:stop], tau, most, counts)
            self._note_max(_magnitude(top), start, stop)
        else:
            parameters, values = self._parameters[start:stop], self._values[start:stop]
            lattice.take_ahead(parameters, values, self._quantum, tau, most, counts)
        return counts

    def forget_stored_max(self) -> None:
        """Note that something else has changed `stored`."""
        self._stored_max = math.inf if self._stored.size else 0.0

    def nothing_can_fail(self) -> bool:
        """Return whether no element can be at fault; see `_nothing_can_fail`."""
        elements = self._parameters.size
        if self._stored_max < self._limit and self._nothing_can_fail(0, elements):
            return True
        # What is stored may have become smaller since the largest magnitude was noted.
        self._stored_max = _magnitude(lattice.max_magnitude_bits(self._stored, 0, elements))
        return self._nothing_can_fail(0, elements)

    def _chunk_hits_of(self, low: int, high: int) -> Int32Array:
        """Return the number of hits of each chunk of a range."""
        first = (low - self._start) // CHUNK
        return self._chunk_hits[first : first + -(-(high - low) // CHUNK)]

    def _scan(
        self,
        start: int,
        stop: int,
        room: int,
        *,
        absorbing: bool = False,
        committing: bool = False,
    ) -> bool:
        """Write hits of a range into the buffers, as far as there is room; return if all fit."""
        hits, element, top = scan(
            self._parameters,
            self._stored,
            self._values,
            self._quantum,
            self._multiple,
            self._magnitude_max,
            start,
            stop,
            self._index[: room + SLACK],
            self._count[: room + SLACK],
            self._chunk_hits_of(start, stop),
            absorbing,
            self._committed[: int(committing)],
        )
        self._refuse(hits, element)
        if absorbing:
            self._note_max(_magnitude(top), start, stop)
        self._hits = min(hits, room)
        return hits <= room

    def _refuse(self, hits: int, element: int) -> None:
        if hits not in (NOT_FINITE, OUT_OF_RANGE):
            return
        value = float(self._parameters[element])
        if self._stored.size:
            value += float(self._stored[element])
        raise fault_of(element, value, float(self._quantum), finite=hits == OUT_OF_RANGE)

    def _nothing_can_fail(self, start: int, stop: int) -> bool:
        """Return whether parameters and `stored` are too small for any element to be at fault.

        Sending all of an element would lead to the sum of the two. This compares the largest of
        each, and reads a third of what the pass reads; rounding adds less than `MARGIN`.
        """
        top = _magnitude(lattice.max_magnitude_bits(self._parameters, start, stop))
        return top + self._stored_max < self._limit * (1 - MARGIN)

    def _note_max(self, top: float, start: int, stop: int) -> None:
        """Note the largest magnitude of `stored` in a range; others may have a larger one."""
        everything = stop - start == self._stored.size
        self._stored_max = top if everything else max(top, self._stored_max)


def fault_of(
    element: int, value: float, quantum: float, *, finite: bool
) -> NonFiniteError | OutOfRangeError:
    """Return the error for an element whose parameter, plus its stored residual, is `value`."""
    if finite:
        return OutOfRangeError(element, value, 2.0**31 * quantum)
    return NonFiniteError(element, value)


def capacity_of(elements: int) -> int:
    """Return how many hits the buffers of a vector have room for."""
    return min(max(elements // HITS_CAPACITY_SHARE, CHUNK), elements)


def ranges_of(
    start: int, stop: int, chunk_hits: Int32Array, capacity: int
) -> list[tuple[int, int]]:
    """Cut a range, between chunks, into ranges of at most `capacity` hits; none if it has no hits.

    `chunk_hits` are the hits of each `CHUNK` elements; none of them exceeds `capacity`.
    """
    hits = np.cumsum(chunk_hits, dtype=np.int64)
    if not hits[-1]:
        return []
    if hits[-1] <= capacity:
        return [(start, stop)]
    ranges: list[tuple[int, int]] = []
    taken, low = 0, start
    while taken < hits[-1]:
        chunks = int(np.searchsorted(hits, taken + capacity, "right"))
        high = min(start + chunks * CHUNK, stop)
        ranges.append((low, high))
        taken, low = int(hits[chunks - 1]), high
    return ranges


def _magnitude(bits: np.int32) -> float:
    """Return a result of `max_magnitude_bits` as a number; inf for NaN."""
    magnitude = float(np.int32(bits).view(np.float32))
    return magnitude if math.isfinite(magnitude) else math.inf
