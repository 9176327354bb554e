"""`frame`: everything that a terminal shows, line by line; none is wider than the terminal.

From top to bottom: the master, its runs, the curves of the chosen run, its workers, what has
happened, and the keys. The roster has what the others leave; they leave more where there is less
room.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from gradwire.cli.top.figures import Event, Picture, Run, Worker
from gradwire.cli.top.roster import GAP, HEADING_STYLE, last_offset, roster_lines
from gradwire.cli.top.text import (
    fitted,
    fitted_parts,
    show_duration,
    show_number,
    show_rate,
    show_size,
    show_whole,
    sparkline,
)

KEYS: Final = "q quit · ←→ or tab: another run · ↑↓ page up, page down: scroll"

CURVE_COLUMNS_MAX: Final = 120

CELL_COLUMNS_MAX: Final = 24
"""Of a run's name, state or mode."""

EVENTS_ONCE: Final = 10
"""How many events a picture has that has no height."""

RUNS_PART: Final = 6
EVENTS_PART: Final = 6
"""Which part of the height runs and events may have, as one in so many lines."""


@dataclass(frozen=True, slots=True)
class View:
    """What is looked at, and how."""

    place: str
    picture: Picture
    run: str | None = None
    """Whose roster is shown; None for all workers."""
    offset: int = 0
    """How far the roster is scrolled."""
    note: str = ""
    """What is wrong; empty where nothing is."""
    has_keys: bool = False

    @property
    def chosen(self) -> Run | None:
        """The run whose roster is shown, also where there is just one."""
        runs = self.picture.runs
        return runs[0] if self.run is None and len(runs) == 1 else self.picture.run(self.run)

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The workers in the roster."""
        chosen = self.chosen
        if chosen is not None or self.run is not None:
            return () if chosen is None else chosen.workers
        workers = [worker for run in self.picture.runs for worker in run.workers]
        return tuple(sorted(workers, key=lambda worker: not worker.troubled))

    @property
    def events(self) -> list[Event]:
        """What has happened in the runs that are shown, the oldest first."""
        runs = [self.chosen] if self.chosen is not None or self.run else self.picture.runs
        events = [event for run in runs if run is not None for event in run.events]
        return sorted(events, key=lambda event: event.at)


@dataclass(frozen=True, slots=True)
class Room:
    """How many lines each part has; None for as many as it needs."""

    runs: int | None
    roster: int | None
    events: int


def room(view: View, rows: int | None) -> Room:
    """Return how a terminal of so many rows is divided."""
    if rows is None:
        return Room(None, None, EVENTS_ONCE)
    runs = 1 + min(len(view.picture.runs), max(rows // RUNS_PART - 1, 1))
    fixed = 1 + runs + len(_curves(view, CURVE_COLUMNS_MAX)) + bool(view.note) + view.has_keys
    events = min(len(view.events), max(rows // EVENTS_PART, 1))
    needed = 1 + max(len(view.workers), 1)
    left = max(rows - fixed, 0)
    # Workers that are few leave more room for events.
    events = min(max(events, left - needed), len(view.events), max(left - 2, 0))
    return Room(runs, max(left - events, 0), events)


def frame(view: View, columns: int, rows: int | None) -> list[Text]:
    """Return the lines of the picture.

    Parameters
    ----------
    columns, rows : int
        Of the terminal; with rows, as many lines are returned. None for all that there is.
    """
    has = room(view, rows)
    lines = [_header(view, columns)]
    if view.note:
        lines.append(Text(fitted(view.note, columns).rstrip(), "bold red"))
    lines += _runs(view, columns, has.runs)
    lines += _curves(view, columns)
    lines += _roster(view, columns, has.roster)
    lines += [_event(each, view, columns) for each in _last(view.events, has.events)]
    if rows is None:
        return lines
    below = [Text(fitted(KEYS, columns).rstrip(), "dim")] if view.has_keys else []
    lines = lines[: max(rows - len(below), 0)]
    empty = [Text() for _ in range(rows - len(lines) - len(below))]
    return [*lines, *empty, *below][:rows]


def offset_max(view: View, rows: int) -> int:
    """Return how far the roster can be scrolled."""
    return last_offset(len(view.workers), room(view, rows).roster or 0)


def page_rows(view: View, rows: int) -> int:
    """Return how many workers a page has."""
    return max((room(view, rows).roster or 0) - 2, 1)


# Parts.


def _header(view: View, columns: int) -> Text:
    picture = view.picture
    processor = picture.figure("processor_ratio")
    received = show_rate(picture.figure("received_bytes_per_second"))
    sent = show_rate(picture.figure("sent_bytes_per_second"))
    parts = [
        f"{picture.role or 'master'} {view.place.removeprefix('http://')}",
        "draining" if picture.draining else "",
        f"{received} in, {sent} out" if received and sent else "",
        "" if processor is None else f"{100 * processor:.0f} % cpu",
        _after("up ", show_duration(picture.uptime_seconds)),
        show_size(picture.figure("memory_bytes")),
        picture.version,
        f"{picture.relays} relays" if picture.relays else "",
    ]
    return Text(fitted_parts(parts, columns), "bold")


def _after(prefix: str, text: str) -> str:
    return prefix + text if text else ""


def _runs(view: View, columns: int, rows: int | None) -> list[Text]:
    runs = view.picture.runs
    if not runs:
        return [Text(fitted("no run is in progress", columns).rstrip(), "dim")]
    most = len(runs) if rows is None else max(rows - 1, 1)
    first = 0
    if view.chosen is not None:  # the chosen one stays in sight
        first = max(runs.index(view.chosen) - most + 1, 0)
    shown = runs[first : first + most]
    table = [HEADINGS, *map(_run_cells, shown)]
    if len(shown) < len(runs):
        table[0] = (f"RUN ({len(shown)} of {len(runs)})", *HEADINGS[1:])
    widths = [
        min(max(cell_len(row[i]) for row in table), CELL_COLUMNS_MAX) for i in range(len(HEADINGS))
    ]
    lines = []
    for run, row in zip((None, *shown), table, strict=True):
        cells = [
            fitted(text, width, right=heading in NUMBERS)
            for heading, text, width in zip(HEADINGS, row, widths, strict=True)
        ]
        marked = run is not None and run is view.chosen and len(runs) > 1
        mark = ("> " if marked else "  ") if len(runs) > 1 else ""
        text = mark + fitted_parts(cells, columns - len(mark), GAP)
        style = HEADING_STYLE if run is None else "bold" if marked else ""
        lines.append(Text(fitted(text, columns).rstrip(), style))
    return lines


HEADINGS: Final = ("RUN", "WORKERS", "UPDATES/S", "LOSS", "STATE", "MODE", "PARAMETERS")
"""Columns of the runs; where there is no room for all, the last ones are left out."""

NUMBERS: Final = frozenset({"WORKERS", "UPDATES/S", "LOSS", "PARAMETERS"})


def _run_cells(run: Run) -> tuple[str, ...]:
    return (
        run.name,
        show_whole(run.workers_count),
        show_number(run.updates_per_second),
        show_number(run.loss),
        run.state,
        run.mode,
        show_whole(run.parameters),
    )


def _curves(view: View, columns: int) -> list[Text]:
    run = view.chosen
    if run is None:
        return []
    lines = []
    named = (("loss", run.loss_curve, run.loss, "green"),
             ("updates/s", run.rate_curve, run.updates_per_second, "cyan"))  # fmt: skip
    for name, curve, newest, style in named:
        width = min(columns, CURVE_COLUMNS_MAX) - 20
        bars = sparkline(curve, width, from_zero=curve is run.rate_curve)
        if bars:
            line = Text(f"{name:<9}  {fitted(show_number(newest), 7, right=True)}  ")
            lines.append(line.append(bars, style))
    return lines


def _roster(view: View, columns: int, rows: int | None) -> list[Text]:
    if rows == 0:
        return []
    workers = view.workers
    if not workers:
        text = "no workers" if view.picture.runs else "workers that join show up here"
        return [Text(fitted(text, columns).rstrip(), "dim")]
    with_run = view.chosen is None
    return roster_lines(workers, columns, rows, offset=view.offset, with_run=with_run)


def _event(event: Event, view: View, columns: int) -> Text:
    now = view.picture.unix_time
    ago = "" if now is None else show_duration(max(now - event.at, 0.0))
    run = f"{event.run}: " if view.chosen is None else ""
    line = f"{fitted(ago, 9, right=True)} ago  {fitted(event.kind, 11)} {run}{event.text}"
    return Text(fitted(line, columns).rstrip(), "yellow" if event.kind in _BAD else "dim")


_BAD: Final = frozenset({"lost", "expelled", "quarantined", "clipped", "checkpoint failed"})
"""Kinds of events that people have to see."""


def _last(events: Sequence[Event], most: int) -> Sequence[Event]:
    return events[-most:] if most > 0 else ()
