"""Sections: which threshold an element has."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs.errors import CodecError
from gradwire_codecs.format.sections import MULTIPLE_MAX, Sections

LENGTHS_AND_MULTIPLES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=12
).filter(lambda pairs: any(length for length, _ in pairs))


def each(sections: Sections) -> list[int]:
    """Return the threshold of each element."""
    repeated: list[int] = np.repeat(sections.multiples, np.diff(sections.bounds)).tolist()
    return repeated


@given(LENGTHS_AND_MULTIPLES, st.integers(0, 5))
def test_every_element_has_the_threshold_of_its_tensor(
    pairs: list[tuple[int, int]], start: int
) -> None:
    sections = Sections.of([n for n, _ in pairs], [m for _, m in pairs], start)

    assert each(sections) == [m for n, m in pairs for _ in range(n)]
    assert sections.start == start
    assert sections.stop == start + sum(n for n, _ in pairs)
    assert not (sections.multiples[1:] == sections.multiples[:-1]).any()
    assert sections.largest == max(m for n, m in pairs if n)


@given(st.data(), LENGTHS_AND_MULTIPLES)
def test_a_part_has_the_thresholds_of_the_whole(
    data: st.DataObject, pairs: list[tuple[int, int]]
) -> None:
    sections = Sections.of([n for n, _ in pairs], [m for _, m in pairs])
    low = data.draw(st.integers(0, sections.stop - 1))
    high = data.draw(st.integers(low + 1, sections.stop))

    part = sections.within(low, high)

    assert each(part) == each(sections)[low:high]
    assert (part.start, part.stop) == (low, high)
    assert (part == sections) == ((low, high) == (0, sections.stop))


@pytest.mark.parametrize(
    ("bounds", "multiples"),
    [
        ([0], []),
        ([0, 1], [1, 2]),
        ([0, 1, 1], [1, 2]),
        ([-1, 1], [1]),
        ([0, 1], [0]),
        ([0, 1], [MULTIPLE_MAX + 1]),
    ],
)
def test_what_are_no_sections_is_refused(bounds: list[int], multiples: list[int]) -> None:
    with pytest.raises(CodecError):
        Sections(np.array(bounds, np.int64), np.array(multiples, np.int64))


def test_a_part_that_is_not_inside_is_refused() -> None:
    with pytest.raises(CodecError, match="elements 1 to 4 of 0 to 3"):
        Sections.single(0, 3, 1).within(1, 4)
