"""`Account`: records of who trained what, when, and how long each part took.

Times are Unix times, each by the clock of its host. An attempt that Spark lost has left no report:
the ledger counts the items that it gave back, and other attempts have trained on them. What it had
finished is in the ledger alone, and `Account.unreported` counts it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from math import nan
from typing import Any, Final, NamedTuple

from gradwire.spark.training.plan import Outcome
from gradwire.spark.training.worker import Report, Span


class Phase(NamedTuple):
    """Something that the driver did."""

    name: str
    began: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What a worker's time for items went to, in seconds."""

    data: float
    """Batches: reading, and moving to the device."""
    compute: float
    encode: float
    """The worker's own updates."""
    apply: float
    """Updates of its peers."""
    wait: float
    """For peers that were behind."""
    other: float
    """What no other phase has measured."""

    @property
    def seconds(self) -> float:
        """All phases together."""
        return sum(self.by_phase.values())

    @property
    def by_phase(self) -> dict[str, float]:
        """Seconds by the name of the phase."""
        return seconds_by_phase([self])


PHASES: Final = tuple(field.name for field in fields(Times))


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRecord(Times):
    """How one worker trained on one item."""

    epoch: int
    """From 0 on."""
    item: int
    host: str
    attempt: int
    rank: int | None
    began: float
    rows: int
    steps: int
    loss: float
    """Mean over rows; NaN without rows."""

    @property
    def ended(self) -> float:
        """When the worker was done with it."""
        return self.began + self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord(Times):
    """What one attempt of a task did; phases are sums over its items."""

    host: str
    attempt: int
    """No other task of the job has the same."""
    rank: int | None
    """None if it did not join, as with an empty partition."""
    began: float
    joined: float | None
    left: float | None
    items: int
    rows: int
    bytes_sent: int
    bytes_received: int
    staleness: float
    """Mean over the last updates of its peers."""

    @property
    def name(self) -> str:
        """``"host/attempt"``."""
        return f"{self.host}/{self.attempt}"

    @property
    def short_name(self) -> str:
        """The name without the host's domain."""
        return f"{self.host.partition('.')[0]}/{self.attempt}"


class Account:
    """A training by its records, and the figures that follow from them.

    Parameters
    ----------
    outcome : Outcome
        What the training has left.
    """

    def __init__(self, outcome: Outcome) -> None:
        by_report = [(report, _items_of(report)) for report in outcome.reports]
        self.items = sorted(
            (item for _, items in by_report for item in items),
            key=lambda record: (record.began, record.attempt),
        )
        """Who trained what, in the order of time.

        An item that a worker gave back in its middle is there once more, with another worker.
        """
        self.workers = sorted(
            (_worker_of(report, items) for report, items in by_report),
            key=lambda record: (record.began, record.attempt),
        )
        """One record for each attempt, in the order of time."""
        self.phases = [Phase(*phase) for phase in outcome.phases]
        """What the driver did."""
        self.ledger: dict[str, Any] = outcome.ledger
        """What the master says of the items; empty if workers had partitions of their own."""
        self.done_before = outcome.done_before
        """Items that were done when this job began, because it goes on from a checkpoint."""
        self.scores = outcome.scores
        """Loss on what was held out, after each epoch; NaN for epochs of an earlier job."""
        self.best_epoch = outcome.best_epoch
        """Epoch of the best score, from 1 on; None without early stopping."""
        self.stopped = outcome.stopped
        """Why training ended before its last epoch; None if it did not."""

    @property
    def rows(self) -> int:
        """Rows that were trained on, those of all epochs."""
        return sum(record.rows for record in self.items)

    @property
    def unreported(self) -> int:
        """Items of all epochs that were trained on by workers that were lost.

        Their rows, losses and times went with them: no other figure has them.
        """
        if not self.ledger:
            return 0
        done = self.ledger["done"] + self.ledger["finished"] - self.done_before
        reported = {(record.epoch, record.item) for record in self.items if record.rows}
        return max(0, int(done) - len(reported))

    @property
    def seconds(self) -> float:
        """Time from the first item's beginning to the last one's end."""
        if not self.items:
            return 0.0
        return max(record.ended for record in self.items) - self.items[0].began

    @property
    def rows_per_second(self) -> float:
        """Rows that all workers together trained on, by `seconds`."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def losses(self) -> list[float]:
        """Mean loss of each epoch over its rows; NaN for an epoch without rows."""
        epochs = 1 + max((record.epoch for record in self.items), default=-1)
        items: list[list[ItemRecord]] = [[] for _ in range(epochs)]
        for record in self.items:
            items[record.epoch].append(record)
        return [mean_loss(each) for each in items]

    @property
    def bytes_sent(self) -> int:
        """Bytes that all workers have sent."""
        return sum(record.bytes_sent for record in self.workers)

    @property
    def bytes_received(self) -> int:
        """Bytes that all workers have received."""
        return sum(record.bytes_received for record in self.workers)

    @property
    def staleness(self) -> float:
        """Mean staleness, each worker by the rows that it trained on."""
        total = sum(record.staleness * record.rows for record in self.workers)
        return total / self.rows if self.rows else 0.0

    def items_by_attempt(self) -> dict[int, list[ItemRecord]]:
        """Return the items of each attempt, in the order of time."""
        found: dict[int, list[ItemRecord]] = {worker.attempt: [] for worker in self.workers}
        for record in self.items:
            found[record.attempt].append(record)
        return found


def seconds_by_phase(records: Iterable[Times]) -> dict[str, float]:
    """Return what the time of several records went to."""
    every = list(records)
    return {name: sum(getattr(each, name) for each in every) for name in PHASES}


def mean_loss(items: Sequence[ItemRecord]) -> float:
    """Return the mean loss over the rows of items; NaN without rows."""
    trained = [item for item in items if item.rows]
    rows = sum(item.rows for item in trained)
    return sum(item.loss * item.rows for item in trained) / rows if rows else nan


def _items_of(report: Report) -> list[ItemRecord]:
    return [_item_of(report, span) for span in report.spans]


def _item_of(report: Report, span: Span) -> ItemRecord:
    measured = span.data + span.compute + span.encode + span.apply + span.wait
    return ItemRecord(
        epoch=span.epoch,
        item=span.item,
        host=report.host,
        attempt=report.attempt,
        rank=report.rank,
        began=span.began,
        rows=span.rows,
        steps=span.steps,
        loss=span.loss if span.rows else nan,
        data=span.data,
        compute=span.compute,
        encode=span.encode,
        apply=span.apply,
        wait=span.wait,
        other=max(0.0, span.seconds - measured),
    )


def _worker_of(report: Report, items: Sequence[ItemRecord]) -> WorkerRecord:
    return WorkerRecord(
        host=report.host,
        attempt=report.attempt,
        rank=report.rank,
        began=report.began,
        joined=report.joined or None,
        left=report.left or None,
        items=len(items),
        rows=sum(item.rows for item in items),
        bytes_sent=report.bytes_sent,
        bytes_received=report.bytes_received,
        staleness=report.staleness,
        **seconds_by_phase(items),
    )
