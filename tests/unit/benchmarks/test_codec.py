"""The benchmarks of the codec run, on few elements; what they measure there means nothing."""

from math import prod
from pathlib import Path

import pytest

from benchmarks import codec, codec_size
from benchmarks.figures import Figure
from benchmarks.models import GPT_SHAPES

ELEMENTS = 20_000
SHAPES = ((200, 100), (100,))


def test_speed_and_memory_are_measured() -> None:
    figures = codec.measure(ELEMENTS, runs=1)

    assert len({(figure.figure, figure.aim) for figure in figures}) == len(figures)
    assert all(figure.value > 0 and figure.rival_value > 0 for figure in figures)
    assert sum("threshold pass" in figure.figure for figure in figures) == 5


def test_the_model_is_as_large_as_that_of_the_other_figures() -> None:
    assert sum(map(prod, GPT_SHAPES)) == codec.N


@pytest.mark.parametrize(("elements", "hits"), [(1000, 0), (1000, 1000), (1, 1)])
def test_positions_that_are_known_take_no_bits(elements: int, hits: int) -> None:
    assert codec_size.entropy_bits(elements, hits) == hits


def test_the_entropy_is_that_of_choosing_half_of_all_and_of_their_signs() -> None:
    assert codec_size.entropy_bits(1000, 500) == 1000 + 500


def test_sizes_are_measured_and_drawn(tmp_path: Path) -> None:
    figures = codec_size.of_uniform_positions(SHAPES)

    of_top_k = [figure for figure in figures if figure.rival == codec_size.TOP_K]
    assert len(of_top_k) == len(codec_size.DENSITIES)
    assert all(ours_is_smaller(figure) for figure in of_top_k[2:])
    codec_size.draw(figures, tmp_path, SHAPES)
    assert list(tmp_path.iterdir())


def ours_is_smaller(figure: Figure) -> bool:
    return figure.value < figure.rival_value


def test_the_demo_is_trained_and_its_updates_are_measured() -> None:
    mean, together, *sizes = codec_size.of_the_demo(workers=2, steps=2)

    assert mean.runs == 4
    assert 0.5 < mean.ratio < 2
    assert 0.5 < together.ratio < 2
    assert {figure.value for figure in sizes} == {sizes[0].value}
    assert {figure.rival for figure in sizes} >= {codec_size.DL4J, codec_size.DENSE}
