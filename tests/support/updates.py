"""Updates of every kind, for properties that hold for all of them."""

import numpy as np
from hypothesis import strategies as st

from gradwire_codecs import Replica, Update, encode
from gradwire_codecs.format.header import INT32_MAX
from gradwire_codecs.format.update import ELEMENTS_MAX

DENSITIES = [0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 1.0]
STARTS = [0, 1, 7, 1_000_000]
MULTIPLES = [1, 2, 1000, 2**24]
MAGNITUDES = [1, 2, 3, 127, INT32_MAX]
PARTS_WITH_LARGER_MAGNITUDES = [0.0, 0.001, 0.05, 0.5, 1.0]


@st.composite
def updates(draw: st.DrawFn, length_max: int = 3000) -> Update:
    """Draw an update of any density, of which no hit, some or all have larger magnitudes."""
    length = draw(st.integers(1, length_max))
    start = draw(st.sampled_from([*STARTS, ELEMENTS_MAX - length]))
    multiple = draw(st.sampled_from(MULTIPLES))
    density = draw(st.sampled_from(DENSITIES))
    larger = draw(st.sampled_from(PARTS_WITH_LARGER_MAGNITUDES))
    magnitude_max = draw(st.sampled_from(MAGNITUDES))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    hits = np.flatnonzero(random.random(length) < density)
    if not hits.size:
        hits = np.array([draw(st.integers(0, length - 1))])
    magnitude = random.integers(1, magnitude_max, hits.size, endpoint=True)
    magnitude = np.where(random.random(hits.size) < larger, magnitude, 1)
    magnitude = np.minimum(magnitude, INT32_MAX // multiple)
    count = magnitude * random.choice([-1, 1], hits.size)
    index = (hits + start).astype(np.uint32)
    return Update(start, start + length, multiple, index, count.astype(np.int32))


def encoded_updates(seed: int, elements: int, n: int) -> list[bytes]:
    """Return what `n` changes of normal noise are encoded to."""
    random = np.random.default_rng(seed)
    changes = [random.normal(0, 0.01, elements).astype(np.float32) for _ in range(n)]
    return [
        body
        for change in changes
        for body in encode(change, Replica.zeros(elements), threshold=0.01)
    ]


def single(length: int, index: list[int], count: list[int], multiple: int = 1) -> Update:
    """Return an update from the first element on."""
    return Update(0, length, multiple, np.array(index, np.uint32), np.array(count, np.int32))


def range_of(update: Update) -> tuple[int, int, int]:
    """Return what an update covers, and its threshold."""
    return update.start, update.stop, update.multiple


def changes(update: Update) -> dict[int, int]:
    """Return what an update does, in quanta per element."""
    return dict(zip(update.index.tolist(), update.change.tolist(), strict=True))
