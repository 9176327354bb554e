"""Updates of every kind, for properties that hold for all of them."""

import numpy as np
from hypothesis import strategies as st

from gradwire_codecs import Sections, Update
from gradwire_codecs.format.header import INT32_MAX
from gradwire_codecs.format.update import ELEMENTS_MAX

DENSITIES = [0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 1.0]
STARTS = [0, 1, 7, 1_000_000]
MULTIPLES = [1, 2, 1000, 2**24]
MAGNITUDES = [1, 2, 3, 127, INT32_MAX]
PARTS_WITH_LARGER_MAGNITUDES = [0.0, 0.001, 0.05, 0.5, 1.0]


@st.composite
def sections_of(draw: st.DrawFn, length: int) -> Sections:
    """Draw sections, few or many, that cover so many elements."""
    start = draw(st.sampled_from([*STARTS, ELEMENTS_MAX - length]))
    cuts = draw(st.sets(st.integers(1, length - 1), max_size=8)) if length > 1 else set()
    bounds = np.array([0, *sorted(cuts), length], np.int64) + start
    multiples = [draw(st.sampled_from(MULTIPLES)) for _ in range(len(bounds) - 1)]
    return Sections(bounds, np.array(multiples, np.int64))


@st.composite
def updates(draw: st.DrawFn, length_max: int = 3000) -> Update:
    """Draw an update of any density, of which no hit, some or all have larger magnitudes."""
    length = draw(st.integers(1, length_max))
    sections = draw(sections_of(length))
    density = draw(st.sampled_from(DENSITIES))
    larger = draw(st.sampled_from(PARTS_WITH_LARGER_MAGNITUDES))
    magnitude_max = draw(st.sampled_from(MAGNITUDES))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    hits = np.flatnonzero(random.random(length) < density)
    if not hits.size:
        hits = np.array([draw(st.integers(0, length - 1))])
    index = (hits + sections.start).astype(np.uint32)
    magnitude = random.integers(1, magnitude_max, hits.size, endpoint=True)
    magnitude = np.where(random.random(hits.size) < larger, magnitude, 1)
    magnitude = np.minimum(magnitude, INT32_MAX // sections.of_elements(index))
    count = magnitude * random.choice([-1, 1], hits.size)
    return Update(sections, index, count.astype(np.int32))


def single(length: int, index: list[int], count: list[int], multiple: int = 1) -> Update:
    """Return an update of one section from the first element on."""
    return Update(
        Sections.single(0, length, multiple), np.array(index, np.uint32), np.array(count, np.int32)
    )


def changes(update: Update) -> dict[int, int]:
    """Return what an update does, in quanta per element."""
    return dict(zip(update.index.tolist(), update.change.tolist(), strict=True))
