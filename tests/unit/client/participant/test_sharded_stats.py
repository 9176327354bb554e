"""The statistics of all parts: every number has a rule."""

from dataclasses import fields, replace
from typing import Any

from gradwire.optimizer.delays import Distribution
from gradwire.participant.sharded_stats import LARGEST, OF_THE_FIRST, stats_of_all
from gradwire.replica.stats import SessionStats, Statistic
from gradwire_codecs import ResidualStatistics

NONE: Any = Distribution(0, 0.0, ())


def stats_with(**numbers: Any) -> SessionStats:
    """Return statistics in which all numbers that are not given are 0."""
    residual = ResidualStatistics(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    others: dict[str, Any] = {
        "transport": "udp",
        "residual": residual,
        "staleness_by_rank": {},
        "staleness_distribution": NONE,
        "own_staleness_distribution": NONE,
        "residual_age_distribution": NONE,
    }
    zeros = {each.name: 0 for each in fields(SessionStats)}
    return SessionStats(**zeros | others | numbers)


def test_counters_are_added_up_but_for_what_all_parts_count() -> None:
    counters = {
        each.name for each in fields(SessionStats) if each.metadata[Statistic].kind == "counter"
    }
    stats = [stats_with(**dict.fromkeys(counters, number)) for number in (3, 5)]

    merged = stats_of_all(stats, [1, 1])

    assert {name: getattr(merged, name) for name in counters} == {
        name: 3 if name in OF_THE_FIRST else 5 if name in LARGEST else 8 for name in counters
    }


def test_every_gauge_has_a_rule_of_its_own() -> None:
    """A sum of gauges would say nothing."""
    ruled = OF_THE_FIRST | LARGEST | {"density", "line_factor"}
    gauges = {
        each.name for each in fields(SessionStats) if each.metadata[Statistic].kind == "gauge"
    }

    assert gauges <= ruled


def test_means_weigh_the_sizes_of_the_parts() -> None:
    low = stats_with(density=0.1, line_factor=1.0, rtt_seconds=None, transport="udp")
    high = stats_with(density=0.5, line_factor=0.5, rtt_seconds=0.2, transport="tcp")
    high = replace(high, residual=ResidualStatistics(4.0, 5.0, 1.0, 1.0, 1.0, 1.0, 1.0))

    merged = stats_of_all([low, high], [300, 100])

    assert merged.density == 0.2
    assert merged.line_factor == 0.5
    assert merged.rtt_seconds == 0.2
    assert merged.transport == "udp/tcp"
    assert (merged.residual.mean, merged.residual.max) == (1.0, 5.0)
