"""`Documents`: what the JSON API says, as values that JSON has.

Times are seconds: `unix_time` by the clock of the master, `seconds` since the first scalar of a run
was logged, as in its series. What a viewer's clock says does not matter.
"""

import json
import math
import os
from collections.abc import Callable, Collection, Iterator
from importlib.metadata import version
from itertools import islice
from time import time
from typing import Any, Final

from gradwire_protocol import Connection
from gradwire_protocol.messages.admission import split_masters
from gradwire_server.master.master import Master
from gradwire_server.runs.figures import PREFIX as FIGURE_PREFIX
from gradwire_server.runs.figures import Figures
from gradwire_server.runs.runs import Runs
from gradwire_server.series.board import Curve
from gradwire_server.series.journal import Entry, Journal
from gradwire_server.series.series import Series
from gradwire_server.state.roster import Member
from gradwire_server.state.run import Run
from gradwire_udp.sockets import show_address
from gradwire_udp.tcp.peer import TcpAddress

VERSION: Final = version("gradwire")
"""Looking it up takes a millisecond."""

OWN_PREFIX: Final = "gradwire/"
"""Of the series that a session reports itself."""

SCALARS_MAX: Final = 16
"""Most scalars of a script that a worker is shown with; all are in its series."""

SILENT_SECONDS: Final = 1.0
"""A worker that was sent something so long ago, and was not heard of since, is called silent. It
may be dead: an acknowledgement takes a round trip."""

POINTS_MAX: Final = 2**12
POINTS: Final = 1_000
"""Most points of a curve, and how many there are unless a request says so."""

POINTS_OF_ANSWER_MAX: Final = 2**16
"""Most points of all curves of an answer, about: 3 MB. With more curves each has fewer points."""

POINTS_AT_ONCE: Final = 256
"""Points that are made in one step: some tenths of a millisecond."""

RANKS: Final = 16
"""Workers whose curves are given unless a request says which: the first ones."""

NAMES_MAX: Final = 16
"""Most series in one answer."""

NAMES_SHOWN_MAX: Final = 2_000
"""Most names of series in a run's document, which is made every second."""

HISTOGRAM_NUMBERS: Final = "lowest", "highest", "mean", "deviation"

CLEAN: Final = "{:.7g}".format
"""Seven digits are more than a screen shows."""


