"""Units in which an optimizer's state is averaged: what comes back from them, and how exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.optimizer.torch_averaged import (
    COMPARED,
    PLAIN_UNIT,
    RATIO_UNIT,
    SQUARES,
    UNITS_MAX,
    from_units,
    to_units,
)
from gradwire_codecs.arrays import Float32Array

SQUARE = st.floats(2.0**-120, 2.0**60, width=32)
RATIO = st.floats(-100, 100, width=32)


def array(*values: float) -> Float32Array:
    return np.array(values, np.float32)


def there_and_back(slots: dict[str, Float32Array]) -> dict[str, Float32Array]:
    units = {name: to_units(slots, name) for name in slots}
    for each in units.values():
        assert (each == np.rint(each)).all()
        assert np.abs(each).max() <= UNITS_MAX
    return {name: from_units(units, name) for name in units}


@pytest.mark.parametrize("name", sorted(SQUARES))
@given(values=st.lists(SQUARE, min_size=1, max_size=8))
def test_a_square_comes_back_relative_to_itself(name: str, values: list[float]) -> None:
    given_ = array(*values)
    np.testing.assert_allclose(there_and_back({name: given_})[name], given_, rtol=2e-5)


@pytest.mark.parametrize(
    ("name", "other", "power"),
    [(name, other, power) for name, others in COMPARED.items() for other, power in others],
)
@given(pairs=st.lists(st.tuples(RATIO, SQUARE), min_size=1, max_size=8))
def test_a_mean_comes_back_relative_to_its_root(
    name: str, other: str, power: float, pairs: list[tuple[float, float]]
) -> None:
    squares = array(*(square for _, square in pairs))
    root = squares**power
    means = (array(*(ratio for ratio, _ in pairs)) * root).astype(np.float32)

    found = there_and_back({name: means, other: squares})

    assert (np.abs(found[name] - means) <= root * (RATIO_UNIT + 2e-5 * 100)).all()


@given(values=st.lists(st.floats(-127, 127, width=32), min_size=1, max_size=8))
def test_anything_else_comes_back_to_a_unit(values: list[float]) -> None:
    for name in ("momentum_buffer", "exp_avg", "prev"):  # with nothing to compare it with
        found = there_and_back({name: array(*values)})[name]
        np.testing.assert_allclose(found, values, rtol=1e-6, atol=PLAIN_UNIT / 2)


def test_zero_stays_zero_and_what_is_too_small_becomes_it() -> None:
    slots = {"exp_avg_sq": array(0, 1e-44, 1), "exp_avg": array(0, 0, 0)}
    found = there_and_back(slots)
    assert found["exp_avg_sq"].tolist() == [0, 0, 1]
    assert found["exp_avg"].tolist() == [0, 0, 0]


def test_what_is_too_large_is_the_largest() -> None:
    found = there_and_back({"momentum_buffer": array(1e9, -1e9)})["momentum_buffer"]
    assert found.tolist() == [128, -128]


def test_whatever_is_contributed_no_state_is_infinite() -> None:
    units = {name: array(-(2.0**31), 0, 2.0**31) for name in ("exp_avg_sq", "exp_avg", "prev")}
    for name in units:
        assert np.isfinite(from_units(units, name)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_no_number_stays_none(bad: float) -> None:
    for name in ("exp_avg_sq", "exp_avg", "momentum_buffer"):
        slots = {"exp_avg_sq": array(1, 1), name: array(bad, 1)}
        assert np.isnan(to_units(slots, name)).tolist() == [True, False]
