"""Counts, times and rates as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.cli.estimate.quantities import (
    check_between,
    parse_count,
    parse_rate,
    parse_seconds,
    show_bytes,
    show_count,
    show_rate,
    show_seconds,
)
from gradwire.errors import UsageError
from support.wording import naming


@pytest.mark.parametrize(
    ("text", "count"),
    [("14.6M", 14.6e6), ("800k", 8e5), ("7B", 7e9), ("1e6", 1e6), ("12", 12), (" 3 G ", 3e9)],
)
def test_counts_have_suffixes(text: str, count: float) -> None:
    assert parse_count(text, "--parameters") == pytest.approx(count)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0.1", 0.1), ("20ms", 0.02), ("2 s", 2), ("500us", 5e-4), ("5µs", 5e-6)]
)
def test_times_are_in_seconds_unless_they_say_otherwise(text: str, seconds: float) -> None:
    assert parse_seconds(text, "--rtt") == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100Mbit", 1e8), ("1 Gbit/s", 1e9), ("512kbit", 5.12e5), ("10mbps", 1e7), ("9600bit", 9600)],
)
def test_rates_are_in_bits_per_second(text: str, rate: float) -> None:
    text = text.replace("bps", "bitps")

    assert parse_rate(text, "--link") == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "fast", "10 apples", "1.2.3", "M", "--5", "1e999", "100"])
def test_what_is_no_rate_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"--link="):
        parse_rate(text, "--link")


def test_an_error_names_value_and_limits() -> None:
    with pytest.raises(UsageError, match=naming("--rtt=70 s", 0, "60 s")):
        check_between(70, 0, 60, "--rtt", unit=" s")
    check_between(0, 0, 60, "--rtt")


@given(value=st.floats(1e-5, 1e4))
def test_a_time_that_is_shown_is_read_as_nearly_the_same(value: float) -> None:
    assert parse_seconds(show_seconds(value), "x") == pytest.approx(value, rel=0.006)


def test_numbers_are_shown_with_units() -> None:
    assert show_count(14_600_000) == "14.6 M"
    assert show_bytes(166_475) == "166 KB"
    assert show_rate(1e8) == "100 Mbit/s"
    assert show_seconds(0.0032) == "3.2 ms"
    assert show_seconds(2e-7) == "0.2 us"
    assert show_count(999.7e3) == "1 M"
