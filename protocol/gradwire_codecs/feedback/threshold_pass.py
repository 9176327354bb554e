"""The threshold pass over a whole vector: its buffers, its threads, and dense updates.

The buffers have room for three hits in a hundred elements. If there are more, the first pass has
counted them by chunks; the vector is then cut into ranges whose hits fit, and each range is scanned
again when the caller asks for its hits. The cuts depend on the counts alone, so the result is the
same bytes for any number of threads. Room that was never used takes no memory.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from typing import Final

import numpy as np

from gradwire_codecs.arrays import Float32Array, Int8Array, Int32Array, Int64Array, UInt32Array
from gradwire_codecs.errors import NonFiniteError, OutOfRangeError
from gradwire_codecs.kernels import lattice, rounding
from gradwire_codecs.kernels.threads import Threads
from gradwire_codecs.kernels.threshold import CHUNK, NOT_FINITE, OUT_OF_RANGE, SLACK, move, scan

HITS_CAPACITY_SHARE: Final = 32
"""Elements per hit that there is room for; a hit takes 8 bytes, and there is room for `CHUNK` hits
or more. That is three times what policies aim at by default: a second scan doubles a step's
time."""

CHUNKS_PER_THREAD_MIN: Final = 8
"""Waking a thread takes as long as scanning this many chunks."""

MARGIN: Final = 2.0**-16
"""More than three roundings of float32 to at most twice the range, 2^-24 each."""


class ThresholdPass:
    """Scans for hits, any number of times, in buffers made once.

    The arguments are those of the kernel `scan`; `threads` includes the calling one.
    """

    def __init__(
        self,
        parameters: Float32Array,
        stored: Float32Array,
        values: Int32Array,
        quantum: np.float32,
        threads: int,
    ) -> None:
        self._parameters = parameters
        self._stored = stored
        self._values = values
        self._quantum = quantum
        self._threads = Threads(threads)
        elements = parameters.size
        self.capacity = capacity_of(elements)
        self._index: UInt32Array = np.empty(self.capacity + threads * SLACK, np.uint32)
        self._count: Int32Array = np.empty(self.capacity + threads * SLACK, np.int32)
        self._chunk_hits: Int32Array = np.empty(-(-elements // CHUNK), np.int32)
        self._start = 0
        self._multiple = self._magnitude_max = 1
        """Of the last `scan`."""
        self._found: tuple[int, int] | None = None
        """The range whose hits are all in the buffers, if there is one."""
        self._hits = 0
        self._committed: Int64Array = np.zeros(threads, np.int64)
        """Hits of each span that were added to the replica: `roll_back` takes them back."""
        self._begins = [0] * threads
        """Where the hits of each span begin in the buffers."""
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
        spans = self._split(start, stop)
        rooms = [self.capacity // len(spans)] * len(spans)
        safe = absorbing and self._nothing_can_fail(start, stop)
        complete = self._scan_spans(spans, rooms, absorbing=safe, committing=committing)
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
        return bool(self._committed.any())

    def confirm(self) -> None:
        """Leave in the replica what `scan` has added."""
        self._committed[:] = 0

    def roll_back(self) -> None:
        """Take out of the replica what `scan` has added, even if it failed."""
        for span, begin in enumerate(self._begins):
            place = slice(begin, begin + int(self._committed[span]))
            self._committed[span] = 0
            change = self._count[place] * np.int32(-self._multiple)
            lattice.add_to_replica(self._values, self._index[place], change)

    def hits_in(self, start: int, stop: int) -> tuple[UInt32Array, Int32Array]:
        """Return positions and signed thresholds of the hits in a range that `scan` returned.

        They are views of the buffers, valid until the next call.
        """
        if (start, stop) != self._found:
            spans = self._split(start, stop)
            rooms = [int(self._chunk_hits_of(low, high).sum()) for low, high in spans]
            self._scan_spans(spans, rooms)
            self._found = start, stop
        return self._index[: self._hits], self._count[: self._hits]

    def absorb(self, start: int, stop: int) -> None:
        """Move what the optimizer has changed from the parameters to `stored`."""
        self._absorb_spans(start, stop)

    def peak(self, start: int, stop: int) -> float:
        """Return the largest magnitude of the residual in a range, after `absorb`, if it is stored.

        No element may be at fault.
        """
        if self._stored.size:
            return self._absorb_spans(start, stop)

        def peak(low: int, high: int) -> np.int32:
            return rounding.max_ahead_bits(
                self._parameters[low:high], self._values[low:high], self._quantum
            )

        return _magnitude(self._run(peak, start, stop))

    def take(self, start: int, stop: int, multiple: int, magnitude_max: int) -> Int8Array:
        """Take counts of a threshold out of the residual of a range; call `peak` for it first.

        Return the count of each element, an array of shape (stop - start,), dtype int8.
        """
        counts = np.empty(stop - start, np.int8)
        tau, most = np.float32(multiple) * self._quantum, np.float32(magnitude_max)

        def take(low: int, high: int) -> np.int32:
            place = counts[low - start : high - start]
            if self._stored.size:
                return rounding.take_stored(self._stored[low:high], tau, most, place)
            parameters, values = self._parameters[low:high], self._values[low:high]
            rounding.take_ahead(parameters, values, self._quantum, tau, most, place)
            return np.int32(0)

        tops = self._run(take, start, stop)
        if self._stored.size:
            self._note_max(tops, start, stop)
        return counts

    def forget_stored_max(self) -> None:
        """Note that something else has changed `stored`."""
        self._stored_max = math.inf if self._stored.size else 0.0

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def nothing_can_fail(self) -> bool:
        """Return whether no element can be at fault; see `_nothing_can_fail`."""
        elements = self._parameters.size
        if self._stored_max < self._limit and self._nothing_can_fail(0, elements):
            return True
        # What is stored may have become smaller since the largest magnitude was noted.
        tops = self._run(partial(lattice.max_magnitude_bits, self._stored), 0, elements)
        self._stored_max = _magnitude(tops)
        return self._nothing_can_fail(0, elements)

    def _absorb_spans(self, start: int, stop: int) -> float:
        """Do what `absorb` does; return the largest magnitude of the range of `stored`."""

        def absorb(low: int, high: int) -> np.int32:
            return lattice.absorb(
                self._parameters, self._stored, self._values, self._quantum, low, high
            )

        tops = self._run(absorb, start, stop)
        self._note_max(tops, start, stop)
        return _magnitude(tops)

    def _run(self, work: Callable[[int, int], np.int32], start: int, stop: int) -> list[np.int32]:
        """Return the results of a work for each span of a range."""
        spans = self._split(start, stop)
        return self._threads.run([partial(work, low, high) for low, high in spans])

    def _split(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Cut a range into spans of whole chunks, one for each thread that is worth waking."""
        chunks = -(-(stop - start) // CHUNK)
        count = min(self._threads.count, max(chunks // CHUNKS_PER_THREAD_MIN, 1))
        cuts = [start + chunks * i // count * CHUNK for i in range(count)]
        return list(pairwise([*cuts, stop]))

    def _chunk_hits_of(self, low: int, high: int) -> Int32Array:
        """Return the number of hits of each chunk of a range."""
        first = (low - self._start) // CHUNK
        return self._chunk_hits[first : first + -(-(high - low) // CHUNK)]

    def _scan_spans(
        self,
        spans: list[tuple[int, int]],
        rooms: list[int],
        *,
        absorbing: bool = False,
        committing: bool = False,
    ) -> bool:
        """Find the hits of all spans, and join them in the buffers; return whether all fit."""

        def scan_span(
            span: int, low: int, high: int, begin: int, room: int
        ) -> tuple[int, int, np.int32]:
            place = slice(begin, begin + room + SLACK)
            return scan(
                self._parameters,
                self._stored,
                self._values,
                self._quantum,
                self._multiple,
                self._magnitude_max,
                low,
                high,
                self._index[place],
                self._count[place],
                self._chunk_hits_of(low, high),
                absorbing,
                self._committed[span : span + committing],
            )

        begins = list(accumulate((room + SLACK for room in rooms[:-1]), initial=0))
        self._begins = begins
        results = self._threads.run(
            [
                partial(scan_span, span, low, high, begin, room)
                for span, ((low, high), begin, room) in enumerate(
                    zip(spans, begins, rooms, strict=True)
                )
            ]
        )
        for hits, element, _ in results:
            self._refuse(hits, element)
        if absorbing:
            self._note_max([top for *_, top in results], spans[0][0], spans[-1][1])
        self._hits = 0
        for span, ((hits, *_), begin, room) in enumerate(zip(results, begins, rooms, strict=True)):
            kept = min(hits, room)
            move(self._index, self._count, begin, self._hits, kept)
            self._begins[span] = self._hits
            self._hits += kept
        return all(hits <= room for (hits, *_), room in zip(results, rooms, strict=True))

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
        tops = self._run(partial(lattice.max_magnitude_bits, self._parameters), start, stop)
        return _magnitude(tops) + self._stored_max < self._limit * (1 - MARGIN)

    def _note_max(self, tops: list[np.int32], start: int, stop: int) -> None:
        """Note the largest magnitude of `stored` in a range; others may have a larger one."""
        top = _magnitude(tops)
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


def _magnitude(tops: list[np.int32]) -> float:
    """Return the largest of some results of `max_magnitude_bits` as a number; inf for NaN."""
    magnitude = float(np.int32(max(tops)).view(np.float32))
    return magnitude if math.isfinite(magnitude) else math.inf
