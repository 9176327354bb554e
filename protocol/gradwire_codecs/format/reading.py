"""Decoding an update straight into the vectors that it changes.

An update is read twice, once to check it and once to add it: nothing may change before all of it
has proved to be valid.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwire_codecs.arrays import (
    Buffer,
    Float32Array,
    Int8Array,
    Int32Array,
    Int64Array,
    UInt8Array,
    UInt32Array,
    UInt64Array,
)
from gradwire_codecs.errors import MalformedUpdateError
from gradwire_codecs.format.bits import TAIL_WORDS
from gradwire_codecs.format.dense import WORD_BYTES, check_counts, collect_counts
from gradwire_codecs.format.header import (
    BYTES,
    FIELDS,
    FORMAT,
    HITS,
    INT32_MAX,
    MULTIPLE,
    OFFSET,
    PLAIN,
    START,
    STOP,
    TOO_LARGE,
    VALID,
    describe_fault,
    read_header,
)
from gradwire_codecs.format.hits import ROOM, STATE_FIELDS, begin_reading, next_hits, scale
from gradwire_codecs.kernels import lattice
from gradwire_codecs.kernels.compiled import compiled, prefetch

NO_QUANTUM: Final = np.float32(0)
"""Adding to a replica alone takes no quantum."""


@dataclass(frozen=True, slots=True)
class EncodedHits:
    """An encoded update whose header is valid; its hits may not be."""

    words: UInt64Array
    """All its bytes, and `TAIL_WORDS` zeros after them."""
    header: Int64Array
    """Of shape (header.FIELDS,)."""
    state: Int64Array
    """Of shape (hits.STATE_FIELDS,): where reading begins."""
    size: int
    """In bytes."""
    elements: int
    """Length of the vector that it has to fit."""

    @property
    def hits(self) -> int:
        """How many elements it changes."""
        return int(self.header[HITS])

    @property
    def counts(self) -> Int8Array | None:
        """The count of each element covered, in the format that has them; else None."""
        if self.header[FORMAT] != BYTES:
            return None
        counts: Int8Array = self.words.view(np.int8)[self.header[OFFSET] : self.size]
        return counts

    def check(self) -> None:
        """Raise `MalformedUpdateError` unless the hits are valid."""
        counts = self.counts
        if counts is None:
            self._raise_for(_check(*self._parts()))
        else:
            self._raise_for(check_counts(counts, self.hits))

    def collect(self) -> tuple[UInt32Array, Int32Array]:
        """Return positions and signed thresholds, or raise `MalformedUpdateError`."""
        counts = self.counts
        if counts is not None:
            self.check()
            return hits_of(counts, int(self.header[START]))
        index, count = np.empty(self.hits, np.uint32), np.empty(self.hits, np.int32)
        self._raise_for(_collect(*self._parts(), index, count))
        return index, count

    def add_to(
        self,
        values: Int32Array,
        parameters: Float32Array | None = None,
        quantum: np.float32 = NO_QUANTUM,
    ) -> None:
        """Add the hits, which `check` has accepted, to a replica and to parameters, if given."""
        counts, covered = self.counts, slice(self.header[START], self.header[STOP])
        if counts is None:
            _add(*self._parts(), values, parameters, quantum)
        else:
            add_counts(counts, int(self.header[MULTIPLE]), covered, values, parameters, quantum)

    def _parts(self) -> tuple[UInt64Array, Int64Array, Int64Array]:
        """Return the first arguments of the kernels, which change the last of these."""
        return self.words, self.header, self.state.copy()

    def _raise_for(self, code: int) -> None:
        if code != VALID:
            raise MalformedUpdateError(describe_fault(code, self.header, self.size, self.elements))


def hits_of(counts: Int8Array, start: int) -> tuple[UInt32Array, Int32Array]:
    """Return positions and signed thresholds of the hits among elements from `start` on."""
    index, count = np.empty(len(counts), np.uint32), np.empty(len(counts), np.int32)
    hits = collect_counts(counts, start, index, count)
    return index[:hits], count[:hits]


def add_counts(
    counts: Int8Array,
    multiple: int,
    covered: slice,
    values: Int32Array,
    parameters: Float32Array | None = None,
    quantum: np.float32 = NO_QUANTUM,
) -> None:
    """Add a count of thresholds for each element covered to a replica, and to parameters."""
    if parameters is None:
        lattice.add_counts_to_replica(values[covered], counts, multiple)
    else:
        lattice.add_counts_to_both(parameters[covered], values[covered], quantum, counts, multiple)


def _read_fields(data: UInt8Array, elements: int) -> Int64Array:
    """Return the fields of a valid header."""
    header = np.empty(FIELDS, np.int64)
    code = read_header(data, elements, header)
    if code != VALID:
        raise MalformedUpdateError(describe_fault(code, header, data.size, elements))
    return header


def encoded_hits(body: Buffer) -> int:
    """Return how many elements an encoded update changes, according to its header.

    Raises
    ------
    MalformedUpdateError
        If the header is not valid.
    """
    if not len(body):
        return 0
    return int(_read_fields(np.array(np.frombuffer(body, np.uint8)), INT32_MAX)[HITS])


def read_encoded(body: Buffer, elements: int) -> EncodedHits:
    """Read the header of an encoded update of a vector.

    Parameters
    ----------
    body : bytes-like
        Copied.
    elements : int
        Length of the vector.

    Raises
    ------
    MalformedUpdateError
        If the header is not valid. Time and memory are bounded by the length of `body`.
    """
    words = np.zeros(-(-len(body) // WORD_BYTES) + TAIL_WORDS, "<u8")
    # A copy, because numba would compile the kernels again for an array that is read-only.
    data = words.view(np.uint8)[: len(body)]
    data[:] = np.frombuffer(body, np.uint8)
    header, state = _read_fields(data, elements), np.empty(STATE_FIELDS, np.int64)
    begin_reading(header, data.size, state)
    words = words.astype(np.uint64, copy=False)
    return EncodedHits(words, header, state, data.size, elements)


@compiled
def _check(
    words: UInt64Array,
    header: Int64Array,
    state: Int64Array,
) -> int:
    index, count = np.empty(ROOM, np.uint32), np.empty(ROOM, np.int32)
    while True:
        n = next_hits(words, header, state, index, count)
        # A count of 1 is never too large.
        if n > 0 and header[FORMAT] != PLAIN:
            n = scale(header[MULTIPLE], n, count)
        if n <= 0:
            return n


@compiled
def _collect(
    words: UInt64Array,
    header: Int64Array,
    state: Int64Array,
    index: UInt32Array,
    count: Int32Array,
) -> int:
    positions, counts = np.empty(ROOM, np.uint32), np.empty(ROOM, np.int32)
    at = 0
    while True:
        n = next_hits(words, header, state, positions, counts)
        if n <= 0:
            return n
        for j in range(n):
            index[at + j] = positions[j]
            count[at + j] = counts[j]
        if scale(header[MULTIPLE], n, counts) == TOO_LARGE:
            return TOO_LARGE
        at += n


@compiled
def _add(
    words: UInt64Array,
    header: Int64Array,
    state: Int64Array,
    values: Int32Array,
    parameters: Float32Array | None,
    quantum: np.float32,
) -> None:
    # numba compiles one version with parameters and one without: neither tests for None.
    index, count = np.empty((2, ROOM), np.uint32), np.empty((2, ROOM), np.int32)
    turn, n = 0, next_hits(words, header, state, index[0], count[0])
    while n > 0:
        for j in range(n):
            prefetch(values, np.uint64(index[turn, j]))
            if parameters is not None:
                prefetch(parameters, np.uint64(index[turn, j]))
        scale(header[MULTIPLE], n, count[turn])
        following = next_hits(words, header, state, index[1 - turn], count[1 - turn])
        if parameters is None:
            lattice.add_to_replica(values, index[turn, :n], count[turn, :n])
        else:
            lattice.add_to_both(parameters, values, quantum, index[turn, :n], count[turn, :n])
        turn, n = 1 - turn, following
