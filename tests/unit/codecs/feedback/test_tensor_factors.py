"""Thresholds per tensor follow what the tensors change by, and rest where that does."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import CodecError, TensorFactors
from gradwire_codecs.feedback.tensor_factors import SAMPLE, TENSOR_SAMPLE_MAX

LENGTHS = st.lists(st.integers(0, 3_000), min_size=1, max_size=12).filter(any)


def learn(factors: TensorFactors, scales: list[float], steps: int = 40, seed: int = 0) -> None:
    """Let factors see normal changes of these scales."""
    random = np.random.default_rng(seed)
    starts = np.cumsum(factors.lengths) - factors.lengths
    owner = np.searchsorted(starts, factors.sample, "right") - 1
    # Tensors of no elements share their start with the next one, which is the last found.
    for _ in range(steps):
        change = random.normal(0, np.array(scales)[owner])
        factors.observe(change.astype(np.float32))


@given(lengths=LENGTHS)
def test_a_sample_has_some_of_every_tensor_and_is_bounded(lengths: list[int]) -> None:
    factors = TensorFactors(lengths)

    bounds = np.concatenate([[0], np.cumsum(lengths)])
    counts = np.diff(np.searchsorted(factors.sample, bounds))
    assert (np.diff(factors.sample) > 0).all()
    assert factors.sample[-1] < sum(lengths)
    assert ((counts > 0) == (np.array(lengths) > 0)).all()
    assert counts.max() <= TENSOR_SAMPLE_MAX


def test_a_sample_of_many_tensors_is_bounded_too() -> None:
    assert len(TensorFactors([100] * 16_384).sample) <= SAMPLE


def test_before_anything_was_seen_all_thresholds_are_the_same() -> None:
    factors = TensorFactors([3, 5, 2])

    sections = factors.sections(1_000)

    assert sections.bounds.tolist() == [0, 10]
    assert sections.multiples.tolist() == [1_000]


def test_a_tensor_s_threshold_is_in_proportion_to_what_it_changes_by() -> None:
    factors = TensorFactors([10_000, 1_000, 100])

    learn(factors, [1e-3, 4e-3, 16e-3])

    relative = factors.factors / factors.factors[0]
    assert relative.tolist() == [1.0, 4.0, 16.0]
    assert factors.sections(1_000).multiples.tolist() == (1_000 * factors.factors).tolist()


@given(
    lengths=LENGTHS,
    seed=st.integers(0, 100),
    exponents=st.lists(st.integers(-12, 12), min_size=12, max_size=12),
    multiple=st.integers(1, 2**24),
)
def test_thresholds_are_whole_bounded_and_cover_every_element(
    lengths: list[int], seed: int, exponents: list[int], multiple: int
) -> None:
    factors = TensorFactors(lengths)
    learn(factors, [10.0**e for e in exponents[: len(lengths)]], steps=5, seed=seed)

    sections = factors.sections(multiple)

    assert (sections.start, sections.stop) == (0, sum(lengths))
    assert ((factors.factors >= 1 / 32) & (factors.factors <= 32)).all()
    assert ((sections.multiples >= 1) & (sections.multiples <= 2**24)).all()


def test_thresholds_rest_while_what_changes_does() -> None:
    """Measurements scatter by their sample, and factors do not."""
    factors = TensorFactors([40, 5_000, 300])
    scales = [1e-3, 1.4e-3, 2.8e-3]
    learn(factors, scales)
    before = factors.sections(10_000)

    for seed in range(1, 40):
        learn(factors, scales, steps=5, seed=seed)
        assert factors.sections(10_000) == before


def test_factors_follow_when_a_tensor_begins_to_move() -> None:
    factors = TensorFactors([1_000, 1_000])
    learn(factors, [1e-3, 0.0])
    assert factors.factors[1] == 1 / 32

    learn(factors, [1e-3, 1e-3], steps=100)

    assert factors.factors.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_change_that_says_nothing_teaches_nothing(value: float) -> None:
    factors = TensorFactors([4, 4])
    learn(factors, [1.0, 4.0])
    before = factors.state()

    factors.observe(np.full(8, value, np.float32))

    assert factors.state() == before


@given(lengths=LENGTHS, steps=st.integers(0, 20), seed=st.integers(0, 100))
def test_restored_factors_go_on_like_those_that_were_saved(
    lengths: list[int], steps: int, seed: int
) -> None:
    scales = np.random.default_rng(seed).lognormal(0, 1, len(lengths)).tolist()
    saved, restored = TensorFactors(lengths), TensorFactors(lengths)
    learn(saved, scales, steps, seed)

    restored.restore(saved.state())
    for factors in (saved, restored):
        learn(factors, scales, 3, seed + 1)

    assert restored.state() == saved.state()
    assert restored.sections(1_000) == saved.sections(1_000)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean_square": [1.0]},
        {"mean_square": [1.0, -1.0]},
        {"mean_square": [1.0, float("nan")]},
        {"mean_square": [1.0, float("inf")]},
        {"mean_square": "many"},
        {"mean_square": [10**400, 1]},
        {"mean_square": None},
        {"exponent": [0.0, 6.0]},
        {"measured": []},
        {"measured": [-1.0]},
        {"measured": [1e300]},
    ],
)
def test_a_saved_state_that_does_not_fit_changes_nothing(wrong: dict[str, Any]) -> None:
    factors = TensorFactors([4, 4])
    learn(factors, [1.0, 4.0])
    before = factors.state()

    with pytest.raises(CodecError, match=f"{next(iter(wrong))!r}.* in the saved state|saved state"):
        factors.restore(before | wrong)

    assert factors.state() == before


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [5, -1]])
def test_tensors_of_nothing_are_refused(lengths: list[int]) -> None:
    with pytest.raises(CodecError, match="tensors of no elements"):
        TensorFactors(lengths)
