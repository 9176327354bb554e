"""Encoded updates: four bytes say how long the vector is, the rest is decoded.

Whatever is accepted is valid in every respect, is what a second decoder reads, and comes back the
same when our encoder has encoded it, in no more bytes than that promises. What is refused changes
nothing. Kernels check the bounds of their arrays here.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from fuzz.reading import Reader
from gradwire_codecs import NOTHING, LocalFeedback, Update, decode, encoded_bytes_max
from gradwire_codecs.arrays import UInt32Array
from gradwire_codecs.errors import MalformedUpdateError
from gradwire_codecs.format.header import INT32_MAX, MULTIPLE_MAX
from gradwire_codecs.format.update import ELEMENTS_MAX, pack_update
from gradwire_codecs.replica.replica import Replica
from support.reference_decoder import reference_decode
from support.updates import range_of

BYTES_MAX: Final = 512

REFERENCE_BYTES_MAX: Final = 128
"""The second decoder looks at every bit by itself."""

APPLIED_ELEMENTS_MAX: Final = 4_096


def check(data: bytes) -> None:
    """Decode an update."""
    reader = Reader(data)
    elements = max(reader.integer(4) & ELEMENTS_MAX, 1)
    body = reader.rest()
    try:
        update = decode(body, elements)
    except MalformedUpdateError:
        check_refused(body, elements)
        return
    if not body:
        check_nothing(update, elements)
        return
    check_valid(update, elements)
    packed = pack_update(update)
    magnitude_max = int(np.abs(update.count.astype(np.int64)).max())
    assert len(packed) <= encoded_bytes_max(update.length, magnitude_max)
    again = decode(packed, elements)
    assert range_of(again) == range_of(update)
    assert np.array_equal(again.index, update.index)
    assert np.array_equal(again.count, update.count)
    if len(body) <= REFERENCE_BYTES_MAX:
        changes = update.change.tolist()
        assert reference_decode(body) == dict(zip(update.index.tolist(), changes, strict=True))
    if elements <= APPLIED_ELEMENTS_MAX:
        check_applied(body, update, elements)


def check_nothing(update: Update, elements: int) -> None:
    """Look whether the update that is encoded by no byte at all changes nothing."""
    assert (update.start, update.stop, len(update.index), len(update.count)) == (0, elements, 0, 0)
    replica = Replica.zeros(min(elements, APPLIED_ELEMENTS_MAX))
    assert replica.apply(NOTHING) == 0
    assert not replica.values.any()


def check_refused(body: bytes, elements: int) -> None:
    """Apply what was refused, and look for a trace of it."""
    replica = Replica.zeros(min(elements, APPLIED_ELEMENTS_MAX))
    with suppress(MalformedUpdateError):
        replica.apply(body)
        raise AssertionError("applied, but not decoded")
    assert not replica.values.any()


def check_valid(update: Update, elements: int) -> None:
    """Compare an update with what `decode` promises."""
    index, count = update.index.astype(np.int64), update.count.astype(np.int64)
    assert 0 < len(index) == len(count)
    assert 0 <= update.start <= int(index[0])
    assert int(index[-1]) < update.start + update.length <= elements
    assert (np.diff(index) > 0).all()
    assert count.all()
    assert 1 <= update.multiple <= MULTIPLE_MAX
    assert int(np.abs(count * update.multiple).max()) <= INT32_MAX
    assert (update.change == count * update.multiple).all()


def check_applied(body: bytes, update: Update, elements: int) -> None:
    """Apply an update to zeros."""
    feedback = LocalFeedback(np.zeros(elements, np.float32), Replica.zeros(elements))
    replica = feedback.replica
    assert feedback.apply(body) == len(update.index)
    expected = np.zeros(elements, np.int64)
    expected[update.index] = update.change
    assert np.array_equal(replica.values, expected)


def seeds() -> Iterable[bytes]:
    """Return updates of every format."""
    sparse = np.array([3, 17, 18, 500, 999], np.uint32)
    every = np.arange(100, dtype=np.uint32)
    wide = np.array([0, 2**20, 2**31 - 2], np.uint32)
    yield _seed(0, 1_000, 1, sparse, [1, -1, 1, 1, -1])
    yield _seed(3, 1_000, 2**24, sparse, [1, -127, 1, 5, -2])
    yield _seed(0, 300, 3, 3 * every, [1, -2] + [1] * 98)
    yield _seed(0, 300, 7, 3 * every, [5, -9] * 50)
    yield _seed(0, 100, 1, every, [1, -1] * 50)
    yield _seed(0, 100, 2, every, [1, -2] * 50)
    yield _seed(0, 100, 2, every, [100, -127] * 50)
    yield _seed(0, ELEMENTS_MAX, 1, wide, [INT32_MAX, -1, 1])
    yield _seed(0, 1, 1, every[:1], [-1])


def _seed(start: int, stop: int, multiple: int, index: UInt32Array, count: Sequence[int]) -> bytes:
    update = Update(start, stop, multiple, index, np.array(count, np.int32))
    return stop.to_bytes(4, "little") + pack_update(update)
