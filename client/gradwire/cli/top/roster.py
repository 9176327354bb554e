"""The roster in a terminal: which columns have room, and which workers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from gradwire.cli.top.figures import TROUBLED, Worker
from gradwire.cli.top.text import (
    fitted,
    show_delay,
    show_number,
    show_rate,
    show_ratio,
    show_whole,
)

GAP: Final = "  "

STYLES: Final = {"live": "green", "silent": "bold red", "quarantined": "bold yellow"}
"""Of states; others are dim."""

HEADING_STYLE: Final = "bold dim"


@dataclass(frozen=True, slots=True)
class Column:
    """A column."""

    heading: str
    show: Callable[[Worker], str]
    columns_max: int
    is_number: bool = True


COLUMNS: Final = {
    column.heading: column
    for column in (
        Column("RUN", lambda w: w.run, 16, is_number=False),
        Column("RANK", lambda w: f"{w.rank}", 5),
        Column("NAME", lambda w: w.name, 20, is_number=False),
        Column("HOST", lambda w: w.host, 20, is_number=False),
        Column("STATE", lambda w: w.state, 11, is_number=False),
        Column("STEP", lambda w: show_whole(w.step), 13),
        Column("STEPS/S", lambda w: show_number(w.steps_per_second), 9),
        Column("STALE", lambda w: show_number(w.staleness), 9),
        Column("BYTES/S", lambda w: show_rate(w.bytes_per_second), 11),
        Column("DENSITY", lambda w: show_ratio(w.density), 9),
        Column("RTT", lambda w: show_delay(w.rtt_seconds), 9),
        Column("LOSS", lambda w: show_number(w.loss), 9),
        Column("VIA", lambda w: w.transport, 3, is_number=False),
        Column("VERSION", lambda w: w.version, 14, is_number=False),
        Column("RELAY", lambda w: w.relay, 6),
    )
}
"""In the order in which they stand."""

IMPORTANCE: Final = (
    "RANK", "STATE", "NAME", "STEP", "LOSS", "STEPS/S", "STALE", "BYTES/S", "RTT", "RUN", "HOST",
    "DENSITY", "RELAY", "VIA", "VERSION",
)  # fmt: skip
"""Where there is no room for all columns, the last of these are left out first."""


def roster_lines(
    workers: Sequence[Worker],
    columns: int,
    rows: int | None,
    *,
    offset: int = 0,
    with_run: bool = False,
) -> list[Text]:
    """Return a heading, and a line for each worker that has room.

    Parameters
    ----------
    workers : sequence of Worker
        In the order in which they are shown.
    columns : int
        Of the terminal.
    rows : int or None
        Most lines; None for as many as there are.
    offset : int
        How many workers stand above the first line: people have scrolled.
    with_run : bool
        Whether workers of several runs stand here.
    """
    chosen = _chosen(workers, columns, with_run=with_run)
    heading = _line([fitted(c.heading, w, right=c.is_number) for c, w in chosen])
    lines = [Text(heading, HEADING_STYLE)]
    if rows is None:
        rows = len(workers) + 1
    first = min(offset, last_offset(len(workers), rows))
    fits = len(workers) - first <= rows - 1 and first == 0
    shown = workers[first : first + rows - (1 if fits else 2)] if rows > 1 else []
    lines += [_row(worker, chosen) for worker in shown]
    if not fits and rows > 1:
        lines.append(Text(fitted(_rest(workers, first, len(shown)), columns).rstrip(), "dim"))
    return lines[:rows]


def last_offset(workers: int, rows: int) -> int:
    """Return how far people can scroll: to the last worker."""
    return max(workers - (rows - 2), 0) if workers > rows - 1 else 0


def _rest(workers: Sequence[Worker], above: int, shown: int) -> str:
    """Return how many workers are not shown, and what is wrong with them."""
    hidden = [*workers[:above], *workers[above + shown :]]
    states = [f"{n} {s}" for s in TROUBLED if (n := sum(w.state == s for w in hidden))]
    where = f" ({above} above)" if above else ""
    about = f": {', '.join(states)}" if states else ""
    return f"… and {len(hidden)} more{where}{about}"


def _chosen(workers: Sequence[Worker], columns: int, *, with_run: bool) -> list[tuple[Column, int]]:
    """Return the columns that have room, and how wide each is."""
    widths: dict[str, int] = {}
    left = columns
    for heading in IMPORTANCE:
        column = COLUMNS[heading]
        values = [column.show(worker) for worker in workers]
        if (heading == "RUN" and not with_run) or (workers and not any(values)):
            continue
        widest = max(map(cell_len, values), default=0)
        width = min(max(len(heading), widest), column.columns_max, columns)
        needed = width + (len(GAP) if widths else 0)
        if needed > left:
            break
        widths[heading] = width
        left -= needed
    return [(column, widths[name]) for name, column in COLUMNS.items() if name in widths]


def _row(worker: Worker, chosen: Sequence[tuple[Column, int]]) -> Text:
    line = Text()
    for number, (column, width) in enumerate(chosen):
        style = STYLES.get(worker.state, "dim") if column.heading == "STATE" else ""
        text = fitted(column.show(worker), width, right=column.is_number)
        line.append((GAP if number else "") + text, style)
    line.rstrip()
    return line


def _line(cells: Sequence[str]) -> str:
    return GAP.join(cells).rstrip()
