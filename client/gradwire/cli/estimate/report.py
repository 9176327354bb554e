"""The report of an estimate: tables for people, a JSON object for machines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from gradwire.cli.estimate.advice import headline, workers_max
from gradwire.cli.estimate.demands import Kind
from gradwire.cli.estimate.inputs import Inputs
from gradwire.cli.estimate.model import Estimate
from gradwire.cli.estimate.quantities import show_bytes, show_count, show_rate, show_seconds

WIDTH = 100
"""Columns of tables where stdout is no terminal."""


def show(estimate: Estimate, sweep: Sequence[Estimate], advice: Sequence[str]) -> None:
    """Print an estimate to stdout."""
    console, inputs = new_console(), estimate.inputs
    console.print(headline(estimate), style="bold")
    update = f"{show_bytes(inputs.update_bytes)} an update (density {inputs.density:.3g})"
    console.print(given(inputs, update))
    console.print()
    for line in explanation(estimate):
        console.print(line)
    console.print()
    console.print(_resources(estimate))
    console.print()
    console.print(_sweep(sweep, estimate.inputs.workers))
    if advice:
        console.print()
        console.print("What to change, and how far that goes:")
        for line in advice:
            console.print(f"- {line}")


def new_console() -> Console:
    """Return a console for stdout, which need not be a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def given(inputs: Inputs, sent: str) -> str:
    """Return in a line what an estimate is about; `sent` says how large a message is."""
    up = "" if inputs.link_up == inputs.link else f", {show_rate(inputs.link_up)} up"
    return (
        f"{inputs.workers} workers{_masters(inputs)}, {show_count(inputs.parameters)} parameters, "
        f"{show_seconds(inputs.step_seconds)} a step, {sent}; links of "
        f"{show_rate(inputs.link)}{up}, the master's of {show_rate(inputs.master_link)}, "
        f"{show_seconds(inputs.rtt_seconds)} to the master"
    )


def _masters(inputs: Inputs) -> str:
    """Return what stands between workers, if it is not a master alone."""
    masters = f"{inputs.masters} masters" if inputs.masters > 1 else ""
    each = " for each" if masters else ""
    relays = "relay" if inputs.relays == 1 else "relays"
    with_relays = f"{inputs.relays} {relays}{each}" if inputs.relays else ""
    found = " and ".join(filter(None, (masters, with_relays)))
    return found and f" with {found}"


def explanation(estimate: Estimate) -> list[str]:
    """Return sentences that explain the headline."""
    limit = estimate.limit
    age = f"{estimate.delay_steps:.3g} steps old ({estimate.staleness:.3g} updates of others)"
    if not limit.is_short:
        arrives = "in a sum of its step" if estimate.inputs.relays else "as it was sent"
        return [
            f"Every update arrives {arrives}, {age}. What costs most is {limit.name}: "
            f"{show_seconds(limit.seconds)} of a step."
        ]
    arrives = "in the first sum" if estimate.inputs.relays else "one by one"
    return [
        f"Bottleneck: {limit.name}. In each step it would be busy for {limit.load:.2g} steps. "
        f"Workers then wait for it: {estimate.in_step:.1%} of linear scaling is left.",
        "With staleness_bound='off' no worker waits and no change is lost "
        f"({estimate.samples:.1%} of linear scaling), but changes arrive later and together: "
        f"{estimate.sent:.0%} of the steps send an update of their own, "
        f"{estimate.one_by_one:.0%} of the updates arrive {arrives}, {age}. Such a delay costs "
        "accuracy: a step's worth acts like momentum, dozens make training diverge.",
    ]


def as_json(estimate: Estimate, sweep: Sequence[Estimate], advice: Sequence[str]) -> dict[str, Any]:
    """Return an estimate as plain data."""
    return {
        "verdict": headline(estimate),
        "fast_enough": not estimate.limit.is_short,
        **inputs_as_json(estimate.inputs),
        **_figures(estimate),
        "limit": estimate.limit.name,
        "resources": [
            {
                "name": resource.name,
                "seconds": resource.seconds,
                "load": resource.load,
                "short": resource.is_short,
                "if_short": resource.kind.value,
            }
            for resource in estimate.resources
        ],
        "workers_max": workers_max(estimate.inputs),
        "sweep": [
            {"workers": each.inputs.workers, **_figures(each), "limit": each.limit.name}
            for each in sweep
        ],
        "advice": list(advice),
    }


def inputs_as_json(inputs: Inputs) -> dict[str, Any]:
    """Return what an estimate is about, and the costs, which ``--costs`` reads."""
    plain = asdict(inputs)
    costs = plain.pop("costs")
    return {"inputs": plain | {"update_bytes": inputs.update_bytes}, "costs": costs}


def _figures(estimate: Estimate) -> dict[str, float]:
    return {
        "linear_fraction": estimate.samples,
        "speed_up": estimate.speed_up,
        "steps_sent": estimate.sent,
        "one_by_one": estimate.one_by_one,
        "as_sent": estimate.as_sent,
        "linear_fraction_in_step": estimate.in_step,
        "step_seconds": estimate.step_seconds,
        "delay_steps": estimate.delay_steps,
        "staleness": estimate.staleness,
    }


def _resources(estimate: Estimate) -> Table:
    table = Table(title="What a step of every worker takes", title_justify="left")
    table.add_column("")
    table.add_column("takes", justify="right")
    table.add_column("of a step", justify="right")
    table.add_column("where it is short")
    table.add_column("")
    for resource in estimate.resources:
        is_limit = resource == estimate.limit
        table.add_row(
            resource.name,
            show_seconds(resource.seconds),
            f"{resource.load:.1%}" if resource.load < 10 else f"{resource.load:.0%}",
            resource.kind.value,
            "<- limit" if is_limit else "short" if resource.is_short else "",
            style="bold" if is_limit else None,
        )
    return table


def _sweep(sweep: Sequence[Estimate], workers: int) -> Table:
    table = Table(title="With more and fewer workers", title_justify="left")
    for heading in ("workers", "linear", "speed-up", "as sent", "all wait", "steps old"):
        table.add_column(heading, justify="right")
    table.add_column("fits")
    table.add_column("limit")
    for each in sweep:
        limit = each.limit.name
        if each.limit.kind is not Kind.TRAINS:
            limit = f"{limit}, {each.limit.load:.0%}"
        table.add_row(
            str(each.inputs.workers),
            f"{each.samples:.1%}",
            f"{each.speed_up:.3g}x",
            f"{each.as_sent:.0%}",
            f"{each.in_step:.1%}",
            f"{each.delay_steps:.3g}",
            "no" if each.limit.is_short else "yes",
            limit,
            style="bold" if each.inputs.workers == workers else None,
        )
    return table
