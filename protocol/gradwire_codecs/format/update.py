"""Encoded update: one worker's sparse integer vector for one step, as bytes.

protocol/README.md describes the bytes one by one. The encoder computes the exact size in each
format before it writes, and chooses the smallest.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from gradwire_codecs.arrays import Buffer, Int8Array, Int32Array, UInt32Array
from gradwire_codecs.errors import CodecError, MalformedUpdateError
from gradwire_codecs.format.dense import (
    DENSITY_MIN,
    WORD_BYTES,
    dense_bytes,
    is_written_in_bytes,
    measure_counts,
    write_dense,
)
from gradwire_codecs.format.header import (
    BYTES,
    DENSE,
    HEADER_BYTES_MAX,
    MULTIPLE,
    MULTIPLE_MAX,
    START,
    STOP,
    numbers_bytes,
    pack_header,
)
from gradwire_codecs.format.reading import hits_of, read_encoded
from gradwire_codecs.format.sparse import SparsePlan, plan_sparse, write_sparse
from gradwire_codecs.kernels.threshold import thresholds_of

ELEMENTS_MAX: Final = 2**31 - 1
"""Most parameters of a run: the sum of two positions fits 32 bits."""

NOTHING: Final = b""
"""The encoding of an update without hits."""

BYTES_MIN: Final = HEADER_BYTES_MAX + WORD_BYTES
"""No update that covers a single element is larger."""


@dataclass(frozen=True, eq=False)
class Update:
    """A decoded update: element ``index[j]`` changes by ``change[j]`` quanta.

    Attributes
    ----------
    start, stop : int
        The elements that the update covers; at least one.
    multiple : int
        The threshold in quanta, 1 to `MULTIPLE_MAX`.
    index : ndarray of shape (hits,), dtype uint32
        Ascending positions in the whole vector.
    count : ndarray of shape (hits,), dtype int32
        Signed numbers of thresholds, never 0. Times the threshold, each is within plus or minus
        2^31 - 1.
    """

    start: int
    stop: int
    multiple: int
    index: UInt32Array
    count: Int32Array

    def __post_init__(self) -> None:
        """Raise `CodecError` for an empty range, or a threshold out of range."""
        if not 0 <= self.start < self.stop:
            raise CodecError(
                f"elements {self.start} to {self.stop}; an update covers at least one, from 0 on"
            )
        check_multiple(self.multiple)

    @property
    def hits(self) -> int:
        """Elements that it changes."""
        return len(self.index)

    @property
    def length(self) -> int:
        """Elements covered."""
        return self.stop - self.start

    @cached_property
    def change(self) -> Int32Array:
        """The change of each element in quanta: an array of shape (hits,), dtype int32."""
        return self.count * np.int32(self.multiple)

    def change_of_range(self) -> Int32Array:
        """Return the change of every element covered, an array of shape (length,), dtype int32."""
        change = np.zeros(self.length, np.int32)
        change[self.index - np.uint32(self.start)] = self.change
        return change

    def within(self, start: int, stop: int) -> "Update":
        """Return the part from `start` to `stop`, which have to be a range inside this one's."""
        # Bounds of another type would have the whole index converted to it.
        low, high = np.searchsorted(self.index, np.array([start, stop], np.uint32))
        return Update(start, stop, self.multiple, self.index[low:high], self.count[low:high])

    def check_fits(self, elements: int) -> None:
        """Raise `MalformedUpdateError` if the range goes beyond a vector of `elements`."""
        if self.stop > elements:
            raise MalformedUpdateError(
                f"it covers elements {self.start} to {self.stop} of a vector of {elements}"
            )


class DenseUpdate(Update):
    """An update with a count for every element that it covers, hit or not.

    It has what an `Update` has. Positions are looked for only where a caller asks for them.

    Attributes
    ----------
    counts : ndarray of shape (length,), dtype int8
        Signed numbers of thresholds, -127 to 127.
    """

    counts: Int8Array

    def __init__(self, start: int, stop: int, multiple: int, counts: Int8Array) -> None:
        fields = {"start": start, "stop": stop, "multiple": multiple, "counts": counts}
        self.__dict__.update(fields)  # a frozen dataclass refuses assignments
        self.__post_init__()

    @property
    def index(self) -> UInt32Array:
        """Ascending positions of the hits in the whole vector."""
        return self._found[0]

    @property
    def count(self) -> Int32Array:
        """Their signed numbers of thresholds."""
        return self._found[1]

    @property
    def hits(self) -> int:
        """Elements that it changes."""
        return self.measures[0]

    @cached_property
    def measures(self) -> tuple[int, int, int]:
        """The number of hits, and the sum and the largest of their magnitudes, in thresholds."""
        return measure_counts(self.counts)

    def change_of_range(self) -> Int32Array:
        """Return the change of every element covered, an array of shape (length,), dtype int32."""
        return self.counts * np.int32(self.multiple)

    def within(self, start: int, stop: int) -> "DenseUpdate":
        """Return the part from `start` to `stop`, which have to be a range inside this one's."""
        part = self.counts[start - self.start : stop - self.start]
        return DenseUpdate(start, stop, self.multiple, part)

    @cached_property
    def _found(self) -> tuple[UInt32Array, Int32Array]:
        return hits_of(self.counts, self.start)


