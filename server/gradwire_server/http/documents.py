"""`Documents`: what the JSON API says, as values that JSON has.

Times are seconds: `unix_time` by the clock of the master, `seconds` since the first scalar of a run
was logged, as in its series. What a viewer's clock says does not matter.
"""

import csv
import io
import json
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.metadata import version
from itertools import islice
from time import time
from typing import Annotated, Any, Final, Literal, TypedDict

from gradwire_protocol.messages.histograms import RATIO_PREFIX, ratio_series
from gradwire_server.http.api import BadQueryError, Between, Handler
from gradwire_server.runs.figures import PREFIX as FIGURE_PREFIX
from gradwire_server.runs.figures import Figures
from gradwire_server.runs.runs import Runs
from gradwire_server.series.board import SECONDS, Curve
from gradwire_server.series.journal import Entry, Journal
from gradwire_server.series.series import Series, Shown
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

POINTS: Final = 1_000
POINTS_MAX: Final = 2**12
"""Points of a curve: how many there are at most, unless a request says so, and then."""

POINTS_OF_ANSWER_MAX: Final = 2**16
"""Most points of all curves of an answer, about: 3 MB. With more curves each has fewer points."""

POINTS_AT_ONCE: Final = 256
"""Points that are made in one step: some tenths of a millisecond."""

DIGITS: Final = 10
"""Of the numbers in curves: all of a step, and more of a value than a screen shows."""

RANKS: Final = 16
"""Workers whose curves are given unless a request says which: the first ones."""

NAMES_MAX: Final = 16
"""Most series in one answer of curves."""

NAMES_SHOWN_MAX: Final = 2_000
"""Most names of series in a run's document, which is made every second."""

OF_STATUS: Final = (
    "name", "mode", "parameters", "finished", "stopping", "items_paused", "round", "works",
    "checkpoint",
)  # fmt: skip
"""What a run's document has of its status."""

Numbers = dict[str, float | None]


class Line(TypedDict):
    """A run, in short."""

    name: str
    mode: str
    parameters: int
    workers: int
    updates: int
    finished: bool
    stopping: str | None


class Summary(TypedDict):
    """What concerns no single run, and a line for each run."""

    version: str
    pid: int
    unix_time: float
    uptime_seconds: float
    connections: int
    draining: bool
    figures: Numbers
    runs: list[Line]


class Worker(TypedDict):
    """A worker, as the roster shows it."""

    rank: int
    name: str
    key_name: str | None
    address: str
    state: str
    heard_seconds: float | None
    rtt_seconds: float | None
    sent_bytes: int
    queued_bytes: int
    lacks_updates: int
    awaited: bool
    updates: int
    step: int | None
    figures: Numbers
    scalars: Numbers


class RunDocument(TypedDict):
    """A run, and its workers."""

    name: str
    unix_time: float
    mode: str
    parameters: int
    finished: bool
    stopping: str | None
    items_paused: bool
    round: dict[str, Any] | None
    works: list[dict[str, Any]]
    checkpoint: dict[str, Any] | None
    observers: int
    seconds: float | None
    scalars: int
    scalars_dropped: int
    histograms: int
    histograms_dropped: int
    events: int
    figures: Numbers
    series: list[str]
    workers: list[Worker]


class Event(TypedDict):
    """One thing that has happened."""

    number: int
    unix_time: float
    seconds: float | None
    kind: str
    rank: int | None
    text: str


class Events(TypedDict):
    """What has happened; `last` is the number of the newest entry of the master."""

    last: int
    events: list[Event]


class CurveDocument(TypedDict):
    """A curve in columns; without a rank it is the mean of all workers."""

    name: str
    rank: int | None
    steps: int
    step: list[int]
    seconds: list[float | None]
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]


class Curves(TypedDict):
    """Some curves."""

    curves: list[CurveDocument]


class Layer(TypedDict):
    """A tensor, and the series with how large its updates are, beside its parameters."""

    name: str
    ratio: str


class Histogram(TypedDict):
    """How values of a tensor are distributed: the bins divide the range from lowest to highest."""

    layer: str
    quantity: str
    elements: int
    nan: int
    infinite: int
    lowest: float
    highest: float
    mean: float
    deviation: float
    bins: list[int]


