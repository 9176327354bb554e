"""`Summary`: what a training was like, for users."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from gradwire.spark.statistics.records import Account, ItemRecord, WorkerRecord
from gradwire.spark.statistics.text import text_of

DRIVER: Final = "driver"

SCHEMA: Final = (
    "who string, rank int, phase string, epoch int, item long, began timestamp, seconds double"
)


class Event(NamedTuple):
    """A row of `Summary.statistics`."""

    who: str
    """``"driver"``, or a worker as ``"host/attempt"``."""
    rank: int | None
    phase: str
    epoch: int | None
    item: int | None
    began: float
    seconds: float


class Summary(Account):
    """What a training was like.

    Printing it shows the main figures. `statistics` has all of them as a DataFrame.
    """

    def events(self) -> Iterator[Event]:
        """Yield what the driver did, then each worker's start, items by phase, and leave.

        The phases of an item alternate with each step. Here each has one event, one after another.
        """
        for phase in self.phases:
            yield Event(DRIVER, None, phase.name, None, None, phase.began, phase.seconds)
        items = self.items_by_attempt()
        for worker in self.workers:
            yield from _events_of(worker, items[worker.attempt])

    def statistics(self, spark: SparkSession) -> DataFrame:
        """Return `events` as a DataFrame, for questions in SQL.

        Parameters
        ----------
        spark : SparkSession

        Returns
        -------
        DataFrame
            ``who`` (``"driver"`` or ``"host/attempt"``), ``rank``, ``phase``, ``epoch`` and
            ``item`` (from 0 on; null where they do not apply), ``began`` (a timestamp) and
            ``seconds``.
        """
        rows = [
            (*event[:5], datetime.fromtimestamp(event.began, UTC), event.seconds)
            for event in self.events()
        ]
        return spark.createDataFrame(rows, SCHEMA)

    def __str__(self) -> str:
        return text_of(self)

    __repr__ = __str__


def _events_of(worker: WorkerRecord, items: Sequence[ItemRecord]) -> Iterator[Event]:
    who, rank, at = worker.name, worker.rank, worker.began
    if worker.joined is not None:
        yield Event(who, rank, "start", None, None, at, max(0.0, worker.joined - at))
        at = worker.joined
    for item in items:
        at = item.began
        for name, seconds in item.by_phase.items():
            yield Event(who, rank, name, item.epoch, item.item, at, seconds)
            at += seconds
    if worker.left is not None:
        yield Event(who, rank, "leave", None, None, at, max(0.0, worker.left - at))
