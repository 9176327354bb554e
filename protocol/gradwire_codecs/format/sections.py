"""Sections: adjoining elements that have one threshold.

A run has one threshold, or one per tensor: then each tensor is a section of its own. Tensors that
follow each other with the same threshold are one section.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from gradwire_codecs.arrays import Int32Array, Int64Array, UInt32Array
from gradwire_codecs.errors import CodecError
from gradwire_codecs.kernels.compiled import compiled

MULTIPLE_MAX: Final = 2**24
"""Largest threshold in quanta: up to here its product with the quantum is exact in float32."""


@compiled
def _to_quanta(
    index: UInt32Array, count: Int32Array, bounds: Int64Array, multiples: Int64Array
) -> None:
    section = 0
    for j in range(index.size):
        while index[j] >= bounds[section + 1]:
            section += 1
        count[j] = np.int32(np.int64(count[j]) * multiples[section])


@compiled
def _sum_of_quanta(
    index: UInt32Array, count: Int32Array, bounds: Int64Array, multiples: Int64Array
) -> int:
    section, total = 0, 0
    for j in range(index.size):
        while index[j] >= bounds[section + 1]:
            section += 1
        total += abs(np.int64(count[j])) * multiples[section]
    return total


class Sections:
    """Elements from `start` to `stop`, cut into sections with a threshold each.

    Parameters
    ----------
    bounds : ndarray of shape (s + 1,), dtype int64
        Where the sections begin and the last one ends, strictly ascending.
    multiples : ndarray of shape (s,), dtype int64
        Their thresholds in quanta, 1 to `MULTIPLE_MAX`.
    """

    __slots__ = ("bounds", "multiples")

    def __init__(self, bounds: Int64Array, multiples: Int64Array) -> None:
        if multiples.size < 1 or bounds.size != multiples.size + 1:
            raise CodecError(f"{bounds.size} bounds of {multiples.size} sections")
        if bounds[0] < 0 or (np.diff(bounds) < 1).any():
            raise CodecError("sections have to be of at least one element each, and adjoin")
        wrong = (multiples < 1) | (multiples > MULTIPLE_MAX)
        if wrong.any():
            multiple = int(multiples[np.argmax(wrong)])
            raise CodecError(f"multiple={multiple}; it is 1 to {MULTIPLE_MAX}")
        self.bounds = bounds
        self.multiples = multiples

    @classmethod
    def single(cls, start: int, stop: int, multiple: int) -> "Sections":
        """Return one section."""
        return cls(np.array([start, stop], np.int64), np.array([multiple], np.int64))

    @classmethod
    def of(cls, lengths: Sequence[int], multiples: Sequence[int], start: int = 0) -> "Sections":
        """Return sections of these lengths; those of length 0 are left out, like ones merged."""
        size = np.asarray(lengths, np.int64)
        multiple = np.asarray(multiples, np.int64)
        multiple, size = multiple[size > 0], size[size > 0]
        begins = np.ones(size.size, np.bool_)
        begins[1:] = multiple[1:] != multiple[:-1]
        stops = start + np.cumsum(size)
        bounds = np.concatenate([(stops - size)[begins], stops[-1:]])
        return cls(bounds, multiple[begins])

    @property
    def start(self) -> int:
        """First element."""
        return int(self.bounds[0])

    @property
    def stop(self) -> int:
        """The element behind the last one."""
        return int(self.bounds[-1])

    @property
    def largest(self) -> int:
        """The largest threshold in quanta."""
        return int(self.multiples.max())

    def __len__(self) -> int:
        """Return how many sections there are."""
        return self.multiples.size

    def __eq__(self, other: object) -> bool:
        """Return whether the same elements have the same thresholds."""
        return (
            isinstance(other, Sections)
            and np.array_equal(self.bounds, other.bounds)
            and np.array_equal(self.multiples, other.multiples)
        )

    __hash__ = None  # type: ignore[assignment]

    def of_elements(self, index: UInt32Array) -> Int32Array:
        """Return the thresholds of some elements in quanta, or one for all of them.

        Parameters
        ----------
        index : ndarray of shape (n,), dtype uint32
            Ascending, all of them inside.

        Returns
        -------
        ndarray of shape (n,), or (1,) where there is one section, dtype int32
        """
        if len(self) == 1:
            return self.multiples.astype(np.int32)
        hits = np.diff(np.searchsorted(index, self.bounds))
        return np.repeat(self.multiples.astype(np.int32), hits)

    def to_quanta(self, index: UInt32Array, count: Int32Array) -> None:
        """Multiply counts by the thresholds of their elements, in place.

        Parameters
        ----------
        index : ndarray of shape (n,), dtype uint32
            Ascending, all of them inside.
        count : ndarray of shape (n,), dtype int32
            Numbers of thresholds; the products have to fit.
        """
        _to_quanta(index, count, self.bounds, self.multiples)

    def sum_of_quanta(self, index: UInt32Array, count: Int32Array) -> int:
        """Return what counts of thresholds add up to in quanta, whatever their signs.

        Parameters
        ----------
        index : ndarray of shape (n,), dtype uint32
            Ascending, all of them inside.
        count : ndarray of shape (n,), dtype int32
            Numbers of thresholds.
        """
        return int(_sum_of_quanta(index, count, self.bounds, self.multiples))

    def within(self, start: int, stop: int) -> "Sections":
        """Return the part from `start` to `stop`, which has to be inside, and not empty."""
        if not self.start <= start < stop <= self.stop:
            raise CodecError(f"elements {start} to {stop} of {self.start} to {self.stop}")
        first = int(np.searchsorted(self.bounds, start, "right")) - 1
        last = int(np.searchsorted(self.bounds, stop, "left"))
        bounds = self.bounds[first : last + 1].copy()
        bounds[0], bounds[-1] = start, stop
        return Sections(bounds, self.multiples[first:last])
