"""Names that terminals would act on, numbers in few columns, curves."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gradwire.cli.top.text import (
    BARS,
    MISSING,
    fitted,
    fitted_parts,
    number,
    plain,
    show_duration,
    show_number,
    show_rate,
    show_ratio,
    show_size,
    show_whole,
    sparkline,
)

NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))


@given(st.text())
def test_a_name_has_nothing_that_a_terminal_acts_on(name: str) -> None:
    assert plain(name).isprintable()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("gpu1", "gpu1"),
        ("\x1b[31mred\x1b[0m", "\ufffd[31mred\ufffd[0m"),
        ("two\nlines\r", "two\ufffdlines\ufffd"),
        ("\u202eleft", "\ufffdleft"),
        ("e" + "\u0301" * 9, "e\u0301\u0301"),
        ("e" + "\u20dd" * 9, "e\u20dd\u20dd"),
        ("caf\u00e9 \u4e2d", "caf\u00e9 \u4e2d"),
        ("x" * 10_000_000, "x" * 300),
        (None, ""),
        (7, ""),
    ],
)
def test_a_name_is_shown_as_it_is_otherwise(name: object, shown: str) -> None:
    assert plain(name) == shown


@given(st.text(), st.integers(0, 40), st.booleans())
def test_a_text_that_is_fitted_has_exactly_so_many_columns(
    text: str, columns: int, right: bool
) -> None:
    assert cell_len(fitted(plain(text), columns, right=right)) == columns


def test_parts_that_do_not_fit_are_left_out_from_the_end() -> None:
    assert fitted_parts(["one", "", "two", "three"], 11, ", ") == "one, two"
    assert fitted_parts(["too long"], 4) == "too…"


@pytest.mark.parametrize(
    "value", [None, True, "1", [], float("nan"), float("inf"), -float("inf"), 10**400]
)
def test_what_is_no_finite_number_is_none(value: object) -> None:
    assert number(value) is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (0, "0.000"), (2.3456, "2.35"), (12.345, "12.3"), (1234.5, "1234"),
     (0.01234, "0.012"), (0.00001234, "1.23e-05"), (1e300, "1.00e+300"), (123456, "123456"),
     (-2.5, "-2.50")],
)  # fmt: skip
def test_a_number_has_few_digits(value: float | None, shown: str) -> None:
    assert show_number(value) == shown


@pytest.mark.parametrize(
    "show", [show_number, show_whole, show_ratio, show_rate, show_size, show_duration]
)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_beyond_all_floats_is_not_shown(show: Callable[[float], str], value: float) -> None:
    assert show(value) == ""


def test_a_part_whose_percentage_is_beyond_all_floats_is_not_shown() -> None:
    assert show_ratio(1e307) == ""
    assert show_ratio(0.5) == "50.0 %"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0:00"), (75.9, "1:15"), (3_723, "1:02:03"), (2 * 86_400 + 3_720, "2 d 01:02"),
     (None, ""), (-1, ""), (1e300, "")],
)  # fmt: skip
def test_a_duration_is_shown_as_clocks_do(seconds: float | None, shown: str) -> None:
    assert show_duration(seconds) == shown


@given(st.lists(NUMBERS, max_size=50), st.integers(0, 20))
def test_a_curve_has_no_more_columns_than_it_may(values: list[float | None], columns: int) -> None:
    curve = sparkline(values, columns)

    assert len(curve) <= columns
    assert set(curve) <= {*BARS, MISSING}


def test_a_curve_goes_from_the_lowest_bar_to_the_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == BARS
    assert sparkline([1, None, 3], 3) == BARS[0] + MISSING + BARS[-1]
    assert sparkline([10, 9, 10], 3, from_zero=True) == BARS[-1] + BARS[-1] + BARS[-1]
    assert sparkline([0.0, 0.0], 2, from_zero=True) == BARS[0] * 2
    assert sparkline([5.0, 5.0], 10) == BARS[0] * 2
    assert sparkline([None, None], 10) == ""
    assert sparkline([-1e308, 1e308], 2) == BARS[0] + BARS[-1]
