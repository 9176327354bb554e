"""``gradwire estimate``: the command."""

import json as json_text
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gradwire.cli.estimate.formulas import Inputs, estimate
from gradwire.cli.estimate.script import measure
from gradwire.cli.quantities import parse_count, parse_rate, parse_seconds
from gradwire.errors import UsageError
from gradwire_codecs.policies.density import density_for
from gradwire_protocol.messages.modes.mode import parse_mode


def estimate_command(
    script_arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- ARGUMENTS...]", help="What --script is given.", show_default=False
        ),
    ] = None,
    *,
    parameters: Annotated[
        str | None, typer.Option(metavar="COUNT", help="Parameters of the model, such as 14.6M.")
    ] = None,
    step_seconds: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="A worker's step without gradwire: 0.1 or 100ms."),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Measure step and parameters in a run of this script."
        ),
    ] = None,
    workers: Annotated[int, typer.Option("-n", "--workers", help="Number of workers.")] = 8,
    link: Annotated[
        str, typer.Option(metavar="RATE", help="The master's line, such as 100Mbit or 1Gbit.")
    ] = "1Gbit",
    rtt: Annotated[
        str, typer.Option(metavar="TIME", help="Round trip from a worker to the master.")
    ] = "1ms",
    mode: Annotated[
        str,
        typer.Option(metavar="MODE", help="The run mode, such as 'averaging(every=5, bits=4)'."),
    ] = "sharing",
    density: Annotated[
        float | None,
        typer.Option(help="Part of the parameters in an update; by default that of gradwire.join."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say by formulas whether a training will scale: seconds of a step, waiting, bytes.

    Each line has its formula, and the formula with your numbers. Exit status: 0 done, 1 the script
    failed, 2 wrong usage.
    """
    if script is None and script_arguments:
        raise UsageError(
            f"{script_arguments[0]!r}: arguments are those of --script, and it is not given"
        )
    if script is None and not (parameters and step_seconds):
        raise UsageError("give --parameters and --step-seconds, or --script to measure them")
    inputs = Inputs(
        parameters=round(parse_count(parameters or "1M", "--parameters")),
        training=parse_seconds(step_seconds or "1s", "--step-seconds"),
        workers=workers,
        link=parse_rate(link, "--link"),
        rtt=parse_seconds(rtt, "--rtt"),
        mode=parse_mode(mode),
        density=density_for(workers) if density is None else density,
    )
    if script is not None:
        counted, seconds = measure(script, script_arguments or ())
        inputs = replace(
            inputs,
            parameters=inputs.parameters if parameters else counted,
            training=inputs.training if step_seconds else seconds,
        )
    found = estimate(inputs)
    if json:
        typer.echo(json_text.dumps({"verdict": found.verdict, **found.values}, indent=2))
    else:
        typer.echo("\n".join([found.verdict, *found.lines]))
