"""What a terminal shows of a master's documents, in so many rows and columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from gradwire.cli.master_http import plain
from gradwire.cli.quantities import show_bytes, show_seconds
from gradwire.cli.top.documents import Document, fields, loss_name, number, objects, text

BARS: Final = "▁▂▃▄▅▆▇█"
MISSING: Final = "·"
"""In a curve, where there is no number."""

CURVE_COLUMNS: Final = range(8, 61)
"""How wide a curve may be; where there is less room, there is none."""

EVENTS: Final = 5
"""Most events of a picture that is as high as it has to be."""

OVER: Final = 3
"""Most runs that are over in a picture of so many rows."""

IN_PROGRESS: Final = "in progress"

GAP: Final = 2
"""Columns between two cells."""

TROUBLED: Final = {"silent": "bold red", "quarantined": "bold yellow"}
"""States of workers that people have to see first."""

STYLES: Final = {**TROUBLED, "live": "green"}

BAD_EVENTS: Final = frozenset({"lost", "expelled", "quarantined", "checkpoint failed"})


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table of documents."""

    heading: str
    show: Callable[[Document], str]
    columns_max: int = 13
    is_number: bool = True


RUNS: Final = (
    Column("RUN", lambda run: plain(run["name"]), 24, is_number=False),
    Column("WORKERS", lambda run: show_whole(run["count"])),
    Column("UPDATES/S", lambda run: show_number(run["updates_per_second"])),
    Column("LOSS", lambda run: show_number(run["loss"])),
    Column("STATE", lambda run: plain(run["state"]), 24, is_number=False),
    Column("MODE", lambda run: plain(run["mode"]), is_number=False),
)
"""The first ones are the most important: where there is no room for all, the last are left out."""

WORKERS: Final = (
    Column("RUN", lambda worker: plain(worker["run"]), 16, is_number=False),
    Column("RANK", lambda worker: show_whole(number(worker.get("rank")))),
    Column("NAME", lambda worker: plain(worker.get("name")), 20, is_number=False),
    Column("STATE", lambda worker: doing(worker), 20, is_number=False),
    Column("STEP", lambda worker: show_whole(number(worker.get("step")))),
    Column("STEPS/S", lambda worker: show_number(figure(worker, "steps_per_second"))),
    Column("LOSS", lambda worker: show_number(loss_of(worker))),
    Column("STALE", lambda worker: show_number(figure(worker, "staleness_updates"))),
    Column("BYTES/S", lambda worker: show_size(figure(worker, "encoded_bytes_per_second"))),
    Column("RTT", lambda worker: show_delay(number(worker.get("rtt_seconds")))),
    Column("ADDRESS", lambda worker: plain(worker.get("address")), 24, is_number=False),
    Column("LACKS", lambda worker: show_whole(number(worker.get("lacks_updates")))),
)
"""Ordered as `RUNS` are."""


