"""Prometheus metrics of the master: of the daemon, and of each of its runs.

Names follow ``gradwire_<what>_<unit>[_total]`` in base units, as
https://prometheus.io/docs/practices/naming/ says. Labels come from closed sets: reasons from
enumerations, ranks from 0 to the most workers of a run. The name that a worker gives itself goes to
the log, never into a label. docs/metrics.md describes every metric; a test compares.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from gradwire_protocol.messages.admission import RefusalCode

BYTES_BUCKETS = (256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304)
"""From a tiny model's update to the largest message, in factors of four."""

DENSITY_BUCKETS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Two orders of magnitude either way of the target, 1 %."""

STALENESS_BUCKETS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
"""Convergence suffers above some tens, so the buckets are fine below that."""

DELAY_BUCKETS = (1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 5.0)
"""A relay hop and its acknowledgement take a millisecond on loopback, a few round trips elsewhere,
and should stay below a training step."""


WORKERS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)

ROUND_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 120.0)
"""From a small model on one machine to the usual timeout."""


class Departure(StrEnum):
    """Why a worker no longer takes part; a label of `gradwire_leaves_total`."""

    LEFT = "left"
    DISCONNECTED = "disconnected"
    IDLE = "idle"
    TOO_SLOW = "too_slow"
    FAULT = "fault"
    QUARANTINED = "quarantined"
    REPLACED = "replaced"
    """Another process connected with the same key."""
    DENIED = "denied"
    """Its key is no longer accepted."""
    EXPELLED = "expelled"
    """An operator expelled it."""
    SENT_BACK = "sent_back"
    """It has to join once more: the run could not be recovered from the workers that were here."""
    RUN_OVER = "run_over"
    """An observer was still there when the next run began."""
    STOPPED = "stopped"


class HttpRefusal(StrEnum):
    """Why an HTTP client got no page; a label of `gradwire_http_refused_total`."""

    UNAUTHORIZED = "unauthorized"
    """The request had no token, or a wrong one."""
    CLOSED = "closed"
    """The master has no token, and other machines can reach it."""
    NOT_FOUND = "not_found"
    METHOD = "method"
    MALFORMED = "malformed"
    """The request was not HTTP, or ended too early."""
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"
    """The client did not send the request, or did not read the page, in time."""
    CROWDED = "crowded"
    """This connection was the oldest, and was closed for a new one."""
    FAILED = "failed"
    """The master has failed to make the page."""


class _Metrics:
    """A registry of its own, so that tests never share counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)

    def _by_reason(self, name: str, text: str, reasons: Iterable[str]) -> Counter:
        counter = Counter(name, text, ["reason"], registry=self.registry)
        # A series that appears with its first value shows no increase: start them all at zero.
        for reason in reasons:
            counter.labels(reason)
        return counter

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)


