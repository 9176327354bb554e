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


def test_the_first_line_names_workers_and_density_that_fit() -> None:
    said = headline(estimate(inputs(workers=16, density=0.01)))

    assert re.fullmatch(
        r"Too slow for 16 workers at this density: use \d+, or density 0\.\d+\.", said
    )


def test_where_nothing_fits_the_first_line_names_what_is_short() -> None:
    said = headline(estimate(inputs(workers=200, link=1e3, link_up=1e3, master_link=1e3)))

    assert said.startswith("Too slow for 200 workers at this density: it takes more of master's")


def test_what_is_advised_for_a_slow_link_makes_it_fit() -> None:
    given = inputs(workers=16, density=0.01, master_link=1e11, masters=8)
    result = estimate(given)
    assert result.limit.name == "worker's link, down"

    sentences = advice(result, codec_threads=1)

    density = float(re.search(r"target_density=([\d.e-]+)", "\n".join(sentences))[1])  # type: ignore[index]
    workers = next(int(s.split()[0]) for s in sentences if "workers would fit" in s)
    steps = next(int(re.search(r"every (\d+) steps", s)[1]) for s in sentences if "every" in s)  # type: ignore[index]
    assert keeps_up(replace(given, density=density))
    assert keeps_up(replace(given, workers=workers))
    assert keeps_up(replace(given, step_seconds=steps * given.step_seconds))
    assert any("--conflation-mib-max" in sentence for sentence in sentences)


def test_a_busy_master_is_given_the_relays_that_do() -> None:
    given = inputs(workers=100, link=1e10, link_up=1e10, master_link=1e11, density=1e-4)
    result = estimate(given)
    assert result.limit.name == "master's processor"

    (sentence,) = (s for s in advice(result, codec_threads=1) if "relays would do" in s)

    relays = int(sentence.partition(" ")[0])
    assert keeps_up(replace(given, relays=relays))
    assert not keeps_up(replace(given, relays=relays - 1))


def test_where_neither_more_masters_nor_relays_do_both_together_may() -> None:
    given = inputs(workers=100, link=1e10, link_up=1e10, master_link=1e10, density=0.01)
    sentences = advice(estimate(given), codec_threads=1)
    assert not any("masters would do" in s or "relays would do" in s for s in sentences)

    (sentence,) = (s for s in sentences if "relays each would do" in s)

    masters, relays = (int(number) for number in re.findall(r"\d+", sentence))
    assert keeps_up(replace(given, masters=masters, relays=relays))
    assert not keeps_up(replace(given, masters=masters - 1, relays=relays))


@pytest.mark.parametrize(
    ("master_link", "limit"), [(1e11, "master's processor"), (1e9, "master's link, out")]
)
def test_a_busy_master_is_given_the_masters_that_do(master_link: float, limit: str) -> None:
    given = inputs(workers=16, density=0.02, link=1e10, link_up=1e10, master_link=master_link)
    result = estimate(given)
    assert result.limit.name == limit

    (sentence,) = (s for s in advice(result, codec_threads=1) if "masters would do" in s)

    masters = int(sentence.partition(" ")[0])
    assert keeps_up(replace(given, masters=masters))
    assert not keeps_up(replace(given, masters=masters - 1))


@pytest.mark.parametrize(("threads", "expected"), [(1, True), (2, False)])
def test_more_codec_threads_are_advised_to_who_has_one(threads: int, expected: bool) -> None:
    result = estimate(inputs(step_seconds=0.02))

    assert any("codec_threads=2" in s for s in advice(result, threads)) is expected


def test_where_all_is_well_only_the_end_of_it_is_told() -> None:
    given = inputs(step_seconds=1.0, link=1e9)

    (sentence,) = advice(estimate(given), codec_threads=1)

    assert sentence.startswith(f"up to {workers_max(given)} workers, every update arrives")


def test_a_full_inbox_is_told() -> None:
    result = estimate(inputs(workers=60, density=0.05, link=1e12, step_seconds=5.0))

    assert any("MB of updates come in a step" in s for s in advice(result, codec_threads=1))
