"""Encoded update: one worker's sparse integer vector for one step, as bytes.

::

    offset  bytes  field            meaning
    0       1      format           1 sparse, 2 dense; anything else is refused
    1       1      gap parameter    sparse: Rice parameter of the gaps, at most 31; dense: 0
    2       1      magnitude        sparse: Rice parameter of the magnitudes, at most 31, or 255
                   parameter        where every magnitude is 1; dense: 0
    3       1      reserved         0
    4       4      sections         how many there are, at least 1
    8       4      start            first element covered
    12      4      length           elements covered, at least 1
    16      4      hits             elements that are not zero, 1 to `length`
    20      4      magnitude_max    largest magnitude among the counts, at least 1
    24      ...    sections         of each: length and threshold in quanta, in LEB128
    ...            hits             as `sparse` or `dense` say

Integers are unsigned and little-endian. An update is valid if and only if the fields keep their
ranges, ``start + length`` does not exceed the number of parameters, what an element changes by
stays below 2^31 quanta, and the hits decode to exactly what the header states.

Which coder is used is decided by exact sizes: the smaller one, and the sparse one where they are
equal.
"""

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np

from gradwire_codecs.arrays import Buffer, Int32Array, UInt32Array
from gradwire_codecs.dense import dense_bytes, read_dense, write_dense
from gradwire_codecs.errors import CodecError, MalformedUpdateError
from gradwire_codecs.sections import Sections
from gradwire_codecs.sparse import read_sparse, sparse_parameters, write_sparse

HEADER: Final = struct.Struct("<BBBBIIIII")
HEADER_BYTES: Final = HEADER.size

SPARSE: Final = 1
DENSE: Final = 2

ELEMENTS_MAX: Final = 2**31 - 1
"""Most parameters of a run. Positions fit 32 bits with one to spare for sums."""

INT32_MAX: Final = 2**31 - 1

SECTION_BYTES_MAX: Final = 10
"""Size of the largest entry of the section table."""

BYTES_MIN: Final = HEADER_BYTES + SECTION_BYTES_MAX + 8
"""Size of the largest update that covers a single element."""


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
    return HEADER_BYTES + sections * SECTION_BYTES_MAX + dense_bytes(length, magnitude_max)


def encoded_hits(body: Buffer) -> int:
    """Return how many elements an encoded update of our own making changes."""
    hits: int = HEADER.unpack_from(body)[7]
    return hits


def pack_update(update: Update) -> bytes:
    """Encode hits as the smaller of the two codes.

    Parameters
    ----------
    update : Update
        With at least one hit.
    """
    magnitude_max = int(np.abs(update.count).max())
    gap_k, magnitude_k, sparse_size = sparse_parameters(update.index, update.count, update.start)
    coder: Literal[1, 2] = SPARSE
    if dense_bytes(update.length, magnitude_max) < sparse_size:
        coder, gap_k, magnitude_k = DENSE, 0, 0
    header = HEADER.pack(
        coder,
        gap_k,
        magnitude_k,
        0,
        len(update.sections),
        update.start,
        update.length,
        len(update.index),
        magnitude_max,
    )
    header += b"".join(
        _pack_number(length) + _pack_number(multiple)
        for length, multiple in zip(
            np.diff(update.sections.bounds).tolist(),
            update.sections.multiples.tolist(),
            strict=True,
        )
    )
    if coder == SPARSE:
        return header + write_sparse(
            update.index, update.count, update.start, gap_k, magnitude_k, sparse_size
        )
    return header + write_dense(
        update.index, update.count, update.start, update.length, magnitude_max
    )


def _pack_number(number: int) -> bytes:
    packed = bytearray()
    while number > 0x7F:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)
    return bytes(packed)


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
    encoded = pack_update(update)
    if len(encoded) <= bytes_max:
        return [encoded]
    middle = update.start + update.length // 2
    return split_update(update.within(update.start, middle), bytes_max) + split_update(
        update.within(middle, update.stop), bytes_max
    )


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
        Valid in every respect: it can be applied to a vector of `elements` without a check.

    Raises
    ------
    MalformedUpdateError
        If `body` is not a valid update of such a vector. Time and memory spent on it are bounded
        by its length.
    """
    if len(body) < HEADER_BYTES:
        raise MalformedUpdateError(
            f"{len(body)} bytes are no update; the header takes {HEADER_BYTES}"
        )
    view = memoryview(body)
    coder, gap_k, magnitude_k, reserved, parts, start, length, hits, magnitude_max = (
        HEADER.unpack_from(view)
    )
    _check_header(coder, reserved, start, length, hits, magnitude_max, elements)
    sections, position = _read_sections(view, parts, start, length)
    coded = view[position:]
    if coder == SPARSE:
        index, count = read_sparse(coded, start, start + length, hits, gap_k, magnitude_k)
    elif gap_k or magnitude_k:
        raise MalformedUpdateError("a dense update with Rice parameters")
    else:
        index, count = read_dense(coded, start, length, hits, magnitude_max)
    magnitude = np.abs(count)
    if int(magnitude.max()) != magnitude_max:
        raise MalformedUpdateError(f"magnitude_max={magnitude_max} is not what the counts hold")
    most = magnitude.astype(np.int64) * sections.of_elements(index)
    if int(most.max()) > INT32_MAX:
        raise MalformedUpdateError(f"a change of {int(most.max())} quanta exceeds {INT32_MAX}")
    return Update(sections, index, count)


def _check_header(
    coder: int, reserved: int, start: int, length: int, hits: int, magnitude_max: int, elements: int
) -> None:
    if coder not in (SPARSE, DENSE) or reserved:
        raise MalformedUpdateError(f"unknown format {coder} (reserved byte {reserved})")
    if length < 1 or start + length > elements:
        raise MalformedUpdateError(
            f"elements {start} to {start + length} of a vector of {elements}"
        )
    if not 1 <= hits <= length:
        raise MalformedUpdateError(f"{hits} hits among {length} elements")
    if not 1 <= magnitude_max <= INT32_MAX:
        raise MalformedUpdateError(f"magnitude_max={magnitude_max}; it is 1 to {INT32_MAX}")


def _read_sections(view: memoryview, parts: int, start: int, length: int) -> tuple[Sections, int]:
    numbers: list[int] = []
    position = HEADER_BYTES
    if not 1 <= parts <= (len(view) - position) // 2:
        raise MalformedUpdateError(f"{parts} sections in {len(view)} bytes")
    for _ in range(2 * parts):
        number, shift = 0, 0
        while True:
            if position >= len(view) or shift > 28:
                raise MalformedUpdateError("the section table does not end")
            byte = view[position]
            position += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        numbers.append(number)
    if sum(numbers[0::2]) != length:
        raise MalformedUpdateError(f"sections of other than {length} elements")
    bounds = np.concatenate([[start], start + np.cumsum(numbers[0::2])])
    try:
        return Sections(bounds, np.array(numbers[1::2], np.int64)), position
    except CodecError as error:
        raise MalformedUpdateError(str(error)) from None
