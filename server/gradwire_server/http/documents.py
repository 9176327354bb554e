"""`Documents`: what the JSON API says, as values that JSON has.

Times are seconds: `unix_time` by the clock of the master, `seconds` since the first scalar of a run
was logged, as in its series. What a viewer's clock says does not matter.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from itertools import islice
from time import time
from typing import Annotated, Any, Final, Literal

from gradwire_protocol.messages.logged.histograms import ratio_series
from gradwire_server.http.api import BadQueryError, Between, Handler
from gradwire_server.http.curves import NAMES_MAX, POINTS, POINTS_MAX, CurveDocuments
from gradwire_server.http.schemas import (
    Curves,
    Event,
    Events,
    Histograms,
    Line,
    RunDocument,
    RunLines,
    Summary,
    finite,
)
from gradwire_server.http.workers import described, parted
from gradwire_server.runs.figures import Figures
from gradwire_server.runs.runs import Runs
from gradwire_server.series.journal import Entry, Journal
from gradwire_server.state.run import Run
from gradwire_server.state.runs_over import RunOver

VERSION: Final = version("gradwire")
"""Looking it up takes a millisecond."""

NAMES_SHOWN_MAX: Final = 2_000
"""Most names of series in a run's document, which is made every second."""

OF_STATUS: Final = (
    "name", "mode", "parameters", "finished", "stopping", "items_paused", "round", "works",
    "checkpoint",
)  # fmt: skip
"""What a run's document has of its status."""


