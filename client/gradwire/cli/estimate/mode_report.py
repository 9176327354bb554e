"""What run modes cost: tables for people, JSON objects for machines."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.table import Table

from gradwire.cli.estimate.modes import ModeEstimate
from gradwire.cli.estimate.quantities import show_bytes, show_seconds
from gradwire.cli.estimate.report import given, new_console
from gradwire.cli.estimate.sizes import ring_bytes

KEPT: Final = 0.9
"""Of linear scaling: what a user may want rounds to leave."""

Cell = Callable[[ModeEstimate], str]

MODE: Final[dict[str, Cell]] = {
    "mode": lambda each: each.mode.name,
    "every": lambda each: str(each.mode.every),
    "bits": lambda each: str(each.mode.bits) if each.mode.bits else "-",
}
"""By heading: which of the usual modes a row is about."""

WORKERS: Final[dict[str, Cell]] = {"workers": lambda each: str(each.inputs.workers)}

COSTS: Final[dict[str, Cell]] = {
    "bytes": lambda each: show_bytes(each.traffic.up + each.traffic.down),
    "DDP\nsends": lambda each: f"{_times(each.times_fewer)}x",
    "worker's\nlink": lambda each: show_seconds(each.link_seconds),
    "master's\nlink": lambda each: show_seconds(each.master_link_seconds),
    "step": lambda each: show_seconds(each.step_seconds),
    "linear": lambda each: f"{each.samples:.1%}",
}
"""By heading: what a step costs."""


def show_modes(modes: Sequence[ModeEstimate]) -> None:
    """Print what each of several modes costs."""
    inputs = modes[0].inputs
    title = "What a step of each worker takes in each run mode, the quickest one in bold"
    table = _table(title, MODE, modes, bold=max(modes, key=lambda each: each.samples))
    ring = show_bytes(ring_bytes(inputs.parameters, inputs.workers))
    console = new_console()
    console.print()
    console.print(table)
    console.print(
        f"Bytes are what a worker and the master send each other; in DDP's ring all-reduce each "
        f"worker sends {ring}. A step is {show_seconds(inputs.step_seconds)} of training, and all "
        "that a worker waits for. What a mode does to the loss is not in here: docs/modes.md."
    )


def show_mode(estimate: ModeEstimate, sweep: Sequence[ModeEstimate]) -> None:
    """Print what one mode with rounds costs, and with how many workers."""
    console = new_console()
    console.print(headline(estimate), style="bold")
    console.print(given(estimate.inputs, f"{show_bytes(estimate.sent_bytes)} a contribution"))
    console.print()
    console.print(_round(estimate))
    console.print(
        f"After every {estimate.every_at(KEPT)} steps, such a round leaves {KEPT:.0%} of linear "
        "scaling."
    )
    console.print()
    console.print(_table("A step with more and fewer workers", WORKERS, sweep, bold=estimate))


def headline(estimate: ModeEstimate) -> str:
    """Return in one line how well a mode scales, and how much it sends."""
    every = estimate.mode.steps_between
    steps = "step" if every == 1 else f"{every} steps"
    steps += ", while training goes on" if estimate.mode.streams > 1 else ""
    return (
        f"{estimate.mode}: {estimate.samples:.1%} of linear scaling, with a round of "
        f"{show_seconds(estimate.round_seconds)} after every {steps}. DDP sends "
        f"{_times(estimate.times_fewer)} times as many bytes."
    )


def mode_as_json(estimate: ModeEstimate) -> dict[str, Any]:
    """Return what a mode costs as plain data."""
    return {
        "mode": str(estimate.mode),
        "every": estimate.mode.every,
        "bits": estimate.mode.bits,
        "workers": estimate.inputs.workers,
        "bytes_up": estimate.traffic.up,
        "bytes_down": estimate.traffic.down,
        "times_fewer_bytes": estimate.times_fewer,
        "link_seconds": estimate.link_seconds,
        "master_link_seconds": estimate.master_link_seconds,
        "round_seconds": estimate.round_seconds,
        "round": [asdict(phase) for phase in estimate.phases],
        "step_seconds": estimate.step_seconds,
        "linear_fraction": estimate.samples,
    }


def _table(
    title: str, first: dict[str, Cell], rows: Sequence[ModeEstimate], *, bold: ModeEstimate
) -> Table:
    columns = first | COSTS
    table = Table(title=title, title_justify="left")
    for heading in columns:
        table.add_column(heading, justify="left" if heading == "mode" else "right")
    for row in rows:
        cells = [cell(row) for cell in columns.values()]
        table.add_row(*cells, style="bold" if row == bold else None)
    return table


def _times(ratio: float) -> str:
    return f"{ratio:.3g}" if ratio < 999.5 else f"{ratio:,.0f}"


def _round(estimate: ModeEstimate) -> Table:
    table = Table(title="What a round takes", title_justify="left")
    table.add_column("")
    table.add_column("takes", justify="right")
    table.add_column("limit")
    longest = max(estimate.phases, key=lambda phase: phase.seconds)
    for phase in estimate.phases:
        style = "bold" if phase == longest else None
        table.add_row(phase.name, show_seconds(phase.seconds), phase.limit, style=style)
    return table
