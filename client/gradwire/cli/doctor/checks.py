"""`Check`: one thing that was looked at, how it is, and what to do about it."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Self

import typer


class State(StrEnum):
    """How something is."""

    OK = "ok"
    SLOW = "slow"
    """It works, and costs speed or accuracy."""
    BROKEN = "broken"
    """Nobody can train like this."""
    UNMEASURED = "unmeasured"
    """It was not looked at; the text says why."""


EXIT_STATUS: Final = {State.BROKEN: 5, State.SLOW: 1, State.OK: 0}
"""Of the command, by the worst that was found; 5 is that of an unreachable master everywhere."""

COLORS: Final = {
    State.OK: typer.colors.GREEN,
    State.SLOW: typer.colors.YELLOW,
    State.BROKEN: typer.colors.RED,
    State.UNMEASURED: typer.colors.BRIGHT_BLACK,
}


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    state: State
    text: str
    """What was found, in words."""
    remedy: str = ""
    """What to do about it; there is one wherever the state is slow or broken."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The same as plain data, for machines."""

    def slow(self, remedy: str, *, text: str | None = None) -> Self:
        """Return the same check as slow, with what to do about it, and perhaps another text."""
        text = self.text if text is None else text
        return replace(self, state=State.SLOW, text=text, remedy=remedy)


def worst(checks: Sequence[Check]) -> State:
    """Return the worst state among checks; what was not measured counts as ok."""
    states = {check.state for check in checks}
    return next((state for state in EXIT_STATUS if state in states), State.OK)


def show(checks: Sequence[Check]) -> None:
    """Print checks to stdout, a line each, with what to do below it."""
    width = max(len(check.name) for check in checks)
    for check in checks:
        shown = "-" if check.state is State.UNMEASURED else check.state.value
        state = f"{shown:<6}"
        if sys.stdout.isatty():
            state = typer.style(state, fg=COLORS[check.state])
        typer.echo(f"{state}  {check.name:<{width}}  {check.text}")
        if check.remedy:
            typer.echo(f"{'':6}  {'':{width}}  -> {check.remedy}")


def as_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Return checks as plain data."""
    return {"verdict": worst(checks).value, "checks": [asdict(check) for check in checks]}