class AdmissionMetrics(_Metrics):
    """What is counted of those that are not let in, or break the protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = self._by_reason(
            "gradwire_refusals_total",
            "Workers and observers that were not let in, and orders not carried out, by reason.",
            RefusalCode,
        )
        self.messages_invalid = self._counter(
            "gradwire_messages_invalid_total",
            "Messages that broke their schema; the worker's connection was closed.",
        )


class RunMetrics(AdmissionMetrics):
    """The metrics of one run."""

    def __init__(self) -> None:
        super().__init__()
        self.rejoins = self._counter(
            "gradwire_rejoins_total",
            "Workers and observers that were back after their connection was lost.",
        )
        self.joins = self._counter(
            "gradwire_joins_total", "Workers and observers that joined the run."
        )
        self.leaves = self._by_reason(
            "gradwire_leaves_total",
            "Workers and observers that no longer take part, by what ended it.",
            Departure,
        )
        self._add_relay_metrics()
        self.updates_accepted = self._counter(
            "gradwire_updates_accepted_total",
            "Updates accepted from their origin, each counted once.",
        )
        self.updates_duplicate = self._counter(
            "gradwire_updates_duplicate_total",
            "Updates that had been accepted before and were dropped.",
        )
        self.updates_malformed = self._counter(
            "gradwire_updates_malformed_total",
            "Updates that did not fit the run; the worker's connection was closed.",
        )
        self.updates_outlying = self._counter(
            "gradwire_updates_outlying_total",
            "Updates that were far larger than the others'; accepted, or kept aside if asked for.",
        )
        self.updates_quarantined = self._counter(
            "gradwire_updates_quarantined_total",
            "Updates kept aside because one of their worker was far larger than the others'.",
        )
        self.updates_delayed = self._counter(
            "gradwire_updates_delayed_total",
            "Updates that had to wait because their worker sends more than it may.",
        )
        self.updates_discarded = self._counter(
            "gradwire_updates_discarded_total",
            "Updates dropped with their worker: it was in quarantine, or they waited for its rate.",
        )
        self._add_round_metrics()
        self._add_replica_metrics()
        self.runs_finished = self._counter(
            "gradwire_runs_finished_total", "Runs that all live workers have finished."
        )
        self.update_bytes = self._histogram(
            "gradwire_update_bytes", "Encoded size of accepted updates.", BYTES_BUCKETS
        )
        self.update_density = self._histogram(
            "gradwire_update_density_ratio",
            "Elements that an accepted update changes, as a part of all it covers.",
            DENSITY_BUCKETS,
        )
        self.update_staleness = self._histogram(
            "gradwire_update_staleness_updates",
            "Updates of others accepted between what an update was computed on and itself.",
            STALENESS_BUCKETS,
        )
        self.relay_delay = self._histogram(
            "gradwire_relay_delay_seconds",
            "From accepting an update to the acknowledgement of a worker it was relayed to.",
            DELAY_BUCKETS,
        )
        self.checkpoints_written = self._counter(
            "gradwire_checkpoints_written_total", "Checkpoints that were written."
        )
        self.checkpoints_failed = self._counter(
            "gradwire_checkpoints_failed_total",
            "Checkpoints that could not be written; the log says why.",
        )
        self.checkpoint_seconds = self._gauge(
            "gradwire_checkpoint_duration_seconds", "Duration of writing the last checkpoint."
        )
        self.checkpoint_bytes = self._gauge(
            "gradwire_checkpoint_bytes", "Size of the last checkpoint."
        )
        self.checkpoint_time = self._gauge(
            "gradwire_checkpoint_timestamp_seconds",
            "Time of day (Unix) when the last checkpoint was written; 0 while there is none.",
        )
        self.workers = self._gauge("gradwire_workers", "Workers that take part in the run.")
        self.observers = self._gauge(
            "gradwire_observers", "Observers that receive the run's updates."
        )
        self.quarantined_workers = self._gauge(
            "gradwire_quarantined_workers",
            "Workers whose updates are kept aside until an operator decides.",
        )
        self.parameters = self._gauge("gradwire_parameters", "Parameters of the run's model.")

    def _add_relay_metrics(self) -> None:
        self.updates_relayed = self._counter(
            "gradwire_updates_relayed_total",
            "Updates passed on and acknowledged, counted once for every receiving worker.",
        )
        self.updates_conflated = self._counter(
            "gradwire_updates_conflated_total",
            "Updates that a slow worker has received as part of a sum, counted once for every "
            "receiving worker; they are not among those relayed.",
        )
        self.sums_sent = self._counter(
            "gradwire_sums_sent_total", "Sums of updates that a slow worker has received whole."
        )
        self.buffers_received = self._counter(
            "gradwire_buffers_received_total",
            "Messages with the buffers of a worker's module.",
        )
        self.buffers_relayed = self._counter(
            "gradwire_buffers_relayed_total",
            "Messages with buffers delivered, counted once for every receiving member.",
        )
        self.buffers_refused = self._counter(
            "gradwire_buffers_refused_total",
            "Messages with buffers dropped: too many bytes a second, or too many ranks.",
        )

    def _add_round_metrics(self) -> None:
        self.rounds_closed = self._counter(
            "gradwire_rounds_closed_total",
            "Rounds whose mean was relayed, in a mode with rounds.",
        )
        self.rounds_timed_out = self._counter(
            "gradwire_rounds_timed_out_total",
            "Rounds that closed without some worker, because it took too long.",
        )
        self.round_contributors = self._histogram(
            "gradwire_round_contributors_workers",
            "Workers that have contributed to a round.",
            WORKERS_BUCKETS,
        )
        self.round_seconds = self._histogram(
            "gradwire_round_duration_seconds",
            "From the first contribution to a round to its end.",
            ROUND_BUCKETS,
        )

    def _add_replica_metrics(self) -> None:
        self.snapshots_sent = self._counter(
            "gradwire_snapshots_sent_total", "Snapshots that a joiner has received whole."
        )
        self.digest_checks = self._counter(
            "gradwire_digest_checks_total",
            "Times that the digest of a worker's replica was compared with that of its updates.",
        )
        self.digest_mismatches = self._counter(
            "gradwire_digest_mismatches_total",
            "Times that these digests differed: memory is damaged, and the log says whose.",
        )
        self.blocks_repaired = self._counter(
            "gradwire_blocks_repaired_total",
            "Blocks of the replica that were sent to a worker because its own were damaged.",
        )


class ServerMetrics(_Metrics):
    """The metrics of a daemon that are not of one of its runs."""

    def __init__(self) -> None:
        super().__init__()
        registry = self.registry
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        Info("gradwire_build", "Version of gradwire.", registry=registry).info(
            {"version": version("gradwire")}
        )
        self.without_run = AdmissionMetrics()
        """Of those that were let into no run."""
        self.http_refused = self._by_reason(
            "gradwire_http_refused_total",
            "HTTP connections that got no page, by reason.",
            HttpRefusal,
        )
        self.http_delayed = self._counter(
            "gradwire_http_delayed_total",
            "Times that the next HTTP connection had to wait, as too many came.",
        )
        self.orders = self._counter(
            "gradwire_orders_total", "Orders of operators that were carried out."
        )
        self.runs = self._gauge("gradwire_runs", "Runs in progress.")
        self.runs_failed = self._counter(
            "gradwire_runs_failed_total",
            "Times that an internal error has ended the service of one run; the log has it.",
        )