def frame(found: Document, place: str, columns: int, rows: int | None, note: str = "") -> Group:
    """Return the whole picture.

    Parameters
    ----------
    found : Document
        See `documents`.
    rows : int or None
        Most rows; None for as many as it takes.
    note : str
        What is wrong.
    """
    runs = runs_in(found)
    workers = [each for run in runs for each in run["workers"]]
    workers.sort(key=lambda worker: text(worker.get("state")) not in TROUBLED)
    events = [each for run in runs for each in run["events"]]
    events.sort(key=lambda event: number(event.get("unix_time")) or 0.0)
    events = events[-(EVENTS if rows is None else rows // 5) :]
    shown = [*runs, *over_in(found)[: None if rows is None else OVER]]
    runs_max = len(shown) if rows is None else max(rows // 4, 1)
    top = [Text(header(found, place), "bold", no_wrap=True), *runs_table(shown, columns, runs_max)]
    below = [event_line(event, found) for event in events]
    if note:
        below.append(Text(plain(note), "bold red", no_wrap=True))
    # Of the rows, one is for each run, the headings of both tables and the two gaps.
    taken = 5 + min(len(shown), runs_max + 1) + len(below)
    room = len(workers) if rows is None else max(rows - taken, 2)
    return Group(*top, "", *roster(workers, columns, room, several=len(runs) > 1), "", *below)


def runs_in(found: Document) -> list[Document]:
    """Return what is shown of each run that was asked for."""
    now = number(fields(found.get("overview")).get("unix_time"))
    return [_run(name, fields(each), now) for name, each in fields(found.get("runs")).items()]


def over_in(found: Document) -> list[Document]:
    """Return what is shown of each run that is over, where none was asked for."""
    now = number(fields(found.get("overview")).get("unix_time"))
    return [
        {**_run(text(line.get("name")), {"run": line}, now), "count": number(line.get("workers"))}
        for line in objects(found.get("over"))
    ]


def _run(name: str, found: Document, now: float | None) -> Document:
    document = fields(found.get("run"))
    workers = [{**each, "run": name} for each in objects(document.get("workers"))]
    curves = objects(fields(found.get("series")).get("curves"))
    events = objects(fields(found.get("events")).get("events"))
    losses = [loss for each in workers if (loss := loss_of(each)) is not None]
    return {
        "name": name,
        "mode": text(document.get("mode")),
        "state": state_of(document, now),
        "workers": workers,
        "count": float(len(workers)),
        "step": max((number(each.get("step")) or 0.0 for each in workers), default=None),
        "loss": sum(losses) / len(losses) if losses else None,
        "updates_per_second": figure(document, "updates_per_second"),
        "bytes_per_second": figure(document, "update_bytes_per_second"),
        "curve": next((each["mean"] for each in curves if isinstance(each.get("mean"), list)), []),
        "events": [{**each, "run": name} for each in events],
    }


def state_of(run: Document, now: float | None) -> str:
    """Return what a run is doing, or when it ended."""
    is_finished, stopping = run.get("finished") is True, text(run.get("stopping"))
    ended = number(run.get("ended_unix_time"))
    if ended is not None and now is not None:
        how = "finished" if is_finished else "ended"
        return f"{how} {show_duration(max(now - ended, 0.0))} ago"
    if is_finished:
        return "finished"
    return f"stopping: {stopping}" if stopping else IN_PROGRESS


def line_of(run: Document, steps: int | None = None) -> str:
    """Return a run in a line of text; `steps` is how many each worker makes, where that is known.

    A terminal may have room for the first figures alone.
    """
    step, left = run["step"], None if steps is None else _seconds_left(run["workers"], steps)
    is_of = steps is not None and step is not None
    said = {
        "workers": f"{len(run['workers'])}",
        # Steps count from 0 on.
        "step": f"{step + 1:,.0f} of {steps:,}" if is_of else show_whole(step),
        "eta": "" if left is None else show_duration(left),
        "loss": show_number(run["loss"]),
        "updates/s": show_number(run["updates_per_second"]),
        "bytes/s": show_size(run["bytes_per_second"]),
    }
    state = [] if run["state"] == IN_PROGRESS else [plain(run["state"])]
    figures = [f"{name} {value}" for name, value in said.items() if value]
    return f"{plain(run['name'])}: {', '.join([*state, *figures])}"


def _seconds_left(workers: Sequence[Document], steps: int) -> float | None:
    """Return how long the worker that has the longest way to go still takes, at its speed."""
    ways = [
        max(steps - 1 - step, 0.0) / speed
        for each in workers
        if (step := number(each.get("step"))) is not None
        and (speed := figure(each, "steps_per_second"))
    ]
    return max(ways, default=None)


# Parts.


def header(found: Document, place: str) -> str:
    """Return the daemon in a line."""
    overview = fields(found.get("overview"))
    received, sent, memory, processor = (
        figure(overview, name)
        for name in (
            "received_bytes_per_second", "sent_bytes_per_second", "memory_bytes", "processor_ratio",
        )
    )  # fmt: skip
    parts = [
        f"master {place.removeprefix('http://')}",
        "draining" if overview.get("draining") is True else "",
        show_size(received) and f"{show_size(received)}/s in, {show_size(sent)}/s out",
        "" if processor is None else f"{100 * processor:.0f} % cpu",
        f"up {show_duration(number(overview.get('uptime_seconds')))}",
        show_size(memory),
        plain(overview.get("version")),
    ]
    return " · ".join(filter(None, parts))


def runs_table(runs: Sequence[Document], columns: int, rows: int) -> list[Table | Text]:
    """Return a table of runs, each with the curve of its loss, and how many had no room in it."""
    if not runs:
        return [Text("no run is in progress", "dim")]
    shown, hidden = runs[:rows], len(runs[rows:])
    chosen = fitting(RUNS, shown, columns)
    left = columns - sum(width + GAP for _, width in chosen)
    table = empty_table(chosen)
    has_curves = left >= CURVE_COLUMNS[0] and any(run["curve"] for run in shown)
    if has_curves:
        table.add_column("CURVE", no_wrap=True)
    for run in shown:
        curve = Text(sparkline(run["curve"], min(left, CURVE_COLUMNS[-1])), "green")
        cells = [Text(column.show(run)) for column, _ in chosen]
        table.add_row(*cells, *([curve] if has_curves else []))
    more = f"… and {hidden} more runs: --run NAME shows one"
    return [table, *([Text(more, "dim")] if hidden else [])]


def roster(
    workers: Sequence[Document], columns: int, rows: int, *, several: bool
) -> list[Table | Text]:
    """Return a table of workers, and how many had no room in it."""
    if not workers:
        return [Text("no workers", "dim")]
    shown = workers if len(workers) <= rows else workers[: rows - 1]
    chosen = fitting(WORKERS if several else WORKERS[1:], shown, columns)
    table = empty_table(chosen)
    for worker in shown:
        cells = [Text(column.show(worker)) for column, _ in chosen]
        for cell, (column, _) in zip(cells, chosen, strict=True):
            if column.heading == "STATE":
                cell.stylize(STYLES.get(cell.plain, ""))
        table.add_row(*cells)
    hidden = workers[len(shown) :]
    if not hidden:
        return [table]
    counts = {state: sum(each.get("state") == state for each in hidden) for state in TROUBLED}
    states = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return [table, Text(f"… and {len(hidden)} more{states and f': {states}'}", "dim")]


def event_line(event: Document, found: Document) -> Text:
    """Return an event in a line."""
    now = number(fields(found.get("overview")).get("unix_time"))
    at = number(event.get("unix_time"))
    ago = "" if now is None or at is None else f"{show_duration(max(now - at, 0.0))} ago"
    kind = plain(event.get("kind"))
    text_of = plain(event.get("text"))
    name = plain(event["run"])
    of_run = "" if repr(name) in text_of else f"{name}: "
    line = f"{ago:>12}  {kind:<11} {of_run}{text_of}"
    style = "yellow" if kind in BAD_EVENTS else "dim"
    return Text(line, style, no_wrap=True, overflow="ellipsis")


def fitting(
    table: Sequence[Column], rows: Sequence[Document], columns: int
) -> list[tuple[Column, int]]:
    """Return the columns that have room, and how wide each is; empty ones are left out."""
    chosen: list[tuple[Column, int]] = []
    left = columns
    for column in table:
        widest = max((cell_len(column.show(row)) for row in rows), default=0)
        width = min(max(len(column.heading), widest), column.columns_max)
        if not widest:
            continue
        if width > left:
            break
        chosen.append((column, width))
        left -= width + GAP
    return chosen


def empty_table(chosen: Sequence[tuple[Column, int]]) -> Table:
    """Return a table of these columns without rows."""
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold dim")
    for column, width in chosen:
        table.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            width=width,
            no_wrap=True,
        )
    return table


# Figures.


def figure(document: Document, name: str) -> float | None:
    """Return one of a document's figures."""
    return number(fields(document.get("figures")).get(name))


def doing(worker: Document) -> str:
    """Return the state of a worker, or for whom it waits most of its time."""
    rank = number(worker.get("held_by"))
    return plain(worker.get("state")) if rank is None else f"waits for rank {show_whole(rank)}"


def loss_of(worker: Document) -> float | None:
    """Return the loss that a worker has logged last."""
    scalars = fields(worker.get("scalars"))
    return number(scalars.get(loss_name(scalars) or ""))


def show_number(value: float | None) -> str:
    """Return a number with four digits; empty without one."""
    return "" if value is None else f"{value:.4g}"


def show_whole(value: float | None) -> str:
    """Return a number without its fraction."""
    return "" if value is None else f"{value:,.0f}"


def show_size(value: float | None) -> str:
    """Return bytes."""
    return "" if value is None else show_bytes(value)


def show_delay(value: float | None) -> str:
    """Return a short time."""
    return "" if value is None else show_seconds(value)


def show_duration(value: float | None) -> str:
    """Return a long time: ``3:02`` are minutes, ``1:03:02`` hours, ``2 d 1:03:02`` days."""
    if value is None:
        return "?"
    minutes, seconds = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    of_day = f"{hours}:{minutes:02}:{seconds:02}" if hours or days else f"{minutes}:{seconds:02}"
    return f"{days} d {of_day}" if days else of_day


def sparkline(values: Sequence[object], columns: int) -> str:
    """Return a curve in at most so many columns, each the mean of neighbours."""
    count = min(columns, len(values))
    if count <= 0:
        return ""
    edges = [index * len(values) // count for index in range(count + 1)]
    means = [_mean(values[low:high]) for low, high in pairwise(edges)]
    known = [mean for mean in means if mean is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    # Halves, because the difference of two floats may be beyond all of them.
    scale = (len(BARS) - 1) / (high / 2 - low / 2) if high > low else 0.0
    return "".join(
        MISSING if mean is None else BARS[round((mean / 2 - low / 2) * scale)] for mean in means
    )


def _mean(values: Sequence[object]) -> float | None:
    known = [each for value in values if (each := number(value)) is not None]
    return sum(each / len(known) for each in known) if known else None
