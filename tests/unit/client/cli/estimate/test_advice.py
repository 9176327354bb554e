"""What is advised would do."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.cli.estimate.advice import advice, density_max, headline, workers_max
from gradwire.cli.estimate.model import estimate, keeps_up
from support.estimating import inputs
from support.tiers import examples


@given(link=st.floats(1e6, 1e9), step_seconds=st.floats(0.01, 1.0))
def test_so_many_workers_keep_up_and_not_one_more(link: float, step_seconds: float) -> None:
    given = inputs(link=link, step_seconds=step_seconds)

    most = workers_max(given)

    assert not most or keeps_up(replace(given, workers=most))
    assert not keeps_up(replace(given, workers=most + 1))


@settings(max_examples=examples(30))
@given(workers=st.integers(2, 100), link=st.floats(1e6, 1e8))
def test_the_density_that_fits_is_the_largest_one(workers: int, link: float) -> None:
    given = inputs(workers=workers, link=link, density=0.05)

    found = density_max(given)

    if found is None:
        assert keeps_up(given) or not keeps_up(replace(given, density=1.1e-7))
    else:
        assert found < given.density
        assert keeps_up(replace(given, density=found))
        assert not keeps_up(replace(given, density=min(1.05 * found, given.density)))


@settings(max_examples=examples(100))
@given(
    workers=st.integers(1, 200),
    link=st.floats(1e4, 1e10),
    density=st.floats(1e-5, 0.5),
    step_seconds=st.floats(1e-3, 10.0),
)
def test_the_first_line_agrees_with_the_table_below_it(
    workers: int, link: float, density: float, step_seconds: float
) -> None:
    given = inputs(
        workers=workers, link=link, link_up=link, density=density, step_seconds=step_seconds
    )
    result = estimate(given)

    said = headline(result)

    assert said.startswith("Too slow" if result.limit.is_short else "Fast enough")
    use = re.search(r"use (\d+)", said)
    if use is not None:
        assert not estimate(replace(given, workers=int(use[1]))).limit.is_short
    thinner = re.search(r" density ([\d.e-]+\d)", said)
    if thinner is not None:
        assert not estimate(replace(given, density=float(thinner[1]))).limit.is_short
    steps = re.search(r"every (\d+) steps", said)
    if steps is not None:
        longer = replace(given, step_seconds=int(steps[1]) * step_seconds)
        assert not estimate(longer).limit.is_short
    assert (use or thinner or steps or "it takes more of" in said) if "Too slow" in said else True


@pytest.mark.parametrize(("threads", "expected"), [(1, True), (2, False)])
def test_more_codec_threads_are_advised_to_who_has_one(threads: int, expected: bool) -> None:
    result = estimate(inputs(step_seconds=0.02))

    assert any("codec_threads=2" in s for s in advice(result, threads)) is expected


def test_a_full_inbox_is_told() -> None:
    result = estimate(inputs(workers=60, density=0.05, link=1e12, step_seconds=5.0))

    assert any("MB of updates come in a step" in s for s in advice(result, codec_threads=1))
