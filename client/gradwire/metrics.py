"""`SessionCollector`: a worker's `Session.stats` for Prometheus.

The master counts what it sees of all workers (see server/README.md); what only a worker knows, such
as its residual, is scraped from the worker itself, over whatever HTTP server the script has:

::

    from gradwire.metrics import SessionCollector
    from prometheus_client import REGISTRY, start_http_server

    REGISTRY.register(SessionCollector(session))
    start_http_server(9100, addr="127.0.0.1")

Names follow ``gradwire_session_<what>_<unit>[_total]`` in base units. Every metric is described in
README.md; a test compares.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gradwire.optimizer.delays import BUCKETS, Distribution
from gradwire.session.session import Session

COUNTERS: Final = {
    "steps": "Calls of step and push.",
    "steps_deferred": "Of these, how many sent nothing because the network was behind.",
    "steps_untrained": "Of these, how many sent nothing because the optimizer had made no step.",
    "steps_waited": "Of these, how many waited for a slower worker.",
    "updates_sent": "Own updates handed to the network.",
    "updates_applied": "Updates of peers that are in the parameters.",
    "updates_conflated": "Of these, how many had to be added up first.",
    "updates_clipped": "Own updates that the master made smaller.",
    "buffers_averaged": "Times that the buffers were set to the mean of all workers'.",
    "buffers_refused": "Times that buffers of another worker could not be averaged.",
    "elements_sent": "Elements changed by own updates.",
    "elements_clipped": "Times that an element of the residual was cut off.",
    "magnitude_clipped": "Sum of what was cut off the residual, and is lost.",
    "bytes_encoded": "Length of own encoded updates.",
    "bytes_sent": "Payload of UDP or TCP sent.",
    "bytes_received": "Payload of UDP or TCP received.",
    "reconnections": "Times that the master was lost and reached again.",
    "repairs": "Times that the replica was found to be damaged, and was mended.",
    "encode_seconds": "Time the training thread has spent on encoding.",
    "apply_seconds": "Time the training thread has spent on applying updates of peers.",
    "wait_seconds": "Time the training thread has waited for slower workers.",
}
"""Of `SessionStats`, what only grows."""

GAUGES: Final = {
    "density": ("density", "Part of all elements that the last own update changed."),
    "threshold": ("threshold", "Threshold of the last own update, in units of the parameters."),
    "staleness_mean": ("staleness", "Mean staleness of the last updates of peers."),
    "own_staleness_mean": ("own_staleness", "Mean staleness of the last own updates."),
    "residual_age_mean_steps": (
        "residual_age_steps",
        "Steps that a change waits in the residual, as a mean of the last steps.",
    ),
    "delay_steps": (
        "delay_steps",
        "Steps that changes are late because of both delays, beyond synchronous training.",
    ),
    "momentum": ("momentum", "Momentum or first beta of the optimizer's last step, if it has one."),
    "scale": ("scale", "What the last own change was multiplied by."),
}
"""Of `SessionStats`, what rises and falls: by metric, the field and what it is."""

HISTOGRAMS: Final = {
    "staleness": ("staleness_distribution", "Staleness of updates of peers when applied."),
    "own_staleness": (
        "own_staleness_distribution",
        "Staleness of own updates when the master had them.",
    ),
    "residual_age_steps": (
        "residual_age_distribution",
        "Steps that a change waits in the residual, in each step.",
    ),
}
"""Of `SessionStats`, the distributions: by metric, the field and what it is."""

PERCENTILES: Final = {
    "0.5": "p50",
    "0.95": "p95",
    "0.99": "p99",
    "0.999": "p99_9",
    "0.9999": "p99_99",
    "1": "max",
}
"""Quantiles of the residual, and what `ResidualStatistics` calls them."""


class SessionCollector(Collector):
    """Turns what a session has done into metrics, when it is scraped.

    Parameters
    ----------
    session : Session
        May be finished or closed; its last numbers then stay.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def describe(self) -> Iterator[Metric]:
        """Name the metrics without asking for their values."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of this moment."""
        stats = self._session.stats
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"gradwire_session_{name}", text, value=getattr(stats, name))
        for name, (field, text) in GAUGES.items():
            value = getattr(stats, field)
            if value is not None:
                yield GaugeMetricFamily(f"gradwire_session_{name}", text, value=value)
        for name, (field, text) in HISTOGRAMS.items():
            yield _histogram(f"gradwire_session_{name}", text, getattr(stats, field))
        by_rank = GaugeMetricFamily(
            "gradwire_session_staleness_by_rank",
            "Mean staleness of the last updates of each peer.",
            labels=["rank"],
        )
        for rank, staleness in sorted(stats.staleness_by_rank.items()):
            by_rank.add_metric([str(rank)], staleness)
        yield by_rank
        yield GaugeMetricFamily(
            "gradwire_session_residual_mean_thresholds",
            "Mean absolute value of what is not sent, in thresholds, of a sample.",
            value=stats.residual.mean,
        )
        quantiles = GaugeMetricFamily(
            "gradwire_session_residual_thresholds",
            "Quantiles of the absolute value of what is not sent, in thresholds, of a sample.",
            labels=["quantile"],
        )
        for quantile, name in PERCENTILES.items():
            quantiles.add_metric([quantile], getattr(stats.residual, name))
        yield quantiles


def _histogram(name: str, text: str, distribution: Distribution) -> HistogramMetricFamily:
    limits = [*(str(float(limit)) for limit in BUCKETS), "+Inf"]
    counts = [*distribution.at_most, distribution.count]
    return HistogramMetricFamily(
        name, text, buckets=list(zip(limits, counts, strict=True)), sum_value=distribution.sum
    )
