"""`Documents`: what the JSON API says, as values that JSON has.

Times are seconds: `unix_time` by the clock of the master, `seconds` since the first scalar of a run
was logged, as in its series. What a viewer's clock says does not matter.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator
from importlib.metadata import version
from itertools import islice
from time import time
from typing import Annotated, Any, Final, Literal

from gradwire_server.http.api import BadQueryError, Between, Handler
from gradwire_server.http.curves import NAMES_MAX, POINTS, POINTS_MAX, CurveDocuments
from gradwire_server.http.schemas import (
    Curves,
    Event,
    Events,
    RunDocument,
    Summary,
    Worker,
    finite,
)
from gradwire_server.runs.figures import Figures
from gradwire_server.runs.runs import Runs
from gradwire_server.series.journal import Entry, Journal
from gradwire_server.series.series import Series
from gradwire_server.state.roster import Member
from gradwire_server.state.run import Run
from gradwire_udp import show_address

VERSION: Final = version("gradwire")
"""Looking it up takes a millisecond."""

OWN_PREFIX: Final = "gradwire/"
"""Of the series that a session reports by itself."""

SCALARS_MAX: Final = 16
"""Most scalars of a script that a worker is shown with; all are in its series."""

SILENT_SECONDS: Final = 1.0
"""A worker that was sent something so long ago, and was not heard of since, is called silent. It
may be dead: an acknowledgement takes a round trip."""

NAMES_SHOWN_MAX: Final = 2_000
"""Most names of series in a run's document, which is made every second."""

OF_STATUS: Final = (
    "name", "mode", "parameters", "finished", "stopping", "items_paused", "round", "works",
    "checkpoint",
)  # fmt: skip
"""What a run's document has of its status."""


class Documents:
    """Makes the documents of a daemon. Three are handlers of the API.

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
            "version": VERSION,
            "pid": os.getpid(),
            "unix_time": time(),
            "uptime_seconds": self._clock() - self._figures.began,
            "connections": self._connections(),
            "draining": self._runs.draining,
            "figures": finite(self._figures.newest()),
            "runs": [
                {
                    "name": name,
                    "mode": str(run.mode),
                    "parameters": run.parameters,
                    "workers": len(master.roster.workers),
                    "updates": sum(run.relay.versions.values()),
                    "finished": run.finished,
                    "stopping": run.stop_reason,
                }
                for name, master in self._runs.in_progress.items()
                if (run := master.run) is not None
            ],
        }

    def overview(self) -> dict[str, Any]:
        """Return the status of everything."""
        return {"status": "ok", **self.summary(), **self._runs.status()}

    # A run.

    @property
    def runs(self) -> list[str]:
        """The names of the runs in progress."""
        return list(self._runs.in_progress)

    @property
    def handlers(self) -> dict[str, Handler]:
        """Handlers of the API, by path."""
        return {
            "runs/{run}": self.run,
            "runs/{run}/events": self.events,
            "runs/{run}/series": self.series,
        }

    def journal(self, run: str) -> Journal | None:
        """Return where the events of a run are kept; None if there is no such run."""
        master = self._runs.in_progress.get(run)
        return None if master is None else master.state.journal

    def run(self, run: str) -> Annotated[Iterator[bytes], RunDocument]:
        """Tell of a run, its workers, and what they do."""
        master = self._runs.in_progress.get(run)
        if master is None or master.run is None:
            return
        found, now = master.run, self._clock()
        status = master.status()
        head = {
            "unix_time": time(),
            **{name: status[name] for name in OF_STATUS},
            "observers": len(status["observers"]),
            "seconds": None if found.series.began is None else now - found.series.began,
            "scalars": found.series.taken,
            "scalars_dropped": found.series.dropped,
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

    def events(
        self, run: str, after: Annotated[int, Between(0, 2**53)] = 0
    ) -> Annotated[Iterator[bytes], Events]:
        """Tell what has happened in a run, after the entry of a number."""
        master = self._runs.in_progress.get(run)
        if master is None or master.run is None:
            return
        journal, began = master.state.journal, master.run.series.began
        entries = [entry for entry in journal.after(after) if entry.run in ("", run)]
        yield f'{{"last": {journal.last}, "events": ['.encode()
        yield from listed(self._event(entry, began) for entry in entries)
        yield b"]}"

    def _event(self, entry: Entry, began: float | None) -> Event:
        return {
            "number": entry.number,
            "unix_time": round(time() - (self._clock() - entry.at), 3),
            "seconds": None if began is None else round(entry.at - began, 3),
            "kind": entry.kind,
            "rank": entry.rank,
            "text": entry.text,
        }

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
        if (series := self._series(run)) is None:
            return iter(())
        if format != "json":
            return self._curves.download(series, name, format)
        return self._curves.document(series, name, points, of_ranks)

    def _series(self, run: str) -> Series | None:
        master = self._runs.in_progress.get(run)
        return None if master is None or master.run is None else master.run.series


def described(member: Member, run: Run, awaited: Collection[int], now: float) -> Worker:
    """Return a worker as the roster shows it."""
    connection, newest = member.link.connection, run.series.newest(member.rank)
    own = {name: value for name, (_, value) in newest.items() if name.startswith(OWN_PREFIX)}
    scalars = {name: value for name, (_, value) in newest.items() if name not in own}
    heard, address = connection.last_heard, connection.address
    return {
        "rank": member.rank,
        "name": member.shown_name,
        "key_name": member.key_name,
        "address": show_address(address) if isinstance(address, tuple) else str(address),
        "state": state_of(member, now),
        "heard_seconds": None if heard is None else round(max(now - heard, 0.0), 3),
        "rtt_seconds": connection.rtt,
        "sent_bytes": connection.message_bytes_sent,
        "queued_bytes": connection.bytes_queued,
        "lacks_updates": run.relay.lacks(member),
        "awaited": member.rank in awaited,
        "updates": run.relay.versions.get(member.rank, 0),
        "step": max((step for step, _ in newest.values()), default=None),
        "figures": finite({n.removeprefix(OWN_PREFIX): value for n, value in own.items()}),
        "scalars": finite(dict(islice(scalars.items(), SCALARS_MAX))),
    }


def state_of(member: Member, now: float) -> str:
    """Return what a worker is doing, in a word."""
    connection = member.link.connection
    if member.quarantine is not None:
        return "quarantined"
    asked, heard = connection.unanswered_since, connection.last_heard
    if asked is not None and heard is not None and now - max(asked, heard) > SILENT_SECONDS:
        return "silent"
    if member.last_sequence is not None:
        return "finished" if member.leaving is None else "leaving"
    return member.phase.name.lower()


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
