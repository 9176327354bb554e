"""`SessionCollector`: a worker's `Session.stats` for Prometheus.

The master counts what it sees of all workers (docs/metrics.md); what only a worker knows, such as
its residual, is scraped from the worker itself, over whatever HTTP server the script has:

::

    from gradwire.metrics import SessionCollector
    from prometheus_client import REGISTRY, start_http_server

    REGISTRY.register(SessionCollector(session))
    start_http_server(9100, addr="127.0.0.1")

Names follow ``gradwire_session_<what>_<unit>[_total]`` in base units. docs/metrics.md describes
every metric in a generated table; a test compares.
"""

from collections.abc import Iterator
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gradwire.optimizer.delays import BUCKETS, Distribution
from gradwire.replica.stats import STATISTICS, Statistic
from gradwire.session.session import Session

PERCENTILES: Final = {
    "0.5": "p50",
    "0.95": "p95",
    "0.99": "p99",
    "0.999": "p99_9",
    "0.9999": "p99_99",
    "1": "max",
}
"""Quantiles of the residual, with their names in `ResidualStatistics`."""


class SessionCollector(Collector):
    """The statistics of a session as metrics, read when Prometheus scrapes them.

    Parameters
    ----------
    session : Session
        May be finished or closed; its last values then stay.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def describe(self) -> Iterator[Metric]:
        """Name the metrics without asking for their values."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return the metrics with their present values."""
        stats = self._session.stats
        for name, statistic in STATISTICS.items():
            yield from _families(statistic, name, getattr(stats, name))
        by_rank = GaugeMetricFamily(
            "gradwire_session_staleness_by_rank",
            _help(STATISTICS["staleness_by_rank"]),
            labels=["rank"],
        )
        for rank, staleness in sorted(stats.staleness_by_rank.items()):
            by_rank.add_metric([str(rank)], staleness)
        yield by_rank
        yield GaugeMetricFamily(
            "gradwire_session_residual_mean_thresholds",
            "Mean absolute value of the residual, in thresholds, of a sample.",
            value=stats.residual.mean,
        )
        quantiles = GaugeMetricFamily(
            "gradwire_session_residual_thresholds",
            "Quantiles of the absolute value of the residual, in thresholds, of a sample.",
            labels=["quantile"],
        )
        for quantile, name in PERCENTILES.items():
            quantiles.add_metric([quantile], getattr(stats.residual, name))
        yield quantiles


def _families(statistic: Statistic, name: str, value: Any) -> Iterator[Metric]:
    """Return the metric of a statistic; nothing without a metric or a value."""
    name, text = f"gradwire_session_{statistic.metric or name}", _help(statistic)
    match statistic.kind:
        case "counter":
            yield CounterMetricFamily(name, text, value=value)
        case "gauge" if value is not None:
            yield GaugeMetricFamily(name, text, value=value)
        case "histogram":
            yield _histogram(name, text, value)


def _help(statistic: Statistic) -> str:
    return statistic.text.replace("`", "")


def _histogram(name: str, text: str, distribution: Distribution) -> HistogramMetricFamily:
    limits = [*(str(float(limit)) for limit in BUCKETS), "+Inf"]
    counts = [*distribution.at_most, distribution.count]
    return HistogramMetricFamily(
        name, text, buckets=list(zip(limits, counts, strict=True)), sum_value=distribution.sum
    )
