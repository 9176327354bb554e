"""The benchmarks of the codec: the bound they compare with, and what must not change unnoticed."""

import pytest

from benchmarks import codec_size


@pytest.mark.parametrize(("elements", "hits"), [(1000, 0), (1000, 1000), (1, 1)])
def test_positions_that_are_known_take_no_bits(elements: int, hits: int) -> None:
    assert codec_size.entropy_bits(elements, hits) == hits


def test_the_entropy_is_that_of_choosing_half_of_all_and_of_their_signs() -> None:
    assert codec_size.entropy_bits(1000, 500) == 1000 + 500
