"""Prometheus metrics of the master.

Names follow ``gradwire_<what>_<unit>[_total]`` in base units, as
https://prometheus.io/docs/practices/naming/ says. Labels come from closed sets: reasons from
enumerations, ranks from 0 to the most workers of a run. The name that a worker gives itself goes to
the log, never into a label. docs/metrics.md describes every metric; a test compares.
"""

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


class ServerMetrics:
    """All metrics of one master, in a registry of its own so that tests never share counts."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        Info("gradwire_build", "Version of gradwire.", registry=registry).info(
            {"version": version("gradwire")}
        )
        self.rejoins = Counter(
            "gradwire_rejoins_total",
            "Workers and observers that were back after their connection was lost.",
            registry=registry,
        )
        self.joins = Counter(
            "gradwire_joins_total", "Workers and observers that joined the run.", registry=registry
        )
        self.leaves = Counter(
            "gradwire_leaves_total",
            "Workers and observers that no longer take part, by what ended it.",
            ["reason"],
            registry=registry,
        )
        self.refusals = Counter(
            "gradwire_refusals_total",
            "Workers and observers that were not let in, and orders not carried out, by reason.",
            ["reason"],
            registry=registry,
        )
        # A series that appears with its first value shows no increase: start them all at zero.
        for departure in Departure:
            self.leaves.labels(departure)
        for code in RefusalCode:
            self.refusals.labels(code)
        self.http_refused = Counter(
            "gradwire_http_refused_total",
            "HTTP connections that got no page, by reason.",
            ["reason"],
            registry=registry,
        )
        for refusal in HttpRefusal:
            self.http_refused.labels(refusal)
        self.http_delayed = Counter(
            "gradwire_http_delayed_total",
            "Times that the next HTTP connection had to wait, as too many came.",
            registry=registry,
        )
        self._add_relay_metrics()
        self.updates_accepted = Counter(
            "gradwire_updates_accepted_total",
            "Updates accepted from their origin, each counted once.",
            registry=registry,
        )
        self.updates_duplicate = Counter(
            "gradwire_updates_duplicate_total",
            "Updates that had been accepted before and were dropped.",
            registry=registry,
        )
        self.updates_malformed = Counter(
            "gradwire_updates_malformed_total",
            "Updates that did not fit the run; the worker's connection was closed.",
            registry=registry,
        )
        self.updates_clipped = Counter(
            "gradwire_updates_clipped_total",
            "Updates that were far larger than the others' and were made smaller.",
            registry=registry,
        )
        self.updates_quarantined = Counter(
            "gradwire_updates_quarantined_total",
            "Updates kept aside because one of their worker was far larger than the others'.",
            registry=registry,
        )
        self.updates_delayed = Counter(
            "gradwire_updates_delayed_total",
            "Updates that had to wait because their worker sends more than it may.",
            registry=registry,
        )
        self.updates_discarded = Counter(
            "gradwire_updates_discarded_total",
            "Updates dropped with their worker: it was in quarantine, or they waited for its rate.",
            registry=registry,
        )
        self.messages_invalid = Counter(
            "gradwire_messages_invalid_total",
            "Messages that broke their schema; the worker's connection was closed.",
            registry=registry,
        )
        self.orders = Counter(
            "gradwire_orders_total", "Orders of operators that were carried out.", registry=registry
        )
        self._add_replica_metrics(registry)
        self.runs_finished = Counter(
            "gradwire_runs_finished_total",
            "Runs that all live workers have finished.",
            registry=registry,
        )
        self.processes_lost = Counter(
            "gradwire_processes_lost_total",
            "Processes of the master that have ended by themselves; their workers were lost.",
            registry=registry,
        )
        self.update_bytes = Histogram(
            "gradwire_update_bytes",
            "Encoded size of accepted updates.",
            buckets=BYTES_BUCKETS,
            registry=registry,
        )
        self.update_density = Histogram(
            "gradwire_update_density_ratio",
            "Elements that an accepted update changes, as a part of all it covers.",
            buckets=DENSITY_BUCKETS,
            registry=registry,
        )
        self.update_staleness = Histogram(
            "gradwire_update_staleness_updates",
            "Updates of others accepted between what an update was computed on and itself.",
            buckets=STALENESS_BUCKETS,
            registry=registry,
        )
        self.relay_delay = Histogram(
            "gradwire_relay_delay_seconds",
            "From accepting an update to the acknowledgement of a worker it was relayed to.",
            buckets=DELAY_BUCKETS,
            registry=registry,
        )
        self.checkpoints_written = Counter(
            "gradwire_checkpoints_written_total",
            "Checkpoints that were written.",
            registry=registry,
        )
        self.checkpoints_failed = Counter(
            "gradwire_checkpoints_failed_total",
            "Checkpoints that could not be written; the log says why.",
            registry=registry,
        )
        self.checkpoint_seconds = Gauge(
            "gradwire_checkpoint_duration_seconds",
            "What writing the last checkpoint took.",
            registry=registry,
        )
        self.checkpoint_bytes = Gauge(
            "gradwire_checkpoint_bytes", "Size of the last checkpoint.", registry=registry
        )
        self.checkpoint_time = Gauge(
            "gradwire_checkpoint_timestamp_seconds",
            "Time of day (Unix) when the last checkpoint was written; 0 while there is none.",
            registry=registry,
        )
        self.workers = Gauge(
            "gradwire_workers", "Workers that take part in the run.", registry=registry
        )
        self.observers = Gauge(
            "gradwire_observers", "Observers that receive the run's updates.", registry=registry
        )
        self.quarantined_workers = Gauge(
            "gradwire_quarantined_workers",
            "Workers whose updates are kept aside until an operator decides.",
            registry=registry,
        )
        self.parameters = Gauge(
            "gradwire_parameters", "Parameters of the run's model.", registry=registry
        )

    def _add_relay_metrics(self) -> None:
        self.updates_relayed = Counter(
            "gradwire_updates_relayed_total",
            "Updates passed on and acknowledged, counted once for every receiving worker.",
            registry=self.registry,
        )
        self.updates_conflated = Counter(
            "gradwire_updates_conflated_total",
            "Updates that a slow worker has received as part of a sum, counted once for every "
            "receiving worker; they are not among those relayed.",
            registry=self.registry,
        )
        self.sums_sent = Counter(
            "gradwire_sums_sent_total",
            "Sums of updates that a slow worker has received whole.",
            registry=self.registry,
        )
        self.buffers_received = Counter(
            "gradwire_buffers_received_total",
            "Messages with what the buffers of a worker's module hold.",
            registry=self.registry,
        )
        self.buffers_relayed = Counter(
            "gradwire_buffers_relayed_total",
            "Such messages delivered, counted once for every receiving member.",
            registry=self.registry,
        )
        self.buffers_refused = Counter(
            "gradwire_buffers_refused_total",
            "Such messages dropped: too many bytes a second of one worker, or of too many ranks.",
            registry=self.registry,
        )

        self.state_parts_relayed = Counter(
            "gradwire_optimizer_state_parts_total",
            "Parts of optimizers' states passed on to workers that join late.",
            registry=self.registry,
        )
        self.state_parts_dropped = Counter(
            "gradwire_optimizer_state_parts_dropped_total",
            "Parts of optimizers' states that came when nobody waited for them any more.",
            registry=self.registry,
        )

    def _add_replica_metrics(self, registry: CollectorRegistry) -> None:
        self.snapshots_sent = Counter(
            "gradwire_snapshots_sent_total",
            "Snapshots that a joiner has received whole.",
            registry=registry,
        )
        self.digest_checks = Counter(
            "gradwire_digest_checks_total",
            "Times that a worker's replica was compared with what the updates in it lead to.",
            registry=registry,
        )
        self.digest_mismatches = Counter(
            "gradwire_digest_mismatches_total",
            "Times that it was something else: memory is damaged, and the log says whose.",
            registry=registry,
        )
        self.blocks_repaired = Counter(
            "gradwire_blocks_repaired_total",
            "Blocks of the replica that were sent to a worker because its own were damaged.",
            registry=registry,
        )
        self.replica_damages = Counter(
            "gradwire_replica_damages_total",
            "Blocks of the master's own replica that were found damaged.",
            registry=registry,
        )
        self.replica_blocks_damaged = Gauge(
            "gradwire_damaged_blocks",
            "Blocks of the master's own replica that are damaged and could not be mended: start it "
            "anew on another machine.",
            registry=registry,
        )
