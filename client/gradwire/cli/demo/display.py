"""Progress of the demo: a table in a terminal, or plain lines in a pipe."""

import sys
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from gradwire.cli.demo.race import Progress, Race

REFRESH_SECONDS: Final = 0.25
LINE_SECONDS: Final = 5.0


class Display:
    """Shows a race, on a console for stderr: stdout has the result alone."""

    def __init__(self, race: Race, console: Console) -> None:
        self._race = race
        self._console = console
        self._live = (
            Live(console=console, auto_refresh=False, transient=True)
            if console.is_terminal
            else None
        )
        self._line_at = 0.0
        self._place_shown = False

    def __enter__(self) -> Self:
        """Begin to draw."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Clear the table."""
        if self._live is not None:
            self._live.stop()

    def show(self) -> None:
        """Show the present state."""
        if self._race.place and not self._place_shown:
            self._place_shown = True
            self._console.print(self._race.place, highlight=False, soft_wrap=True)
        if self._live is not None:
            self._live.update(progress_table(self._race), refresh=True)
        elif time.monotonic() >= self._line_at:
            self._line_at = time.monotonic() + LINE_SECONDS
            self._console.print(progress_line(self._race), highlight=False)
            sys.stderr.flush()


def progress_table(race: Race) -> Table:
    """Return a table with a row for each worker, the master, and the worker alone."""
    table = Table(title=f"gradwire demo: {race.phase}", title_justify="left")
    table.add_column("")
    for heading in ("step", "loss", "steps/s", "density", "sent/s", "sent", "applied", "staleness"):
        table.add_column(heading, justify="right", min_width=8)
    for worker in race.workers:
        table.add_row(*_row(worker, race.steps))
    relayed = race.metrics.get("gradwire_updates_relayed_total", 0)
    master_bytes = int(race.metrics.get("gradwire_sent_bytes_total", 0))
    of_master = (_bytes(master_bytes), f"{relayed:.0f} relayed")
    table.add_row("master", *[""] * 5, *of_master, style="dim")
    if race.alone.started is not None:
        table.add_row(*_row(race.alone, race.steps))
    return table


def progress_line(race: Race) -> str:
    """Return the progress in one line."""
    runner = race.alone if race.alone.started is not None else race.workers[0]
    loss = "" if runner.recent_loss is None else f", loss {runner.recent_loss:.3f}"
    return f"{race.phase}: step {runner.step} of {race.steps}{loss}, {_bytes(race.bytes_sent)} sent"


def _row(worker: Progress, steps: int) -> list[str]:
    loss = "" if worker.recent_loss is None else f"{worker.recent_loss:.3f}"
    row = [worker.name, f"{worker.step}/{steps}", loss, f"{worker.steps_per_second:.1f}"]
    stats = worker.stats
    if not stats:
        return row
    return [
        *row,
        f"{stats['density']:.2%}",
        f"{_bytes(worker.bytes_per_second)}/s",
        _bytes(stats["bytes_sent"]),
        str(stats["updates_applied"]),
        f"{stats['staleness']:.1f}",
    ]


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
