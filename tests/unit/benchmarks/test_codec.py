"""The benchmarks of the codec: the bound they compare with, and what must not change unnoticed."""

from math import prod

import pytest

from benchmarks import codec, codec_size
from benchmarks.figures import Figure
from benchmarks.models import GPT_SHAPES

SHAPES = ((200, 100), (100,))


def test_the_model_is_as_large_as_that_of_the_other_figures() -> None:
    assert sum(map(prod, GPT_SHAPES)) == codec.FULL.elements


@pytest.mark.parametrize(("elements", "hits"), [(1000, 0), (1000, 1000), (1, 1)])
def test_positions_that_are_known_take_no_bits(elements: int, hits: int) -> None:
    assert codec_size.entropy_bits(elements, hits) == hits


def test_the_entropy_is_that_of_choosing_half_of_all_and_of_their_signs() -> None:
    assert codec_size.entropy_bits(1000, 500) == 1000 + 500


def test_updates_are_smaller_than_with_top_k_whatever_their_density() -> None:
    densities = codec_size.FULL.densities[2::3]

    figures = codec_size.of_uniform_positions(SHAPES, densities)

    of_top_k = [figure for figure in figures if figure.rival == codec_size.TOP_K]
    assert len(of_top_k) == len(densities)
    assert all(ours_is_smaller(figure) for figure in of_top_k)


def ours_is_smaller(figure: Figure) -> bool:
    return figure.value < figure.rival_value
