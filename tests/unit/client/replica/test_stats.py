"""The numbers of a session."""

from dataclasses import fields
from typing import Any

import numpy as np

from gradwire.optimizer.delays import Distribution
from gradwire.replica.stats import SessionStats, Statistic, Tally
from gradwire_codecs import ResidualStatistics


def test_what_is_counted_begins_at_zero() -> None:
    tally = Tally()
    counted = [f.name for f in fields(tally) if f.metadata[Statistic].kind == "counter"]

    assert "steps" in counted
    assert {name: getattr(tally, name) for name in counted} == dict.fromkeys(counted, 0)
    assert (tally.density, tally.threshold, tally.momentum, tally.scale) == (0.0, 0.0, None, 1.0)


def test_what_is_tallied_is_among_the_numbers_by_the_same_name() -> None:
    tally = Tally(steps=3, encode_seconds=0.5)

    assert tally.counts() == {field.name: getattr(tally, field.name) for field in fields(Tally)}
    assert tally.counts()["steps"] == 3
    assert issubclass(SessionStats, Tally)


def test_every_number_says_what_it_is() -> None:
    for field in fields(SessionStats):
        assert field.metadata[Statistic].text.endswith("."), field.name


def test_all_numbers_are_in_one_flat_dict() -> None:
    session = fields(SessionStats)
    values: dict[str, Any] = {each.name: 0 for each in session} | {
        "steps": 3,
        "density": 0.25,
        "momentum": None,
        "rtt_seconds": None,
        "transport": "udp",
        "residual": ResidualStatistics.of(np.array([0.5, 0.25], np.float32), 0.5),
        "staleness_by_rank": {1: 2.0},
        "staleness_distribution": Distribution(2, 5.0, (1, 2)),
        "own_staleness_distribution": Distribution(0, 0.0, ()),
        "residual_age_distribution": Distribution(0, 0.0, ()),
    }

    numbers = SessionStats(**values).numbers()

    assert {type(value) for value in numbers.values()} == {int, float}
    assert {each.name for each in session} - numbers.keys() == {
        name for name, value in values.items() if not isinstance(value, int | float)
    }
    shown = "steps", "density", "residual_max", "staleness_distribution_sum"
    assert [numbers[name] for name in shown] == [3, 0.25, 1.0, 5.0]