class Documents:
    """Makes the documents of a daemon. Four are handlers of the API.

    Parameters
    ----------
    connections : callable
        Returns how many connections there are.
    clock : callable
        Returns the master's time.
    """

    def __init__(
        self,
        runs: Runs,
        figures: Figures,
        connections: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._runs = runs
        self._figures = figures
        self._curves = CurveDocuments(figures)
        self._connections = connections
        self._clock = clock

    # The daemon.

    def summary(self) -> Summary:
        """Return what concerns no single run, and a line for each run."""
        return {
            **self._lines(),
            "version": VERSION,
            "pid": os.getpid(),
            "unix_time": time(),
            "uptime_seconds": self._clock() - self._figures.began,
            "connections": self._connections(),
            "draining": self._runs.draining,
            "figures": finite(self._figures.newest()),
        }

    def overview(self) -> dict[str, Any]:
        """Return the status of everything."""
        return {"status": "ok", **self.summary(), **self._runs.status()}

    def lines(self) -> Annotated[Iterator[bytes], RunLines]:
        """Show a line for each run in progress, and for the last ones that are over."""
        yield json.dumps(self._lines()).encode()

    def _lines(self) -> RunLines:
        return {
            "runs": [
                line_of(name, run, run.relay.versions, len(master.roster.workers), None)
                for name, master in self._runs.in_progress.items()
                if (run := master.run) is not None
            ],
            "over": [
                line_of(name, over, over.versions, len(over.workers), self._ended(over))
                for name, over in self._over().items()
            ],
        }

    def _over(self) -> dict[str, RunOver]:
        """Return the runs that are over, the newest first; where it can, one keeps its name."""
        found: dict[str, RunOver] = {}
        for over in self._runs.over:
            is_taken = over.name in found or over.name in self._runs.in_progress
            found[over.numbered_name if is_taken else over.name] = over
        return found

    def _ended(self, over: RunOver) -> float:
        return self._unix_time(over.ended_at)

    def _unix_time(self, at: float) -> float:
        """Return a moment of the master's time by its wall clock."""
        return round(time() - (self._clock() - at), 3)

    # A run.

    @property
    def runs(self) -> list[str]:
        """The names of the runs, also of those that are over."""
        return [*self._runs.in_progress, *self._over()]

    def has(self, run: str) -> bool:
        """Return whether there is a run of this name, in progress or over."""
        return run in self._runs.in_progress or self._runs.over.find(run) is not None

    @property
    def handlers(self) -> dict[str, Handler]:
        """Handlers of the API, by path."""
        return {
            "runs": self.lines,
            "runs/{run}": self.run,
            "runs/{run}/events": self.events,
            "runs/{run}/series": self.series,
            "runs/{run}/histograms": self.histograms,
        }

    def journal(self, run: str) -> Journal | None:
        """Return where the events of a run in progress are kept; None if there is no such run."""
        master = self._runs.in_progress.get(run)
        return None if master is None else master.state.journal

    def run(self, run: str) -> Annotated[Iterator[bytes], RunDocument]:
        """Tell of a run, its workers, and what they do."""
        master = self._runs.in_progress.get(run)
        if master is None or master.run is None:
            if (over := self._runs.over.find(run)) is not None:
                yield from self._run_over(run, over)
            return
        found, now = master.run, self._clock()
        status = master.status()
        head = {
            "unix_time": time(),
            "ended_unix_time": None,
            **{name: status[name] for name in OF_STATUS},
            "observers": len(status["observers"]),
            "seconds": None if found.series.began is None else now - found.series.began,
            "scalars": found.series.taken,
            "scalars_dropped": found.series.dropped,
            "histograms": found.histograms.taken,
            "histograms_dropped": found.histograms.dropped,
            "events": master.state.journal.last,
            "figures": finite(self._figures.newest(found.series)),
            "series": [
                *self._figures.names(found.series),
                *self._figures.names(),
                *islice(found.series.names(), NAMES_SHOWN_MAX),
            ],
        }
        awaited = set((status["round"] or {}).get("awaited", ()))
        yield json.dumps(head)[:-1].encode() + b', "workers": ['
        members = (described(each, found, awaited, now) for each in master.roster.workers)
        yield from listed(members)
        yield b"]}"

    def _run_over(self, run: str, over: RunOver) -> Iterator[bytes]:
        series, ended = over.series, self._ended(over)
        head = {
            "name": run,
            "unix_time": ended,
            "ended_unix_time": ended,
            "mode": over.mode,
            "parameters": over.parameters,
            "finished": over.finished,
            "stopping": over.stop_reason,
            "items_paused": False,
            "round": None,
            "works": over.works,
            "checkpoint": None,
            "observers": 0,
            "seconds": None if series.began is None else over.ended_at - series.began,
            "scalars": series.taken,
            "scalars_dropped": series.dropped,
            "histograms": over.histograms.taken,
            "histograms_dropped": over.histograms.dropped,
            "events": over.last,
            "figures": finite(self._figures.newest(series)),
            "series": [
                *self._figures.names(series),
                *islice(series.names(), NAMES_SHOWN_MAX),
            ],
        }
        yield json.dumps(head)[:-1].encode() + b', "workers": ['
        yield from listed(parted(rank, over) for rank in over.workers)
        yield b"]}"

    def events(
        self, run: str, after: Annotated[int, Between(0, 2**53)] = 0
    ) -> Annotated[Iterator[bytes], Events]:
        """Tell what has happened in a run, after the entry of a number."""
        master, over = self._runs.in_progress.get(run), self._runs.over.find(run)
        if master is not None and master.run is not None:
            journal, began = master.state.journal, master.run.series.began
            found = journal.after(max(after, master.state.began_after))
            entries, last = [each for each in found if each.run in ("", run)], journal.last
        elif over is not None:
            entries = [each for each in over.entries if each.number > after]
            began, last = over.series.began, over.last
        else:
            return
        yield f'{{"last": {last}, "events": ['.encode()
        yield from listed(self._event(entry, began) for entry in entries)
        yield b"]}"

    def _event(self, entry: Entry, began: float | None) -> Event:
        return {
            "number": entry.number,
            "unix_time": self._unix_time(entry.at),
            "seconds": None if began is None else round(entry.at - began, 3),
            "kind": entry.kind,
            "rank": entry.rank,
            "text": entry.text,
        }

    def histograms(
        self, run: str, layer: str | None = None
    ) -> Annotated[Iterator[bytes], Histograms]:
        """Tell how parameters are distributed, and what a step changed: of one layer, or of all."""
        of = self._found(run)
        if of is None:
            return
        found = of.histograms
        layers = [{"name": name, "ratio": ratio_series(name)} for name in found.names]
        head = {"rank": found.rank, "step": found.step, "layers": layers}
        yield json.dumps(head)[:-1].encode() + b', "histograms": ['
        yield from listed(iter(found.shown(layer)))
        yield b"]}"

    # Curves.

    def series(
        self,
        run: str,
        name: tuple[str, ...] = (),
        points: Annotated[int, Between(1, POINTS_MAX)] = POINTS,
        ranks: str | None = None,
        format: Literal["json", "jsonl", "csv"] = "json",
    ) -> Annotated[Iterator[bytes], Curves]:
        """Show series of these names: the mean, and curves of ranks, as in ranks=0,3.

        As jsonl and csv, of all workers, and of all series unless names say which.
        """
        if format == "json" and not 0 < len(name) <= NAMES_MAX:
            raise BadQueryError(
                f"say which series, 1 to {NAMES_MAX}, as name=loss&name=accuracy; the document of "
                "the run lists them"
            )
        of_ranks = None if ranks is None else ranks_in(ranks)
        if (found := self._found(run)) is None:
            return iter(())
        if format != "json":
            return self._curves.download(found.series, name, format)
        return self._curves.document(found.series, name, points, of_ranks)

    def _found(self, run: str) -> Run | RunOver | None:
        """Return a run in progress, or one that is over."""
        master = self._runs.in_progress.get(run)
        if master is not None and master.run is not None:
            return master.run
        return self._runs.over.find(run)


def line_of(
    name: str,
    run: Run | RunOver,
    versions: Mapping[int, int],
    workers: int,
    ended_unix_time: float | None,
) -> Line:
    """Return a run, in short."""
    return {
        "name": name,
        "mode": str(run.mode),
        "parameters": run.parameters,
        "workers": workers,
        "updates": sum(versions.values()),
        "finished": run.finished,
        "stopping": run.stop_reason,
        "ended_unix_time": ended_unix_time,
    }


def ranks_in(text: str) -> frozenset[int]:
    """Return the ranks that a query names."""
    try:
        return frozenset(int(each) for each in text.split(",") if each)
    except ValueError:
        raise BadQueryError(f"ranks={text[:80]!r} are no ranks, as in ranks=0,3") from None


def listed(values: Iterator[Any]) -> Iterator[bytes]:
    """Yield values as what stands in a list of JSON."""
    separator = ""
    for value in values:
        yield (separator + json.dumps(value)).encode()
        separator = ", "
