"""Logs: lines that people or programs read, and no more of them than a disk can take."""

import json
import logging
import sys
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.cli.app import REPEAT_SECONDS, JsonFormatter, RepeatFilter


def record_of(
    message: str, *values: object, level: int = logging.WARNING, name: str = "gradwire.test"
) -> logging.LogRecord:
    return logging.LogRecord(name, level, __file__, 1, message, values, None)


def clock_of(times: list[float]) -> Callable[[], float]:
    return iter(times).__next__


def test_one_line_of_a_class_is_logged_every_second_and_the_next_one_tells_of_the_others() -> None:
    repeats = RepeatFilter(clock_of([0.0, 0.1, 0.9, 1.0, 1.5]))
    records = [record_of("refused %s", f"worker {i}") for i in range(5)]

    passed = [record.getMessage() for record in records if repeats.filter(record)]

    assert passed == ["refused worker 0", "refused worker 3 (and 2 more like this before)"]


def test_lines_of_other_classes_are_not_held_up() -> None:
    repeats = RepeatFilter(lambda: 0.0)
    records = [
        record_of("refused %s", 1),
        record_of("dropped %s", 1),
        record_of("refused %s", 1, level=logging.ERROR),
        record_of("refused %s", 1, name="gradwire.other"),
    ]

    assert all(repeats.filter(record) for record in records)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_what_is_no_warning_is_always_logged(level: int) -> None:
    repeats = RepeatFilter(lambda: 0.0)

    assert all(repeats.filter(record_of("joined", level=level)) for _ in range(3))


@given(st.lists(st.floats(0, 10), max_size=200).map(sorted))
def test_no_second_has_more_than_two_lines_of_a_class(times: list[float]) -> None:
    repeats = RepeatFilter(clock_of(times))

    logged = [at for at in times if repeats.filter(record_of("again"))]

    for first, second in pairwise(logged):
        assert second - first >= REPEAT_SECONDS


def test_a_line_with_percent_signs_in_its_values_survives_being_counted() -> None:
    repeats = RepeatFilter(clock_of([0.0, 0.5, 2.0]))
    records = [record_of("%s", "100 %s") for _ in range(3)]

    passed = [record.getMessage() for record in records if repeats.filter(record)]

    assert passed == ["100 %s", "100 %s (and 1 more like this before)"]


def test_json_lines_have_the_exception() -> None:
    try:
        raise ValueError("no")  # noqa: TRY301
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "", 1, "b %d", (1,), sys.exc_info())

    line = json.loads(JsonFormatter().format(record))

    assert (line["logger"], line["level"], line["message"]) == ("a", "error", "b 1")
    assert "ValueError: no" in line["exception"]
