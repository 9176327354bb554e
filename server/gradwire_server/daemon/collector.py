"""`SocketsCollector`: counters of connections and sockets, and the term, for Prometheus."""

from collections.abc import Iterator
from dataclasses import fields

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gradwire_protocol import Counters
from gradwire_server.master.terms import Terms
from gradwire_udp import SocketCounters, TcpCounters


class SocketsCollector(Collector):
    """Reads, at each scrape, the counters of endpoint, UDP driver and TCP driver.

    Counting datagrams with prometheus_client would cost more than handling them.
    """

    def __init__(
        self,
        terms: Terms,
        counters: Counters,
        sockets: SocketCounters,
        streams: TcpCounters | None = None,
    ) -> None:
        self._terms = terms
        self._counters = counters
        self._sockets = sockets
        self._streams = streams or TcpCounters()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the metric families with their current values."""
        yield from _counted_by(self._sockets)
        yield from _counted_by(self._streams)
        yield GaugeMetricFamily(
            "gradwire_tcp_connections", "TCP connections that are open.", self._streams.open
        )
        yield GaugeMetricFamily(
            "gradwire_tcp_queue_bytes",
            "Bytes that wait until TCP connections take them.",
            self._streams.queued_bytes,
        )
        yield from _counted_by(self._counters)
        dropped = CounterMetricFamily(
            "gradwire_datagrams_dropped", "Datagrams dropped, by reason.", labels=["reason"]
        )
        for reason, value in self._counters.drops.items():
            dropped.add_metric([reason], value)
        yield dropped
        yield from self._terms_families()

    def _terms_families(self) -> Iterator[GaugeMetricFamily]:
        terms = self._terms
        for name, documentation, value in (
            ("in_charge", "Whether workers follow this master: 1, or 0.", terms.in_charge),
            (
                "term",
                "Term in which this master is in charge, or the highest one heard of.",
                terms.term,
            ),
            ("standby_connected", "Whether the standby is there: 1, or 0.", terms.has_standby),
            ("standby_missing_updates", "Updates that the standby lacks.", terms.standby_lag),
        ):
            yield GaugeMetricFamily(f"gradwire_{name}", documentation, value)


def _counted_by(counters: SocketCounters | TcpCounters | Counters) -> Iterator[CounterMetricFamily]:
    for each in fields(counters):
        if "text" in each.metadata:
            name, value = each.metadata["metric"] or each.name, getattr(counters, each.name)
            yield CounterMetricFamily(f"gradwire_{name}", each.metadata["text"], value=value)
