"""`SocketsCollector`: counters of connections and sockets, and the term, for Prometheus."""

from collections.abc import Iterator

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
        yield from self._socket_families()
        yield from self._tcp_families()
        yield from self._transport_families()
        yield from self._terms_families()

    def _socket_families(self) -> Iterator[CounterMetricFamily]:
        sockets = self._sockets
        for name, documentation, value in (
            ("datagrams_received", "UDP datagrams received.", sockets.datagrams_received),
            ("received_bytes", "UDP payload received.", sockets.bytes_received),
            ("datagrams_sent", "UDP datagrams handed to the kernel.", sockets.datagrams_sent),
            ("sent_bytes", "UDP payload handed to the kernel.", sockets.bytes_sent),
            (
                "send_errors",
                "Datagrams that the kernel refused to send; recovered from as lost.",
                sockets.send_errors,
            ),
            (
                "socket_reads",
                "System calls that brought datagrams; many each, where the kernel joins them.",
                sockets.reads,
            ),
            (
                "socket_writes",
                "System calls that sent datagrams; many each, where the kernel cuts them.",
                sockets.trains_sent,
            ),
            (
                "receive_buffer_drops",
                "Datagrams, or batches of them, dropped by the kernel because nobody read them "
                "in time: the master is too slow, or net.core.rmem_max too small.",
                sockets.receive_drops,
            ),
            (
                "datagrams_oversize",
                "Datagrams larger than the link takes; the search for their size causes some.",
                sockets.oversize,
            ),
            (
                "segmentation_fallbacks",
                "Trains that the kernel refused to cut, and that went out one by one.",
                sockets.gso_fallbacks,
            ),
        ):
            yield CounterMetricFamily(f"gradwire_{name}", documentation, value=value)

    def _tcp_families(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        streams = self._streams
        for name, documentation, value in (
            ("tcp_received_bytes", "TCP payload received.", streams.bytes_received),
            ("tcp_sent_bytes", "TCP payload handed to the kernel.", streams.bytes_sent),
            ("tcp_packets_received", "Packets received over TCP.", streams.packets_received),
            ("tcp_packets_sent", "Packets sent over TCP.", streams.packets_sent),
            ("tcp_connections_accepted", "TCP connections that were opened.", streams.accepted),
            (
                "tcp_connections_turned_away",
                "TCP connections closed because there were too many, or nothing came over them.",
                streams.turned_away,
            ),
            (
                "tcp_connections_broken",
                "TCP connections that ended without our doing.",
                streams.broken,
            ),
            (
                "tcp_violations",
                "TCP connections closed because something else came than packets.",
                streams.violations,
            ),
        ):
            yield CounterMetricFamily(f"gradwire_{name}", documentation, value=value)
        yield GaugeMetricFamily(
            "gradwire_tcp_connections", "TCP connections that are open.", value=streams.open
        )
        yield GaugeMetricFamily(
            "gradwire_tcp_queue_bytes",
            "Bytes that wait until TCP connections take them.",
            value=streams.queued_bytes,
        )

    def _transport_families(self) -> Iterator[CounterMetricFamily]:
        described = {
            "packets_accepted": "Packets of established connections, authentic and new.",
            "handshakes_answered": "Handshakes answered, repeated ones included.",
            "retries_sent": "INITs that were asked to come back with a cookie.",
            "resets_sent": "Packets of unknown sessions that were answered with a RESET.",
            "resets_received": "Connections that the other side did not know any more.",
            "epochs_begun": "Times that a worker went on to its next key.",
            "connections_opened": "Connections established.",
            "fragments_sent": "Fragments of messages sent, retransmitted ones included.",
            "fragments_retransmitted": "Fragments of messages sent again.",
            "packets_lost": "Packets taken for lost.",
            "packets_spuriously_lost": "Packets taken for lost and acknowledged after all.",
            "packets_marked": "Packets received with the ECN mark 'congestion experienced'.",
            "black_holes": "Times that a path stopped to carry large datagrams.",
            "probe_timeouts": "Times that nothing was acknowledged for a probe timeout.",
            "addresses_changed": "Workers that moved to another address while connected.",
            "violations": "Connections closed because the peer broke the protocol.",
            "idle_timeouts": "Connections closed because nothing was heard any more.",
            "stalls": "Connections closed because a message made no progress.",
        }
        for name, value in self._counters.flat().items():
            yield CounterMetricFamily(f"gradwire_{name}", described[name], value=value)
        dropped = CounterMetricFamily(
            "gradwire_datagrams_dropped", "Datagrams dropped, by reason.", labels=["reason"]
        )
        for reason, value in self._counters.drops.items():
            dropped.add_metric([reason], value)
        yield dropped

    def _terms_families(self) -> Iterator[GaugeMetricFamily]:
        terms = self._terms
        for name, documentation, value in (
            ("in_charge", "Whether workers follow this master: 1, or 0.", terms.in_charge),
            ("term", "Term that it is in charge of, or the highest one heard of.", terms.term),
            ("standby_connected", "Whether the standby is there: 1, or 0.", terms.has_standby),
            ("standby_missing_updates", "Updates that the standby lacks.", terms.standby_lag),
        ):
            yield GaugeMetricFamily(f"gradwire_{name}", documentation, value)
