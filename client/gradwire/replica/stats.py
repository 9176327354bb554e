"""`SessionStats`: what a session has done so far, as plain numbers.

Each number is declared once: its field says what it is, and which metric of Prometheus shows it.
The training thread counts the fields of `Tally` as it goes. `Participant.stats` reads the others
where they are counted, and `gradwire.metrics` exports all of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal, NamedTuple

from gradwire.optimizer.delays import Distribution
from gradwire_codecs import ResidualStatistics


class Traffic(NamedTuple):
    """What went through the sockets of all transports."""

    packets_sent: int
    bytes_sent: int
    packets_received: int
    bytes_received: int


MetricKind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Statistic:
    """The description of a field of `SessionStats`."""

    text: str
    """Whole sentences; also the help text of the metric."""
    kind: MetricKind | None = None
    """Of the metric that shows the field; None if that has a form of its own, or there is none."""
    metric: str | None = None
    """Name of the metric after ``gradwire_session_``, if it is not that of the field."""


def statistic(
    text: str,
    kind: MetricKind | None = None,
    *,
    metric: str | None = None,
    **default: Any,
) -> Any:
    """Declare a field of `SessionStats`; a field of `Tally` needs its ``default=``."""
    return field(metadata={Statistic: Statistic(text, kind, metric)}, **default)


@dataclass(slots=True, kw_only=True)
class Tally:
    """What the training thread counts as it goes."""

    steps: int = statistic("Calls of `Session.step` and `Session.push`.", "counter", default=0)
    steps_deferred: int = statistic(
        "Steps that sent nothing because the network was behind; their change waits in the "
        "residual.",
        "counter",
        default=0,
    )
    steps_untrained: int = statistic(
        "Steps that sent nothing because the optimizer that `join` was given had made no step: "
        "gradients were accumulated, or a GradScaler skipped it.",
        "counter",
        default=0,
    )
    steps_waited: int = statistic(
        "Steps that waited for a slower worker, by the setting `staleness_bound`.",
        "counter",
        default=0,
    )
    updates_sent: int = statistic("Own updates handed to the network.", "counter", default=0)
    updates_applied: int = statistic(
        "Updates of peers that are in the parameters.", "counter", default=0
    )
    updates_conflated: int = statistic(
        "Updates of peers that were added up before they were applied: by the master, because they "
        "came together or the network was behind, or here, because the training was.",
        "counter",
        default=0,
    )
    buffers_averaged: int = statistic(
        "Times that the module's buffers were set to what all workers agree on.",
        "counter",
        default=0,
    )
    elements_sent: int = statistic("Elements changed by own updates.", "counter", default=0)
    bytes_encoded: int = statistic("Length of own encoded updates.", "counter", default=0)
    density: float = statistic(
        "Part of all elements that the last own update changed.", "gauge", default=0.0
    )
    threshold: float = statistic(
        "Threshold of the last own update, in units of the parameters.", "gauge", default=0.0
    )
    encode_seconds: float = statistic(
        "Time the training thread has spent on encoding.", "counter", default=0.0
    )
    apply_seconds: float = statistic(
        "Time the training thread has spent on applying updates of peers.", "counter", default=0.0
    )
    wait_seconds: float = statistic(
        "Time the training thread has waited for slower workers.", "counter", default=0.0
    )
    waited_for: int | None = statistic(
        "Rank of the slowest worker that the last wait for slower workers was for; none before "
        "the first.",
        default=None,
    )
    staleness_bound: int | None = statistic(
        "How many steps this worker may be ahead of the slowest one now; none while it waits for "
        "nobody.",
        "gauge",
        default=None,
    )
    momentum: float | None = statistic(
        "Momentum or first beta of the optimizer's last step, as lowered for the delays, of its "
        "first group of parameters; none without an optimizer, or one without momentum.",
        "gauge",
        default=None,
    )
    scale: float = statistic(
        "What this worker's last change was multiplied by.", "gauge", default=1.0
    )
    agreement: float | None = statistic(
        "How far the steps of the workers agree, from 0, where they are noise, to 1; none where "
        "the setting `scale` does not use it.",
        "gauge",
        default=None,
    )
    line_factor: float = statistic(
        "What the density of updates is multiplied by because the line is slow for the steps; 1 "
        "where it is not.",
        "gauge",
        default=1.0,
    )
    final_residual_portion: float | None = statistic(
        "Portion of its residual that this worker sends at the end, by the setting "
        "`finish_residual`; none before `finish`.",
        "gauge",
        default=None,
    )

    def note_untrained(self) -> None:
        """Count a step in which nothing was trained: nothing is sent."""
        self.steps += 1
        self.steps_untrained += 1

    def counts(self) -> dict[str, Any]:
        """Return all of it by name."""
        return {name: getattr(self, name) for name in TALLIED}


TALLIED: Final = tuple(each.name for each in fields(Tally))


@dataclass(slots=True, kw_only=True)
class SessionStats(Tally):
    """One moment's numbers. Totals count from the beginning of the session."""

    updates_delivered: int = statistic("Own updates that the master has.", "counter")
    updates_stable: int = statistic("Own updates that every live worker has.", "counter")
    buffers_refused: int = statistic(
        "Times that another worker's buffers could not be averaged: they are other ones, or not "
        "all of their values were finite.",
        "counter",
    )
    scalars_dropped: int = statistic(
        "Scalars that were logged and not sent to the master, because they were too many.",
        "counter",
    )
    histograms_dropped: int = statistic(
        "Times that the histograms of a step were not sent to the master, because newer ones came "
        "first.",
        "counter",
    )
    reconnections: int = statistic(
        "Times that the connection to the master was lost and made again.", "counter"
    )
    rebases: int = statistic(
        "Reconnections after which so much had been missed that blocks of the replica came again.",
        "counter",
    )
    repairs: int = statistic(
        "Times that the replica was found to be damaged, and was repaired.", "counter"
    )
    blocks_repaired: int = statistic(
        "Blocks of the replica, of 2^18 parameters each, that were damaged and came again.",
        "counter",
    )
    transport: str = statistic('What carries the packets to the master: "udp" or "tcp".')
    bytes_sent: int = statistic(
        "Payload of UDP or TCP sent: updates, acknowledgements, everything.", "counter"
    )
    bytes_received: int = statistic("Payload of UDP or TCP received.", "counter")
    datagrams_sent: int = statistic(
        "Datagrams sent; over TCP, what would be datagrams otherwise.", "counter"
    )
    datagrams_received: int = statistic(
        "Datagrams received; over TCP, what would be datagrams otherwise.", "counter"
    )
    residual: ResidualStatistics = statistic(
        "How large unsent changes are, in thresholds: mean, maximum and percentiles of a sample of "
        "up to 65,536 elements, taken when the stats are asked for."
    )
    staleness: float = statistic(
        "Updates of others applied between reading parameters and applying the result, as a mean "
        "over the last updates of peers.",
        "gauge",
        metric="staleness_mean",
    )
    staleness_max: int = statistic("The largest staleness among the last 256 updates.", "gauge")
    staleness_by_rank: Mapping[int, float] = statistic(
        "Mean staleness of the last updates of each peer that takes part."
    )
    staleness_distribution: Distribution = statistic(
        "Staleness of updates of peers when applied.", "histogram", metric="staleness"
    )
    own_staleness: float = statistic(
        "Updates of others that came between reading parameters and the master's having the "
        "result, as a mean over this worker's last updates.",
        "gauge",
        metric="own_staleness_mean",
    )
    own_staleness_distribution: Distribution = statistic(
        "Staleness of own updates when the master had them.", "histogram", metric="own_staleness"
    )
    residual_age_steps: float = statistic(
        "Steps that a change waits in the residual before it is sent, on average: how much is "
        "there over how much is sent per step, in the last steps.",
        "gauge",
        metric="residual_age_mean_steps",
    )
    residual_age_distribution: Distribution = statistic(
        "Steps that a change waits in the residual, in each step.",
        "histogram",
        metric="residual_age_steps",
    )
    delay_steps: float = statistic(
        "Steps that changes are late because of both delays, beyond synchronous training: by so "
        'much `momentum="auto"` lowers the mean lag of the optimizer\'s momentum.',
        "gauge",
    )
    rtt_seconds: float | None = statistic(
        "Smoothed round-trip time to the master; none before the first sample.", "gauge"
    )

    def numbers(self) -> dict[str, float]:
        """Return every number by its name, those of `residual` as ``residual_mean`` and so on.

        What is none now is left out, and so are texts and distributions.
        """
        return dict(_numbers_of(self, ""))


def _numbers_of(record: Any, prefix: str) -> Iterator[tuple[str, float]]:
    for each in fields(record):
        value = getattr(record, each.name)
        if is_dataclass(value):
            yield from _numbers_of(value, f"{prefix}{each.name}_")
        elif isinstance(value, int | float):
            yield prefix + each.name, float(value)
