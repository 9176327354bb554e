"""Progress of the demo: lines that change in a terminal, or lines now and then in a pipe."""

import sys
import time
from types import TracebackType
from typing import Final, Self

from gradwire.cli.demo.race import Progress, Race
from gradwire.cli.launch.block import Block
from gradwire.cli.top.advance import Advance

REFRESH_SECONDS: Final = 0.25
LINE_SECONDS: Final = 10.0


class Display:
    """Shows a race on stderr: stdout has the result alone."""

    def __init__(self, race: Race) -> None:
        self._race = race
        self._block = Block()
        self._line_at = 0.0
        self._phase = ""
        self._place_shown = False

    def __enter__(self) -> Self:
        """Return the display."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take away the lines that change."""
        self._block.show([])

    def show(self) -> None:
        """Show the present state."""
        race, advance = self._race, advance_of(self._race)
        if race.place and not self._place_shown:
            self._place_shown = True
            self._block.write(sys.stderr, f"{race.place}\n")
        title = f"gradwire demo, {race.phase}"
        if self._block.is_live:
            self._block.show(advance.lines(self._block.columns, title))
        elif time.monotonic() >= self._line_at or race.phase != self._phase:
            self._line_at, self._phase = time.monotonic() + LINE_SECONDS, race.phase
            self._block.write(sys.stderr, f"{title}: {', '.join(advance.parts)}\n")


def advance_of(race: Race) -> Advance:
    """Return how far a race is, of the workers together or of the one alone."""
    runners = [race.alone] if race.is_alone else race.workers
    rates = [each.steps_per_second for each in runners]
    losses = [each.recent_loss for each in runners if each.recent_loss is not None]
    steps = [float(each.step) for each in runners]
    slowest = min(rates)
    return Advance(
        steps=(min(steps), max(steps)),
        total=float(race.steps),
        steps_per_second=sum(rates) or None,
        loss=sum(losses) / len(losses) if losses else None,
        up_bytes_per_second=None if race.is_alone else _up(runners),
        remaining_seconds=(race.steps - min(steps)) / slowest if slowest else None,
    )


def _up(workers: list[Progress]) -> float | None:
    return sum(each.bytes_per_second for each in workers) or None
