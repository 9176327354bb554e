"""The parts of a vector that take turns: fragments, as streaming DiLoCo has them.

Fragments follow each other and have as many elements, to one. They do not end where tensors do:
then a large tensor would be as large a part of what is sent at once. The paper has tensors and
layers in fragments of like sizes: Douillard et al., "Streaming DiLoCo with overlapping
communication", 2025 (arXiv 2501.18512).
"""

from collections.abc import Sequence


def fragments_of(ranges: Sequence[tuple[int, int]], streams: int) -> list[list[tuple[int, int]]]:
    """Return the ranges of each fragment.

    Parameters
    ----------
    ranges : sequence of (int, int)
        Parts of the vector, from 0 on, in order and without gaps.
    streams : int
        How many fragments; those of a vector with fewer elements are empty.
    """
    elements = ranges[-1][1]
    ends = [elements * (each + 1) // streams for each in range(streams)]
    return [_within(ranges, start, stop) for start, stop in zip([0, *ends], ends, strict=False)]


def _within(ranges: Sequence[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """Return the parts of ranges from one element to another."""
    cut = [(max(low, start), min(high, stop)) for low, high in ranges]
    return [(low, high) for low, high in cut if low < high]