class Histograms(TypedDict):
    """The newest histograms of a run, of one worker; the rank is null where there are none."""

    rank: int | None
    step: int
    layers: list[Layer]
    histograms: list[Histogram]


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
            "runs/{run}/histograms": self.histograms,
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
            "histograms": found.histograms.taken,
            "histograms_dropped": found.histograms.dropped,
            "events": master.state.journal.last,
            "figures": finite(self._figures.newest(run)),
            "series": [
                *self._figures.names(run),
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

    def histograms(
        self, run: str, layer: str | None = None
    ) -> Annotated[Iterator[bytes], Histograms]:
        """Tell how parameters are distributed, and what a step changed: of one layer, or of all."""
        master = self._runs.in_progress.get(run)
        if master is None or master.run is None:
            return
        found = master.run.histograms
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
        if format != "json":
            return self._download(run, name, format)
        if not 0 < len(name) <= NAMES_MAX:
            raise BadQueryError(
                f"say which series, 1 to {NAMES_MAX}, as name=loss&name=accuracy; the document of "
                "the run lists them"
            )
        return self._curves(run, name, points, None if ranks is None else ranks_in(ranks))

    def _curves(
        self, run: str, names: Collection[str], points: int, ranks: Collection[int] | None
    ) -> Iterator[bytes]:
        if (series := self._series(run)) is None:
            return
        chosen = [rank for rank in series.ranks if ranks is None or rank in ranks]
        chosen = chosen[:RANKS] if ranks is None else chosen
        points = min(points, max(POINTS_OF_ANSWER_MAX // (len(names) * (1 + len(chosen))), 1))
        yield b'{"curves": ['
        separator = b""
        for name in names:
            for _, rank, curve in self._shown(run, series, name, points, chosen):
                named = json.dumps({"name": name, "rank": rank, "steps": curve.steps})
                yield separator + named[:-1].encode()
                yield from _columns(curve)
                yield b"}"
                separator = b", "
        yield b"]}"

    def _shown(
        self, run: str, series: Series, name: str, points: int, ranks: Collection[int] | None
    ) -> Iterator[Shown]:
        if not name.startswith(FIGURE_PREFIX):
            yield from series.curves_of(name, points_max=points, ranks=ranks)
            return
        curve = self._figures.curve(name, run) or self._figures.curve(name)
        if curve is not None:
            width = 2 ** (max(len(curve.numbers) - 1, 0) // points).bit_length()
            yield Shown(name, None, self._in_time_of(series, curve.coarser(width * curve.steps)))

    def _in_time_of(self, series: Series, curve: Curve) -> Curve:
        """Return a figure with seconds as in a run's series, not since the master was started."""
        cells = curve.cells.copy()
        cells[SECONDS] += 0.0 if series.began is None else self._figures.began - series.began
        return Curve(curve.steps, curve.numbers, cells)

    def _download(self, run: str, names: Collection[str], kind: str) -> Iterator[bytes]:
        if (series := self._series(run)) is None:
            return
        if kind == "csv":
            yield (",".join(FIELDS) + "\r\n").encode()
        for name in names or series.names():
            for shown in self._shown(run, series, name, POINTS_MAX, None):
                for start in range(0, len(shown.curve.numbers), POINTS_AT_ONCE):
                    rows = _rows(shown, slice(start, start + POINTS_AT_ONCE))
                    yield _as_csv(rows) if kind == "csv" else _as_json_lines(rows)

    def _series(self, run: str) -> Series | None:
        master = self._runs.in_progress.get(run)
        return None if master is None or master.run is None else master.run.series


def described(member: Member, run: Run, awaited: Collection[int], now: float) -> Worker:
    """Return a worker as the roster shows it."""
    connection, newest = member.link.connection, run.series.newest(member.rank)
    values = {n: value for n, (_, value) in newest.items() if not n.startswith(RATIO_PREFIX)}
    own = {name: value for name, value in values.items() if name.startswith(OWN_PREFIX)}
    scalars = {name: value for name, value in values.items() if name not in own}
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


def finite(numbers: Mapping[str, float]) -> Numbers:
    """Return numbers as JSON has them: what is not finite is null."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def listed(values: Iterator[Any]) -> Iterator[bytes]:
    """Yield values as what stands in a list of JSON."""
    separator = ""
    for value in values:
        yield (separator + json.dumps(value)).encode()
        separator = ", "


def _columns(curve: Curve) -> Iterator[bytes]:
    """Yield the columns of a curve as members of a JSON object, some numbers at a time."""
    for name in ("step", "seconds", "mean", "low", "high"):
        column = getattr(curve, name)
        yield f', "{name}": ['.encode()
        for start in range(0, len(column), POINTS_AT_ONCE):
            numbers = column[start : start + POINTS_AT_ONCE].tolist()
            shown = (f"{each:.{DIGITS}g}" if math.isfinite(each) else "null" for each in numbers)
            yield ((", " if start else "") + ", ".join(shown)).encode()
        yield b"]"


FIELDS: Final = (
    "series", "rank", "step", "steps", "seconds", "mean", "low", "high", "count",
)  # fmt: skip
"""Of a line of a download."""


def _rows(shown: Shown, where: slice) -> Iterator[dict[str, Any]]:
    """Yield lines of a download. What is no finite number has none, as in JSON."""
    name, rank, curve = shown
    columns = curve.step, curve.seconds, curve.mean, curve.low, curve.high, curve.count
    for step, seconds, mean, low, high, count in zip(
        *(column[where].tolist() for column in columns), strict=True
    ):
        numbers = finite({"mean": mean, "low": low, "high": high})
        head = {"series": name, "rank": rank, "step": step, "steps": curve.steps}
        yield {**head, "seconds": round(seconds, 3), **numbers, "count": count}


def _as_json_lines(rows: Iterator[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _as_csv(rows: Iterator[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, FIELDS).writerows(rows)
    return text.getvalue().encode()
