"""Prometheus metrics of the master: of the daemon, and of each of its runs.

Names follow ``gradwire_<what>_<unit>[_total]`` in base units, as
https://prometheus.io/docs/practices/naming/ says. Labels come from closed sets: reasons from
enumerations, ranks from 0 to the most workers of a run. The name that a worker gives itself goes to
the log, never into a label. docs/metrics.md describes every metric; a test compares.
"""

import inspect
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from typing import Any

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
    """The master has no token for it, or another server's page has asked."""
    NOT_FOUND = "not_found"
    METHOD = "method"
    BAD_REQUEST = "bad_request"
    """It makes no sense, or has a token in its URL."""
    ORDER = "order"
    """An order could not be carried out."""
    TOO_SLOW = "too_slow"
    """The client did not send the request, or did not read the page, in time."""
    CROWDED = "crowded"
    """This connection was the oldest, and closed for a new one; or too many streams."""
    FAILED = "failed"
    """The master has failed to make the page."""


def _counter(text: str) -> Any:
    return partial(Counter, documentation=text)


def _gauge(text: str) -> Any:
    return partial(Gauge, documentation=text)


def _histogram(text: str, buckets: Sequence[float]) -> Any:
    return partial(Histogram, documentation=text, buckets=buckets)


def _by_reason(text: str, reasons: Iterable[str]) -> Any:
    def make(name: str, registry: CollectorRegistry) -> Counter:
        counter = Counter(name, text, ["reason"], registry=registry)
        # A series that appears with its first value shows no increase: start them all at zero.
        for reason in reasons:
            counter.labels(reason)
        return counter

    return partial(make)


