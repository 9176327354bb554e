"""`RunsCollector`: the metrics of all runs of a daemon, each with the run as a label.

A run's metrics are in a registry of their own, so that its parts need not know that there are
others. Here the registries are put together family by family.
"""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gradwire_server.master.master import Master
from gradwire_server.runs.runs import Runs

RUN_LABEL = "run"


class RunsCollector(Collector):
    """Reads the metrics of all runs at each scrape."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families with their current values."""
        registries = {}
        for name, master in self._runs.masters:
            registries[name] = [*master.state.metrics.registry.collect(), *_read(master)]
        outside = {each.name: each for each in self._runs.metrics.without_run.registry.collect()}
        for families in zip(*registries.values(), strict=True):
            family = families[0]
            joined = Metric(family.name, family.documentation, family.type)
            for run, each in zip(registries, families, strict=True):
                _add_samples(joined, run, each)
            if family.name in outside:
                _add_samples(joined, "", outside[family.name])
            yield joined


def _add_samples(joined: Metric, run: str, family: Metric) -> None:
    for sample in family.samples:
        joined.samples.append(sample._replace(labels={RUN_LABEL: run, **sample.labels}))


def _read(master: Master) -> Iterator[Metric]:
    """Yield what is not counted, but read from a run."""
    run = master.run
    yield GaugeMetricFamily(
        "gradwire_updates_unstable",
        "Accepted updates that some live worker does not have yet.",
        value=master.unstable,
    )
    yield GaugeMetricFamily(
        "gradwire_conflated_workers",
        "Workers and observers that cannot take what was accepted: it is added up for them.",
        value=0 if run is None else len(run.relay.behind),
    )
    yield GaugeMetricFamily(
        "gradwire_conflation_bytes",
        "Memory of the log beyond its limit, for slow workers.",
        value=0 if run is None else run.relay.sum_bytes,
    )
    yield GaugeMetricFamily(
        "gradwire_reassembly_bytes",
        "Message bytes that connections hold while they come in.",
        value=sum(m.link.connection.bytes_held for m in master.roster),
    )
    items = GaugeMetricFamily(
        "gradwire_items",
        "Items of a work (`session.items`): done, finished with updates on their way, held by "
        "workers, left.",
        labels=["work", "state"],
    )
    for ledger in () if run is None else run.works.values():
        for state, count in ledger.counts().items():
            items.add_metric([ledger.plan.name, state], count)
    yield items
    queued = GaugeMetricFamily(
        "gradwire_relay_queue_bytes",
        "Message bytes that a worker has not acknowledged yet.",
        labels=["rank"],
    )
    rtt = GaugeMetricFamily(
        "gradwire_rtt_seconds", "Smoothed round-trip time to a worker.", labels=["rank"]
    )
    for member in master.roster:
        connection = member.link.connection
        queued.add_metric([str(member.rank)], connection.bytes_queued)
        if connection.rtt is not None:
            rtt.add_metric([str(member.rank)], connection.rtt)
    yield queued
    yield rtt