def check_multiple(multiple: int) -> None:
    """Raise `CodecError` for a threshold, in quanta, that is out of range."""
    if not 1 <= multiple <= MULTIPLE_MAX:
        raise CodecError(f"multiple={multiple}; it has to be 1 to {MULTIPLE_MAX}")


def encoded_bytes_max(length: int, magnitude_max: int) -> int:
    """Return the largest size in bytes of an update of a range, whatever its density.

    Parameters
    ----------
    length : int
        Elements covered.
    magnitude_max : int
        Most thresholds that one element sends.
    """
    return HEADER_BYTES_MAX + dense_bytes(length, magnitude_max)


def pack_update(update: Update) -> bytes:
    """Encode an update with at least one hit in the format that takes the fewest bytes."""
    return _Plan.of(update).write(update)


def split_update(update: Update, bytes_max: int) -> list[bytes]:
    """Encode an update as one, or as several of adjoining ranges if one is too large.

    None, if it has no hits. `bytes_max` is the largest encoded size, at least `BYTES_MIN`.
    """
    if bytes_max < BYTES_MIN:
        raise CodecError(f"bytes_max={bytes_max}; it has to be {BYTES_MIN} or more")
    if not update.hits:
        return []
    plan = _Plan.of(update)
    if plan.size <= bytes_max:
        return [plan.write(update)]
    middle = update.start + update.length // 2
    return split_update(update.within(update.start, middle), bytes_max) + split_update(
        update.within(middle, update.stop), bytes_max
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """The format and size of an update that is to be written."""

    header: bytes
    format: int
    sparse: SparsePlan | None
    """None for formats with a digit or a byte for every element."""
    magnitude_max: int
    size: int

    @classmethod
    def of(cls, update: Update) -> "_Plan":
        length, hits = update.length, update.hits
        covered = update.start, length, update.multiple
        total, magnitude_max = _magnitudes_of(update)
        if is_written_in_bytes(length, hits, total, magnitude_max):
            header = pack_header(BYTES, *covered, [hits])
            return cls(header, BYTES, None, magnitude_max, len(header) + length)
        sparse = plan_sparse(update.index, update.count, update.start)
        dense_size = dense_bytes(length, magnitude_max)
        if dense_size + numbers_bytes([magnitude_max]) < sparse.size:
            header = pack_header(DENSE, *covered, [hits, magnitude_max])
            return cls(header, DENSE, None, magnitude_max, len(header) + dense_size)
        header = pack_header(sparse.format, *covered, [hits, *sparse.numbers])
        return cls(header, sparse.format, sparse, magnitude_max, len(header) + sparse.hits_bytes)

    def write(self, update: Update) -> bytes:
        if self.format == BYTES:
            return self.header + _counts_of(update).tobytes()
        index, count, start = update.index, update.count, update.start
        if self.sparse is None:
            hits = write_dense(index, count, start, update.length, self.magnitude_max)
        else:
            hits = write_sparse(index, count, start, self.sparse)
        return self.header + hits


def _magnitudes_of(update: Update) -> tuple[int, int]:
    """Return the sum and the largest of the magnitudes of hits, in thresholds.

    The sum is 0 where there are so few hits that nothing depends on it.
    """
    if isinstance(update, DenseUpdate):
        return update.measures[1:]
    count = update.count
    total = thresholds_of(count) if update.hits >= DENSITY_MIN * update.length else 0
    return total, max(int(count.max()), -int(count.min()))


def _counts_of(update: Update) -> Int8Array:
    """Return the count of every element covered."""
    if isinstance(update, DenseUpdate):
        return update.counts
    counts = np.zeros(update.length, np.int8)
    counts[update.index - np.uint32(update.start)] = update.count
    return counts


def decode(body: Buffer, elements: int) -> Update:
    """Decode an encoded update of a vector.

    Parameters
    ----------
    body : bytes-like
        A result of `encode`, perhaps of another machine.
    elements : int
        Length of the vector the update belongs to.

    Returns
    -------
    Update
        Valid in every respect: it can be applied to a vector of `elements` without a check.
        `NOTHING` decodes to an update without hits.

    Raises
    ------
    MalformedUpdateError
        If `body` is not a valid update of such a vector. Time and memory spent on it are bounded
        by its length.
    """
    if not len(body):
        none = np.empty(0, np.uint32)
        return Update(0, elements, 1, none, none.astype(np.int32))
    encoded = read_encoded(body, elements)
    start, stop, multiple = encoded.header[[START, STOP, MULTIPLE]].tolist()
    if encoded.counts is not None:
        encoded.check()
        return DenseUpdate(start, stop, multiple, encoded.counts)
    index, count = encoded.collect()
    return Update(start, stop, multiple, index, count)
