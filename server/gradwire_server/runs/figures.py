"""`Figures`: how busy the master and each of its runs are, sampled about once a second.

A figure is kept as a series is: in buckets of seconds, of which neighbours join when there is no
more room, so it has the whole life of the master in bounded memory.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from gradwire_protocol.messages.logged.scalars import POINT
from gradwire_server.master.master import Master
from gradwire_server.runs.runs import Runs
from gradwire_server.series.board import Board, Curve
from gradwire_server.series.series import Series

PREFIX: Final = "master/"
"""Of the names of these series."""

SECONDS_MAX: Final = 2**10
"""Most buckets of a figure: 17 minutes in single seconds. 7 figures of 64 runs take 18 MB."""

STATM: Final = Path("/proc/self/statm")


@dataclass(slots=True)
class _Kept:
    """The figures of a run, or of the daemon."""

    board: Board = field(default_factory=lambda: Board(SECONDS_MAX))
    newest: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    """What rates and means are reckoned from, at the last sample."""
    at: float = 0.0
    """When that was."""


class Figures:
    """Samples when it is told to.

    Parameters
    ----------
    traffic : callable
        Returns how many bytes were received and sent so far.
    processor_seconds, memory_bytes : callable
        Return what this process has used, and has.
    """

    def __init__(
        self,
        runs: Runs,
        traffic: Callable[[], tuple[int, int]],
        now: float,
        *,
        processor_seconds: Callable[[], float] = process_time,
        memory_bytes: Callable[[], float] = lambda: resident_bytes(),
    ) -> None:
        self.began: Final = now
        """The moment from which seconds count, in the master's time."""
        self._runs = runs
        self._traffic = traffic
        self._processor_seconds = processor_seconds
        self._memory_bytes = memory_bytes
        self._of_runs: WeakKeyDictionary[Series, _Kept] = WeakKeyDictionary()
        """They last as long as what was logged in a run."""
        self._of_daemon = _Kept(totals=self._totals(), at=now)

    def sample(self, now: float) -> None:
        """Add the figures of the time since the last sample."""
        daemon = self._of_daemon
        rates = _rates(daemon, self._totals(), now)
        self._keep(
            daemon,
            {
                "processor_ratio": rates["processor_seconds"],
                "memory_bytes": self._memory_bytes(),
                "received_bytes_per_second": rates["received_bytes"],
                "sent_bytes_per_second": rates["sent_bytes"],
            },
            now,
        )
        for master in self._runs.in_progress.values():
            self._sample_run(master, now)

    def newest(self, of: Series | None = None) -> Mapping[str, float]:
        """Return the last figures by name: of the run with these series, or of the daemon.

        They are empty before the first sample.
        """
        kept = self._of_daemon if of is None else self._of_runs.get(of)
        return {} if kept is None else kept.newest

    def curve(self, name: str, of: Series | None = None) -> Curve | None:
        """Return a figure over time; its steps are seconds. None if there is no such figure."""
        kept = self._of_daemon if of is None else self._of_runs.get(of)
        return kept.board.curve(name) if kept is not None and name in kept.board else None

    def names(self, of: Series | None = None) -> list[str]:
        """Return the names of figures of a run, or of the daemon."""
        kept = self._of_daemon if of is None else self._of_runs.get(of)
        return [] if kept is None else sorted(kept.board)

    # Private.

    def _sample_run(self, master: Master, now: float) -> None:
        assert master.run is not None
        series = master.run.series
        totals = _totals_of(master)
        kept = self._of_runs.get(series)
        if kept is None:
            self._of_runs[series] = _Kept(totals=totals, at=now)
            return
        before = kept.totals
        rates = _rates(kept, totals, now)
        figures = {
            "workers": float(len(master.roster.workers)),
            "updates_per_second": rates["update_bytes_count"],
            "update_bytes_per_second": rates["update_bytes_sum"],
            "update_bytes": totals["update_bytes_sum"],
            "unstable_updates": float(master.unstable),
        }
        for mean, histogram in _MEANS.items():
            total, count = f"{histogram}_sum", f"{histogram}_count"
            if (observed := totals[count] - before[count]) > 0:
                figures[mean] = (totals[total] - before[total]) / observed
        self._keep(kept, figures, now)

    def _totals(self) -> dict[str, float]:
        received, sent = self._traffic()
        return {
            "processor_seconds": self._processor_seconds(),
            "received_bytes": received,
            "sent_bytes": sent,
        }

    def _keep(self, kept: _Kept, figures: Mapping[str, float], now: float) -> None:
        named = {PREFIX + name: value for name, value in figures.items()}
        kept.newest = dict(figures)
        kept.board.open([name for name in named if name not in kept.board])
        seconds = max(now - self.began, 0.0)
        points = [(index, int(seconds), 0, value) for index, value in enumerate(named.values())]
        kept.board.add(list(named), np.array(points, POINT), np.full(len(points), seconds))


_MEANS: Final = {
    "relay_delay_seconds": "relay_delay_seconds",
    "staleness_updates": "update_staleness_updates",
    "density_ratio": "update_density_ratio",
}
"""Names of means over what was observed since the last sample, and of the histograms."""


def resident_bytes() -> float:
    """Return the memory that this process occupies; NaN where the system does not say."""
    try:
        pages = int(STATM.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return float("nan")
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def _rates(kept: _Kept, totals: dict[str, float], now: float) -> dict[str, float]:
    """Return by how much totals have grown a second since the last sample; note them."""
    seconds = max(now - kept.at, 1e-3)
    rates = {name: (value - kept.totals[name]) / seconds for name, value in totals.items()}
    kept.totals, kept.at = totals, now
    return rates


def _totals_of(master: Master) -> dict[str, float]:
    metrics = master.state.metrics
    totals = {}
    for name in ("update_bytes", *_MEANS.values()):
        [family] = getattr(metrics, name).collect()
        for sample in family.samples:
            what = sample.name.rpartition("_")[2]
            if what in ("sum", "count"):
                totals[f"{name}_{what}"] = sample.value
    return totals
