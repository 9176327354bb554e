"""`Advance`: how far a training is, in a line or two: for ``gradwire run``, the demo and pipes."""

from dataclasses import dataclass
from typing import Final

from gradwire.cli.top.figures import AT_WORK, TROUBLED, Picture, Run
from gradwire.cli.top.text import (
    fitted_parts,
    show_duration,
    show_number,
    show_rate,
    show_whole,
)

LINES_MAX: Final = 3

SEPARATOR: Final = ", "


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """How far a training is; None stands for what is not known."""

    alive: int | None = None
    """Workers that take part."""
    started: int | None = None
    """Workers that were started."""
    troubles: str = ""
    """What is wrong with some of them."""
    steps: tuple[float, float] | None = None
    """Of the workers that are the least and the most advanced."""
    total: float | None = None
    """Steps that each is to make."""
    steps_per_second: float | None = None
    """Of all workers together."""
    updates_per_second: float | None = None
    """Shown where steps are not counted."""
    loss: float | None = None
    up_bytes_per_second: float | None = None
    """From workers to masters."""
    down_bytes_per_second: float | None = None
    """From masters to workers."""
    remaining_seconds: float | None = None

    @classmethod
    def of(cls, run: Run, picture: Picture | None = None, **known: float | None) -> "Advance":
        """Return what a master says of a run; `known` are fields that others know better."""
        picture = picture or Picture()
        states = [worker.state for worker in run.workers]
        said = [f"{states.count(state)} {state}" for state in TROUBLED if state in states]
        fields = {
            "alive": sum(state in AT_WORK for state in states),
            "troubles": SEPARATOR.join(said),
            "steps": run.steps,
            "steps_per_second": run.steps_per_second,
            "updates_per_second": run.updates_per_second,
            "loss": run.loss,
            "up_bytes_per_second": picture.figure("received_bytes_per_second"),
            "down_bytes_per_second": picture.figure("sent_bytes_per_second"),
            **known,
        }
        return cls(**fields)  # type: ignore[arg-type]

    @property
    def parts(self) -> list[str]:
        """What is known, the most important first."""
        up, down = map(show_rate, (self.up_bytes_per_second, self.down_bytes_per_second))
        steps, updates = map(show_number, (self.steps_per_second, self.updates_per_second))
        loss = show_number(self.loss)
        left = show_duration(self.remaining_seconds)
        found = [
            self._workers,
            self.troubles,
            self._steps,
            f"{steps} steps/s" if steps else updates and f"{updates} updates/s",
            loss and f"loss {loss}",
            left and f"{left} left",
            up and f"{up} up",
            down and f"{down} down",
        ]
        return [part for part in found if part]

    def line(self, columns: int) -> str:
        """Return as much as one line takes."""
        return fitted_parts(self.parts, columns, SEPARATOR)

    def lines(self, columns: int, title: str) -> list[str]:
        """Return as much as `LINES_MAX` lines take, with a title before it."""
        parts = [f"{title}: {part}" if not n else part for n, part in enumerate(self.parts)]
        lines: list[str] = []
        while parts and len(lines) < LINES_MAX:
            count = len(parts)
            while count > 1 and fitted_parts(parts[:count], columns, SEPARATOR) != SEPARATOR.join(
                parts[:count]
            ):
                count -= 1
            lines.append(fitted_parts(parts[:count], columns, SEPARATOR))
            parts = parts[count:]
        return lines

    @property
    def _workers(self) -> str:
        if self.alive is None:
            return ""
        if self.started is not None:
            return f"{self.alive} of {self.started} workers"
        return f"{self.alive} worker{'s' * (self.alive != 1)}"

    @property
    def _steps(self) -> str:
        if self.steps is None:
            return ""
        least, most = map(show_whole, self.steps)
        total = show_whole(self.total)
        shown = f"step {least}" if least == most else f"steps {least} to {most}"
        return f"{shown} of {total}" if total else shown
