"""`Check`: the result of one check, and what to do about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import typer


class State(StrEnum):
    """The verdict of a check."""

    OK = "ok"
    SLOW = "slow"
    """It works, but costs speed or accuracy."""
    BROKEN = "broken"
    """No worker can train like this."""
    UNMEASURED = "unmeasured"
    """There was no check; the text says why."""


EXIT_STATUS: Final = {State.BROKEN: 5, State.SLOW: 1, State.OK: 0}
"""Exit status by the worst verdict; 5 means an unreachable master in every command."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    state: State
    text: str
    """The result in words."""
    remedy: str = ""
    """What to do about it; not empty where the state is slow or broken."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The result as plain data, for machines."""


def worst(checks: Sequence[Check]) -> State:
    """Return the worst state among checks; `UNMEASURED` counts as ok."""
    states = {check.state for check in checks}
    return next((state for state in EXIT_STATUS if state in states), State.OK)


def show(checks: Sequence[Check]) -> None:
    """Print each check to stdout in a line, with its remedy below."""
    width = max(len(check.name) for check in checks)
    for check in checks:
        state = "-" if check.state is State.UNMEASURED else check.state.value
        typer.echo(f"{state:<6}  {check.name:<{width}}  {check.text}")
        if check.remedy:
            typer.echo(f"{'':6}  {'':{width}}  -> {check.remedy}")