class _Metrics:
    """Metrics in a registry of their own, so that tests never share counts.

    A class declares what makes each metric, which has the name of its attribute.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for attribute, make in inspect.getmembers_static(self):
            if isinstance(make, partial):
                setattr(self, attribute, make(f"gradwire_{attribute}", registry=self.registry))


class AdmissionMetrics(_Metrics):
    """Counts of peers that were refused, and of messages that broke the protocol."""

    refusals: Counter = _by_reason(
        "Workers and observers that were refused, by reason.",
        RefusalCode,
    )
    messages_invalid: Counter = _counter(
        "Messages that broke their schema; the worker's connection was closed."
    )


class RunMetrics(AdmissionMetrics):
    """The metrics of one run."""

    rejoins: Counter = _counter(
        "Workers and observers that were back after their connection was lost."
    )
    joins: Counter = _counter("Workers and observers that joined the run.")
    leaves: Counter = _by_reason(
        "Workers and observers that no longer take part, by reason.", Departure
    )
    updates_accepted: Counter = _counter("Updates accepted from their origin, each counted once.")
    updates_duplicate: Counter = _counter("Updates that had been accepted before and were dropped.")
    updates_malformed: Counter = _counter(
        "Updates that did not fit the run; the worker's connection was closed."
    )
    updates_outlying: Counter = _counter(
        "Updates that were far larger than the others'; accepted, or kept aside if asked for."
    )
    updates_quarantined: Counter = _counter(
        "Updates kept aside because one of their worker was far larger than the others'."
    )
    updates_delayed: Counter = _counter(
        "Updates that had to wait because their worker sends more than it may."
    )
    updates_discarded: Counter = _counter(
        "Updates dropped with their worker: it was in quarantine, or they waited for its rate."
    )
    runs_finished: Counter = _counter("Runs that all live workers have finished.")
    update_bytes: Histogram = _histogram("Encoded size of accepted updates.", BYTES_BUCKETS)
    update_density_ratio: Histogram = _histogram(
        "Elements that an accepted update changes, as a part of all it covers.", DENSITY_BUCKETS
    )
    update_staleness_updates: Histogram = _histogram(
        "Updates of others accepted between what an update was computed on and itself.",
        STALENESS_BUCKETS,
    )
    relay_delay_seconds: Histogram = _histogram(
        "From accepting an update to the acknowledgement of a worker it was relayed to.",
        DELAY_BUCKETS,
    )
    checkpoints_written: Counter = _counter("Checkpoints that were written.")
    checkpoints_failed: Counter = _counter(
        "Checkpoints that could not be written; the log says why."
    )
    checkpoint_duration_seconds: Gauge = _gauge("Duration of writing the last checkpoint.")
    checkpoint_bytes: Gauge = _gauge("Size of the last checkpoint.")
    checkpoint_timestamp_seconds: Gauge = _gauge(
        "Time of day (Unix) when the last checkpoint was written; 0 while there is none."
    )
    workers: Gauge = _gauge("Workers that take part in the run.")
    observers: Gauge = _gauge("Observers that receive the run's updates.")
    quarantined_workers: Gauge = _gauge(
        "Workers whose updates are kept aside until an operator decides."
    )
    parameters: Gauge = _gauge("Parameters of the run's model.")
    updates_relayed: Counter = _counter(
        "Updates passed on and acknowledged, counted once for every receiving worker."
    )
    updates_conflated: Counter = _counter(
        "Updates of others that a worker has received as part of a sum, counted once for every "
        "receiving worker; they are not among those relayed."
    )
    sums_sent: Counter = _counter("Sums of updates that a worker has received whole.")
    buffers_received: Counter = _counter("Messages with the buffers of a worker's module.")
    buffers_relayed: Counter = _counter(
        "Messages with buffers delivered, counted once for every receiving member."
    )
    buffers_refused: Counter = _counter(
        "Messages with buffers dropped: too many bytes a second, or too many ranks."
    )
    rounds_closed: Counter = _counter("Rounds whose mean was relayed, in a mode with rounds.")
    rounds_timed_out: Counter = _counter(
        "Rounds that closed without some worker, because it took too long."
    )
    round_contributors_workers: Histogram = _histogram(
        "Workers that have contributed to a round.", WORKERS_BUCKETS
    )
    round_duration_seconds: Histogram = _histogram(
        "From the first contribution to a round to its end.", ROUND_BUCKETS
    )
    scalars_taken: Counter = _counter("Scalars of workers (`session.log`) that are in curves.")
    scalars_dropped: Counter = _counter(
        "Scalars that a worker or the master dropped: more than a worker may log."
    )
    histograms_taken: Counter = _counter(
        "Messages with histograms of a worker's tensors that were taken."
    )
    histograms_dropped: Counter = _counter(
        "Messages with histograms that a worker or the master dropped: newer ones came first, a "
        "worker with a lower rank sends some, or there were too many."
    )
    snapshots_sent: Counter = _counter("Snapshots that a joiner has received whole.")
    digest_checks: Counter = _counter(
        "Times that the digest of a worker's replica was compared with that of its updates."
    )
    digest_mismatches: Counter = _counter(
        "Times that these digests differed: memory is damaged, and the log says whose."
    )
    blocks_repaired: Counter = _counter(
        "Blocks of the replica that were sent to a worker because its own were damaged."
    )


class ServerMetrics(_Metrics):
    """The metrics of a daemon that are not of one of its runs."""

    http_refused: Counter = _by_reason("HTTP requests refused, by reason.", HttpRefusal)
    orders: Counter = _counter("Orders of operators that were carried out.")
    runs: Gauge = _gauge("Runs in progress.")
    announced: Gauge = _gauge(
        "With --announce: whether the announcement of this master stands there: 1, or 0."
    )
    relays: Gauge = _gauge("Relays that are connected, those behind others included.")
    runs_failed: Counter = _counter(
        "Times that an internal error has ended the service of one run; the log has it."
    )

    def __init__(self) -> None:
        super().__init__()
        self.without_run = AdmissionMetrics()
        """For peers that joined no run."""
        registry = self.registry
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        Info("gradwire_build", "Version of gradwire.", registry=registry).info(
            {"version": version("gradwire")}
        )
