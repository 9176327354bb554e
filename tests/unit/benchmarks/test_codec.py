"""The benchmarks of the codec: the bound they compare with, and what must not change unnoticed."""

from math import prod

import pytest

from benchmarks import codec, codec_size
from benchmarks.models import GPT_SHAPES


def test_the_model_is_as_large_as_that_of_the_other_figures() -> None:
    assert sum(map(prod, GPT_SHAPES)) == codec.FULL.elements


@pytest.mark.parametrize(("elements", "hits"), [(1000, 0), (1000, 1000), (1, 1)])
def test_positions_that_are_known_take_no_bits(elements: int, hits: int) -> None:
    assert codec_size.entropy_bits(elements, hits) == hits


def test_the_entropy_is_that_of_choosing_half_of_all_and_of_their_signs() -> None:
    assert codec_size.entropy_bits(1000, 500) == 1000 + 500
