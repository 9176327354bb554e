"""`stats_of_all`: the statistics of one worker at several masters."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from gradwire.replica.stats import SessionStats
from gradwire_codecs import ResidualStatistics

OF_THE_FIRST: Final = frozenset(
    {
        "momentum", "scale", "agreement", "staleness_bound", "final_residual_portion",
        "staleness_by_rank", "staleness_distribution", "own_staleness_distribution",
        "residual_age_distribution",
        "bytes_sent", "bytes_received", "datagrams_sent", "datagrams_received",
    }
)  # fmt: skip
"""What is the same at all masters, or means something at each one alone. Traffic is counted for the
whole session."""

LARGEST: Final = frozenset(
    {
        "steps", "steps_deferred", "steps_untrained", "steps_waited", "buffers_averaged",
        "buffers_refused", "threshold", "staleness", "staleness_max", "own_staleness",
        "residual_age_steps", "delay_steps", "rtt_seconds",
    }
)  # fmt: skip
"""What counts steps, which are made in all parts, or says how bad something is."""


def stats_of_all(stats: Sequence[SessionStats], elements: Sequence[int]) -> SessionStats:
    """Return the statistics of all parts of the parameters, which have so many elements each.

    What is counted is added up: an update of a worker with two masters is two updates.
    """
    merged = {each.name: _merge(each.name, stats, elements) for each in fields(SessionStats)}
    return SessionStats(**merged)


def _merge(name: str, stats: Sequence[SessionStats], elements: Sequence[int]) -> Any:
    values = [getattr(each, name) for each in stats]
    if name in OF_THE_FIRST:
        return values[0]
    if name in LARGEST:
        return max((value for value in values if value is not None), default=None)
    match name:
        case "density":
            return mean_of_parts(values, elements)
        case "line_factor":
            return min(values)
        case "transport":
            return "/".join(dict.fromkeys(values))
        case "residual":
            largest = {
                each.name: max(getattr(value, each.name) for value in values)
                for each in fields(ResidualStatistics)
            }
            return ResidualStatistics(
                **largest | {"mean": mean_of_parts([value.mean for value in values], elements)}
            )
    return sum(values)


def mean_of_parts(values: Sequence[float], elements: Sequence[int]) -> float:
    """Return the mean of values of parts that have so many elements each."""
    return sum(v * n for v, n in zip(values, elements, strict=True)) / sum(elements)
