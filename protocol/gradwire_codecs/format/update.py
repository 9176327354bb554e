"""Encoded update: one worker's sparse integer vector for one step, as bytes.

README.md in the folder above describes them one by one. Which format is used is decided by exact
sizes, which are known before anything is written.
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
    SECTION_BYTES_MAX,
    numbers_bytes,
    pack_header,
)
from gradwire_codecs.format.reading import read_encoded
from gradwire_codecs.format.sections import Sections
from gradwire_codecs.format.sparse import SparsePlan, plan_sparse, write_sparse

ELEMENTS_MAX: Final = 2**31 - 1
"""Most parameters of a run. Positions fit 32 bits with one to spare for sums."""

NOTHING: Final = b""
"""Encodes an update that changes nothing: of no hits there is nothing to say."""

BYTES_MIN: Final = HEADER_BYTES_MAX + SECTION_BYTES_MAX + WORD_BYTES
"""No update that covers a single element is larger."""


@dataclass(frozen=True, eq=False)
class Update:
    """A decoded update: element ``index[j]`` changes by ``change[j]`` quanta.

    Attributes
    ----------
    sections : Sections
        The elements that the update covers, and their thresholds.
    index : ndarray of shape (hits,), dtype uint32
        Ascending positions in the whole vector.
    count : ndarray of shape (hits,), dtype int32
        Signed numbers of thresholds, never 0. Times its threshold, each is within plus or minus
        2^31 - 1.
    """

    sections: Sections
    index: UInt32Array
    count: Int32Array

    @property
    def start(self) -> int:
        """First element covered."""
        return self.sections.start

    @property
    def stop(self) -> int:
        """The element behind the last one covered."""
        return self.sections.stop

    @property
    def length(self) -> int:
        """Elements covered."""
        return self.stop - self.start

    @cached_property
    def change(self) -> Int32Array:
        """By how many quanta each element changes; an array of shape (hits,), dtype int32."""
        return self.count * self.sections.of_elements(self.index)

    def within(self, start: int, stop: int) -> "Update":
        """Return the part from `start` to `stop`, which has to be inside, and not empty."""
        low, high = np.searchsorted(self.index, [start, stop])
        return Update(self.sections.within(start, stop), self.index[low:high], self.count[low:high])

    def check_fits(self, elements: int) -> None:
        """Raise `MalformedUpdateError` if the range goes beyond a vector of so many elements."""
        if self.stop > elements:
            raise MalformedUpdateError(
                f"elements {self.start} to {self.stop} of a vector of {elements}"
            )


def encoded_bytes_max(length: int, magnitude_max: int, sections: int = 1) -> int:
    """Return the size that no update of this range exceeds, whatever its density.

    Parameters
    ----------
    length : int
        Elements covered.
    magnitude_max : int
        Most thresholds that one element sends.
    sections : int
        How many there are.
    """
    return HEADER_BYTES_MAX + sections * SECTION_BYTES_MAX + dense_bytes(length, magnitude_max)


def pack_update(update: Update) -> bytes:
    """Encode hits in the format that takes the fewest bytes.

    Parameters
    ----------
    update : Update
        With at least one hit.
    """
    return _Plan.of(update).write(update)


def split_update(update: Update, bytes_max: int) -> list[bytes]:
    """Encode hits as one update, or as several of adjoining ranges where one is too large.

    Parameters
    ----------
    update : Update
        May have no hits, and then encodes to nothing.
    bytes_max : int
        Largest encoded size, at least `BYTES_MIN`.
    """
    if bytes_max < BYTES_MIN:
        raise CodecError(f"bytes_max={bytes_max}; a single element may take {BYTES_MIN}")
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
    """How an update is written, and how much that takes."""

    header: bytes
    sparse: SparsePlan | None
    """None where it is dense."""
    magnitude_max: int
    size: int

    @classmethod
    def of(cls, update: Update) -> "_Plan":
        index, count, sections = update.index, update.count, update.sections
        magnitude_max = max(int(count.max()), -int(count.min()))
        sparse = plan_sparse(index, count, update.start)
        dense_size = dense_bytes(update.length, magnitude_max)
        if dense_size + numbers_bytes([magnitude_max]) < sparse.size:
            header = pack_header(DENSE, sections, [len(index), magnitude_max])
            return cls(header, None, magnitude_max, len(header) + dense_size)
        header = pack_header(sparse.format, sections, [len(index), *sparse.numbers])
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
        What `encode` returned, perhaps on another machine.
    elements : int
        Length of the vector the update belongs to.

    Returns
    -------
    Update
        Valid in every respect: it can be applied to a vector of `elements` without a check. Of
        `NOTHING`, one without hits.

    Raises
    ------
    MalformedUpdateError
        If `body` is not a valid update of such a vector. Time and memory spent on it are bounded
        by its length.
    """
    if not len(body):
        none = np.empty(0, np.uint32)
        return Update(Sections.single(0, elements, 1), none, none.astype(np.int32))
    encoded = read_encoded(body, elements)
    index, count = encoded.collect()
    return Update(Sections(encoded.bounds, encoded.multiples), index, count)