class Documents:
    """Makes the documents of a daemon.

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

    def overview(self) -> dict[str, Any]:
        """Return what concerns no single run, and a line for each run."""
        config = self._runs.config
        return {
            "version": VERSION,
            "pid": os.getpid(),
            "unix_time": time(),
            "uptime_seconds": self._clock() - self._figures.began,
            "connections": self._connections(),
            **self._runs.summary(),
            "shard": config.shard,
            "shards": [] if config.shards is None else addresses_in(config.shards),
            "figures": cleaned(self._figures.newest()),
            "runs": [
                self._line(master.run, master)
                for master in self._runs.in_progress.values()
                if master.run is not None
            ],
            "over": self._runs.over,
        }

    def _line(self, run: Run, master: Master) -> dict[str, Any]:
        return {
            "name": run.name,
            "mode": str(run.mode),
            "parameters": run.parameters,
            "workers": len(master.roster.workers),
            "updates": sum(run.relay.versions.values()),
            "finished": run.finished,
            "stopping": run.stop_reason,
        }

    # A run.

    @property
    def runs(self) -> Collection[str]:
        """The names of the runs in progress."""
        return self._runs.in_progress.keys()

    def has_series(self, run: str) -> bool:
        """Return whether there is anything that workers of a run have logged."""
        return self._runs.series(run) is not None

    def journal(self, run: str | None) -> Journal | None:
        """Return where the events of a run are kept; None if there is no such run in progress."""
        master = None if run is None else self._runs.in_progress.get(run)
        return None if master is None else master.state.journal

    def has(self, run: str) -> bool:
        """Return whether there is a run of this name in progress."""
        return run in self._runs.in_progress

    def run_parts(self, name: str) -> Iterator[bytes]:
        """Yield a run's document part by part, each worker by itself; nothing if it is over."""
        master = self._runs.in_progress.get(name)
        if master is None or master.run is None:
            return
        run, now = master.run, self._clock()
        head = {
            "unix_time": time(),
            **master.summary(),
            "seconds": None if run.series.began is None else now - run.series.began,
            "scalars": run.series.taken,
            "histograms": run.series.histograms.taken,
            "events": master.state.journal.last,
            "figures": cleaned(self._figures.newest(name)),
            "series": [
                *self._figures.names(name),
                *self._figures.names(),
                *islice(run.series.names(), NAMES_SHOWN_MAX),
            ],
        }
        yield json.dumps(head)[:-1].encode() + b', "workers": ['
        separator = b""
        for member in master.roster:
            if not member.observes:
                yield separator + json.dumps(described(member, run, now)).encode()
                separator = b", "
        yield b"]}"

    def events_parts(self, name: str, after: int = 0) -> Iterator[bytes]:
        """Yield what has happened in a run, each thing by itself; nothing if it is over.

        Parameters
        ----------
        after : int
            Number of the last entry that is left out.
        """
        master = self._runs.in_progress.get(name)
        if master is None or master.run is None:
            return
        run, journal = master.run, master.state.journal
        since = max(after, run.events_before)
        entries = [entry for entry in journal.after(since) if entry.run in ("", name)]
        yield f'{{"last": {journal.last}, "events": ['.encode()
        separator = b""
        for entry in entries:
            yield separator + json.dumps(self._shown(entry, run)).encode()
            separator = b", "
        yield b"]}"

    def _shown(self, entry: Entry, run: Run) -> dict[str, Any]:
        began = run.series.began
        return {
            "number": entry.number,
            "unix_time": round(time() - (self._clock() - entry.at), 3),
            "seconds": None if began is None else round(entry.at - began, 3),
            "kind": entry.kind,
            "rank": entry.rank,
            "text": entry.text,
        }

    # Curves.

    def logged_parts(self, name: str) -> Iterator[bytes]:
        """Yield what workers of a run have logged, by name, also of one that is over."""
        series = self._runs.series(name)
        if series is not None:
            logged = {
                "name": name,
                "over": not self.has(name),
                "scalars": series.taken,
                "histograms": series.histograms.taken,
                "series": list(islice(series.names(), NAMES_SHOWN_MAX)),
            }
            yield json.dumps(logged).encode()

    def series_parts(
        self, run: str, names: Collection[str], points: int, ranks: Collection[int] | None
    ) -> Iterator[bytes]:
        """Yield the curves of some series: columns of numbers, a few at a time."""
        series = self._runs.series(run)
        there = [] if series is None else series.ranks
        chosen = there[:RANKS] if ranks is None else [rank for rank in there if rank in ranks]
        points = min(points, max(POINTS_OF_ANSWER_MAX // (len(names) * (1 + len(chosen))), 1))
        yield b'{"curves": ['
        separator = b""
        for name in names:
            for curve, rank in self._curves(run, series, name, points, chosen):
                if curve is None:
                    yield b""
                    continue
                yield separator + b'{"name": ' + json.dumps(name).encode() + b', "rank": '
                yield json.dumps(rank).encode()
                yield from column_parts(curve)
                yield b"}"
                separator = b", "
        yield b"]}"

    def _curves(
        self,
        run: str,
        series: Series | None,
        name: str,
        points: int,
        ranks: Collection[int],
    ) -> Iterator[tuple[Curve | None, int | None]]:
        if name.startswith(FIGURE_PREFIX):
            found = self._figures.curve(name, run) or self._figures.curve(name)
            if found is not None:
                width = 2 ** (max(len(found.step) - 1, 0) // points).bit_length()
                yield self._in_time_of(series, found.coarser(width * found.steps)), None
        elif series is not None:
            for shown in series.curves_of(name, points_max=points, ranks=ranks):
                yield (None, None) if shown is None else (shown.curve, shown.rank)

    def histograms_parts(self, run: str, layer: str | None, *, history: bool) -> Iterator[bytes]:
        """Yield the histograms of a layer, by default of the first one, and the names of all."""
        series = self._runs.series(run)
        newest = None if series is None else series.histograms.newest
        names = () if newest is None else newest.names
        wanted = layer if layer is not None or not names else names[0]
        yield b'{"layers": ' + json.dumps(names).encode() + b', "histograms": ['
        separator = b""
        shown = () if series is None else series.histograms.shown(history=history, layer=wanted)
        for found in shown:
            if found is None:
                yield b""
                continue
            numbers = {name: found[name] for name in HISTOGRAM_NUMBERS}
            yield separator + json.dumps({**found, **cleaned(numbers)}).encode()
            separator = b", "
        yield b"]}"

    def _in_time_of(self, series: Series | None, curve: Curve) -> Curve:
        """Return a figure with seconds as in a run's series, not since the master was started."""
        began = None if series is None else series.began
        shift = 0.0 if began is None else self._figures.began - began
        return Curve(
            curve.steps, curve.step, curve.seconds + shift, curve.mean, curve.low, curve.high,
            curve.count,
        )  # fmt: skip


def addresses_in(masters: str) -> list[str]:
    """Return the addresses of masters that share the parameters, without their weights."""
    return [each.address for each in split_masters(masters)]


def described(member: Member, run: Run, now: float) -> dict[str, Any]:
    """Return a worker as the roster shows it."""
    connection, newest = member.link.connection, run.series.newest(member.rank)
    own = {n: value for n, (_, value) in newest.items() if n.startswith(OWN_PREFIX)}
    scalars = ((n, value) for n, (_, value) in newest.items() if not n.startswith(OWN_PREFIX))
    heard = connection.heard_at
    return {
        "rank": member.rank,
        "name": member.shown_name,
        "key_name": member.key_name,
        "address": address_of(connection),
        "transport": "tcp" if isinstance(connection.address, TcpAddress) else "udp",
        "version": member.join.version,
        "state": state_of(member, now),
        "relay": None if member.relayed is None else member.relayed.place.number,
        "heard_seconds": None if heard is None else round(max(now - heard, 0.0), 3),
        "rtt_seconds": connection.rtt,
        "queued_bytes": connection.bytes_queued,
        "updates": run.relay.versions.get(member.rank, 0),
        "step": max((step for step, _ in newest.values()), default=None),
        "figures": cleaned({n.removeprefix(OWN_PREFIX): value for n, value in own.items()}),
        "scalars": cleaned(dict(islice(scalars, SCALARS_MAX))),
    }


def state_of(member: Member, now: float) -> str:
    """Return what a worker is doing, in a word."""
    connection = member.link.connection
    if member.quarantine is not None:
        return "quarantined"
    heard = connection.heard_at
    if heard is not None and now - heard > SILENT_SECONDS:
        asked = connection.unanswered_since
        if asked is not None and now - asked > SILENT_SECONDS:
            return "silent"
    if member.last_sequence is not None:
        return "finished" if member.leaving is None else "leaving"
    return member.phase.name.lower()


def address_of(connection: Connection) -> str:
    """Return where a worker is, as far as the master knows."""
    address = connection.address
    return show_address(address) if isinstance(address, tuple) else str(address)


def cleaned(numbers: dict[str, float] | Any) -> dict[str, float | None]:
    """Return numbers as JSON has them: what is not finite is null."""
    return {name: clean(value) for name, value in numbers.items()}


def clean(value: float) -> float | None:
    """Return a number with as many digits as people look at; None if it is not finite."""
    return float(CLEAN(value)) if math.isfinite(value) else None


def column_parts(curve: Curve) -> Iterator[bytes]:
    """Yield the columns of a curve as members of a JSON object, some numbers at a time."""
    yield f', "steps": {curve.steps}'.encode()
    for name in ("step", "seconds", "mean", "low", "high"):
        column = getattr(curve, name)
        yield f', "{name}": ['.encode()
        for start in range(0, len(column), POINTS_AT_ONCE):
            numbers = column[start : start + POINTS_AT_ONCE].tolist()
            text = (
                ", ".join(CLEAN(each) if math.isfinite(each) else "null" for each in numbers)
                if name != "step"
                else ", ".join(map(str, numbers))
            )
            yield ((", " if start else "") + text).encode()
        yield b"]"
