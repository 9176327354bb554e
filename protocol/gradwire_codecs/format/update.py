"""Encoded update: one worker's sparse integer vector for one step, as bytes.

protocol/README.md describes the bytes one by one. The encoder computes the exact size in each
format before it writes, and chooses the smallest.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from gradwire_codecs.arrays import Buffer, Int32Array, UInt32Array
from gradwire_codecs.errors import CodecError, MalformedUpdateError
from gradwire_codecs.format.dense import WORD_BYTES, dense_bytes, write_dense
from gradwire_codecs.format.header import (
    DENSE,
    HEADER_BYTES_MAX,
    MULTIPLE,
    MULTIPLE_MAX,
    START,
    STOP,
    numbers_bytes,
    pack_header,
)
from gradwire_codecs.format.reading import read_encoded
from gradwire_codecs.format.sparse import SparsePlan, plan_sparse, write_sparse

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
    def length(self) -> int:
        """Elements covered."""
        return self.stop - self.start

    @cached_property
    def change(self) -> Int32Array:
        """The change of each element in quanta: an array of shape (hits,), dtype int32."""
        return self.count * np.int32(self.multiple)

    def within(self, start: int, stop: int) -> "Update":
        """Return the part from `start` to `stop`, which have to be a range inside this one's."""
        low, high = np.searchsorted(self.index, [start, stop])
        return Update(start, stop, self.multiple, self.index[low:high], self.count[low:high])

    def check_fits(self, elements: int) -> None:
        """Raise `MalformedUpdateError` if the range goes beyond a vector of `elements`."""
        if self.stop > elements:
            raise MalformedUpdateError(
                f"it covers elements {self.start} to {self.stop} of a vector of {elements}"
            )


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
    if not len(update.index):
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
    sparse: SparsePlan | None
    """None for the dense format."""
    magnitude_max: int
    size: int

    @classmethod
    def of(cls, update: Update) -> "_Plan":
        index, count = update.index, update.count
        covered = update.start, update.length, update.multiple
        magnitude_max = max(int(count.max()), -int(count.min()))
        sparse = plan_sparse(index, count, update.start)
        dense_size = dense_bytes(update.length, magnitude_max)
        if dense_size + numbers_bytes([magnitude_max]) < sparse.size:
            header = pack_header(DENSE, *covered, [len(index), magnitude_max])
            return cls(header, None, magnitude_max, len(header) + dense_size)
        header = pack_header(sparse.format, *covered, [len(index), *sparse.numbers])
        return cls(header, sparse, magnitude_max, len(header) + sparse.hits_bytes)

    def write(self, update: Update) -> bytes:
        index, count, start = update.index, update.count, update.start
        if self.sparse is None:
            hits = write_dense(index, count, start, update.length, self.magnitude_max)
        else:
            hits = write_sparse(index, count, start, self.sparse)
        return self.header + hits


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
    index, count = encoded.collect()
    start, stop, multiple = encoded.header[[START, STOP, MULTIPLE]].tolist()
    return Update(start, stop, multiple, index, count)
