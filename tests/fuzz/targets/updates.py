"""Encoded updates: four bytes say how long the vector is, the rest is decoded.

Whatever is accepted is valid in every respect, is what a second decoder reads, and is no shorter
than what our encoder makes of the same hits. Kernels check the bounds of their arrays here.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from fuzz.reading import Reader
from gradwire_codecs import Sections, Update, decode
from gradwire_codecs.errors import MalformedUpdateError
from gradwire_codecs.header import INT32_MAX
from gradwire_codecs.replica import Replica
from gradwire_codecs.update import ELEMENTS_MAX, pack_update
from support.reference_decoder import reference_decode

BYTES_MAX: Final = 512

REFERENCE_BYTES_MAX: Final = 128
"""The second decoder looks at every bit by itself."""

APPLIED_ELEMENTS_MAX: Final = 4_096


def check(data: bytes) -> None:
    """Decode an update."""
    reader = Reader(data)
    elements = reader.integer(4) & ELEMENTS_MAX
    body = reader.rest()
    try:
        update = decode(body, elements)
    except MalformedUpdateError:
        return
    check_valid(update, elements)
    packed = pack_update(update)
    assert len(packed) <= len(body), f"{len(packed)} bytes where {len(body)} do"
    again = decode(packed, elements)
    assert again.sections == update.sections
    assert np.array_equal(again.index, update.index)
    assert np.array_equal(again.count, update.count)
    if len(body) <= REFERENCE_BYTES_MAX:
        changes = update.change.tolist()
        assert reference_decode(body) == dict(zip(update.index.tolist(), changes, strict=True))
    if elements <= APPLIED_ELEMENTS_MAX:
        check_applied(update, elements)


def check_valid(update: Update, elements: int) -> None:
    """Compare an update with what `decode` promises."""
    index, count = update.index.astype(np.int64), update.count.astype(np.int64)
    assert 0 < len(index) == len(count)
    assert 0 <= update.start <= int(index[0])
    assert int(index[-1]) < update.start + update.length <= elements
    assert (np.diff(index) > 0).all()
    assert count.all()
    assert int(np.abs(count * update.sections.of_elements(update.index)).max()) <= INT32_MAX


def check_applied(update: Update, elements: int) -> None:
    """Apply an update to zeros."""
    replica = Replica.zeros(elements)
    replica.apply(update)
    expected = np.zeros(elements, np.int64)
    expected[update.index] = update.change
    assert np.array_equal(replica.values, expected)


def seeds() -> Iterable[bytes]:
    """Return updates of every coder, with and without magnitudes."""
    sparse = np.array([3, 17, 18, 500, 999], np.uint32)
    every = np.arange(100, dtype=np.uint32)
    wide = np.array([0, 2**20, 2**31 - 2], np.uint32)
    yield _seed(1_000, 0, 1_000, 1, sparse, [1, -1, 1, 1, -1])
    yield _seed(1_000, 3, 997, 2**24, sparse, [1, -127, 1, 5, -2])
    yield _seed(100, 0, 100, 3, every, [1, -2] * 50)
    yield _seed(100, 0, 100, 1, every, [1, -1] * 50)
    yield _seed(ELEMENTS_MAX, 0, ELEMENTS_MAX, 1, wide, [INT32_MAX, -1, 1])
    yield _seed(1, 0, 1, 1, every[:1], [-1])


def _seed(
    elements: int,
    start: int,
    length: int,
    multiple: int,
    index: np.ndarray[tuple[int], np.dtype[np.uint32]],
    count: Sequence[int],
) -> bytes:
    update = Update(
        Sections.single(start, start + length, multiple), index, np.array(count, np.int32)
    )
    return elements.to_bytes(4, "little") + pack_update(update)
