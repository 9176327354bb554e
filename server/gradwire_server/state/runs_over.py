"""`RunsOver`: the last runs that are over, as far as people look at them.

A run that has finished, or was ended, leaves what its workers have logged, what has happened, and
who they were. It is kept in memory, until newer ones need the room or the master ends. The replica
goes with the run: checkpoints have it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gradwire_protocol.limits import MIB
from gradwire_server.series.board import BUCKET_BYTES
from gradwire_server.series.histograms import LayerHistograms
from gradwire_server.series.journal import ENTRIES_MAX, Entry
from gradwire_server.series.saved import CELLS_MAX
from gradwire_server.series.series import Series
from gradwire_server.state.roster import Parted
from gradwire_server.state.run import Run

RUNS_MAX: Final = 16
BYTES_MAX: Final = 64 * MIB
"""Most runs that are kept, and most memory of their series together; the oldest go first. Figures,
events and histograms take 0.7 MB more for each, and each worker some 300 bytes."""

assert CELLS_MAX * BUCKET_BYTES <= BYTES_MAX, "there is room for any run"


@dataclass(frozen=True, slots=True, eq=False)
class RunOver:
    """What is kept of a run."""

    name: str
    number: int
    """Counts the runs of its name: the next one has one more, while this one is kept."""
    ended_at: float
    """When, in the master's time."""
    mode: str
    parameters: int
    finished: bool
    """False if it was ended before."""
    stop_reason: str | None
    versions: Mapping[int, int]
    works: list[dict[str, Any]]
    series: Series
    histograms: LayerHistograms
    entries: deque[Entry]
    """What has happened in it, the oldest first."""
    workers: Mapping[int, Parted]
    """By rank, also those that left before the end."""

    @property
    def last(self) -> int:
        """The number of the newest entry; 0 without one."""
        return self.entries[-1].number if self.entries else 0

    @property
    def numbered_name(self) -> str:
        """Its name once there is a newer run of this name."""
        return f"{self.name}~{self.number}"


class RunsOver:
    """Keeps the last runs of a daemon that are over, within `RUNS_MAX` and `BYTES_MAX`."""

    def __init__(self) -> None:
        self._kept: deque[RunOver] = deque(maxlen=RUNS_MAX)

    def __iter__(self) -> Iterator[RunOver]:
        """Iterate over them, the newest first."""
        return reversed(self._kept)

    def find(self, name: str) -> RunOver | None:
        """Return the newest one that has, or had, this name; None if there is none."""
        return next((each for each in self if name in (each.name, each.numbered_name)), None)

    def keep(self, run: Run, entries: Iterable[Entry], now: float) -> None:
        """Keep a run that is over, with what has happened since it began."""
        before = self.find(run.name)
        self._kept.append(
            RunOver(
                name=run.name,
                number=1 if before is None else before.number + 1,
                ended_at=now,
                mode=str(run.mode),
                parameters=run.parameters,
                finished=run.finished,
                stop_reason=run.stop_reason,
                versions=dict(run.relay.versions),
                works=[ledger.status(now) for ledger in run.works.values()],
                series=run.series,
                histograms=run.histograms,
                entries=deque((each for each in entries if each.run == run.name), ENTRIES_MAX),
                workers=dict(sorted(run.parted.items())),
            )
        )
        while sum(each.series.nbytes for each in self._kept) > BYTES_MAX:
            self._kept.popleft()

    def add(self, of: Series, entry: Entry) -> None:
        """Add what has happened after the end of a run, which its series tell from others."""
        for each in self._kept:
            if each.series is of:
                each.entries.append(entry)
