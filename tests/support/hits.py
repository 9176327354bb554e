"""Hits to encode, of every density and mixture of magnitudes."""

from typing import Final

import numpy as np
from hypothesis import strategies as st

from gradwire_codecs import Update


def update_of(
    seed: int, start: int, length: int, density: float, larger: float, magnitude_max: int
) -> Update:
    """Return an update of which a part `larger` of the hits has magnitudes above 1."""
    random = np.random.default_rng(seed)
    hits = np.flatnonzero(random.random(length) < density)
    hits = hits if hits.size else random.integers(0, length, 1)
    magnitude = np.where(
        random.random(hits.size) < larger,
        random.integers(1, magnitude_max, hits.size, endpoint=True),
        1,
    )
    count = magnitude * random.choice([-1, 1], hits.size)
    multiple = max(min(2**24, (2**31 - 1) // magnitude_max), 1)
    index = (hits + start).astype(np.uint32)
    return Update(start, start + length, multiple, index, count.astype(np.int32))


HITS: Final = st.builds(
    update_of,
    st.integers(0, 2**32),
    st.sampled_from([0, 7, 2**31 - 9000]),
    st.sampled_from([1, 64, 1000, 8000]),
    st.sampled_from([0.0, 0.002, 0.05, 0.5, 1.0]),
    st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    st.sampled_from([2, 3, 127, 2**31 - 1]),
)
"""Updates of all formats, the largest positions included."""
"""An update of each format."""
