"""``gradwire estimate``: the command."""

import json as json_text
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from gradwire.cli.estimate.advice import advice
from gradwire.cli.estimate.calibration import calibrate
from gradwire.cli.estimate.costs import Costs
from gradwire.cli.estimate.demands import demands
from gradwire.cli.estimate.inputs import Inputs
from gradwire.cli.estimate.measuring import Measured, ScriptFailedError, measure
from gradwire.cli.estimate.mode_report import mode_as_json, show_mode, show_modes
from gradwire.cli.estimate.model import estimate
from gradwire.cli.estimate.modes import USUAL_MODES, estimate_mode
from gradwire.cli.estimate.quantities import (
    check_between,
    parse_count,
    parse_rate,
    parse_seconds,
    show_bytes,
    show_seconds,
)
from gradwire.cli.estimate.report import as_json, inputs_as_json, show
from gradwire.cli.estimate.sizes import update_bytes
from gradwire.errors import UsageError
from gradwire.settings.settings import CODEC_THREADS_MAX
from gradwire_codecs.policies.density import TARGET_DENSITY, density_for
from gradwire_protocol.messages.modes.mode import Mode, parse_mode

EXIT_FAILED: Final = 1
"""Exit status where the measured script has failed."""

SWEEP_MIN: Final = 16
"""The table goes up to this many workers or twice the given number, whichever is more."""

MEASURE_SECONDS_MAX: Final = 3600.0


def estimate_command(
    script_arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- ARGUMENTS...]",
            help="What --measure's script is given.",
            show_default=False,
        ),
    ] = None,
    *,
    workers: Annotated[int, typer.Option("-n", "--workers", help="Number of workers.")] = 8,
    link: Annotated[
        str, typer.Option(metavar="RATE", help="Link of each worker, such as 100Mbit or 1Gbit.")
    ] = "1Gbit",
    link_up: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Link of each worker for sending, where that is slower, as at home.",
        ),
    ] = None,
    master_link: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Link of the master; by default that of a worker."),
    ] = None,
    rtt: Annotated[
        str, typer.Option(metavar="TIME", help="Round trip from a worker to the master.")
    ] = "1ms",
    step_seconds: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="A training step of one worker without gradwire: 0.1 or 100ms."
        ),
    ] = None,
    parameters: Annotated[
        str | None, typer.Option(metavar="COUNT", help="Parameters of the model, such as 14.6M.")
    ] = None,
    density: Annotated[
        str | None,
        typer.Option(
            metavar="PART",
            help="Fraction of the parameters that an update changes; unless given or measured, "
            "what gradwire.join aims at with so many workers: 0.0075 with 4.",
        ),
    ] = None,
    measure_script: Annotated[
        Path | None,
        typer.Option(
            "--measure",
            metavar="SCRIPT",
            help="Take step time, parameters, density and sizes from a short run of this script, "
            "with a master and two workers on this machine. Options that are given override it.",
        ),
    ] = None,
    measure_seconds: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long the script trains, from its first step on."),
    ] = 20.0,
    masters: Annotated[
        int,
        typer.Option(
            help="Masters that share the parameters, each with a core and a link of its own."
        ),
    ] = 1,
    relays: Annotated[
        int,
        typer.Option(
            help="Relays of each master, each with a link as the master's. In modes with rounds "
            "they carry and add nothing up, so this is for gradient sharing."
        ),
    ] = 0,
    codec_threads: Annotated[
        int, typer.Option(help="Threads of each worker's codec, as gradwire.join(codec_threads=).")
    ] = 1,
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Costs of codec and master, from the JSON of an estimate made on another machine; "
            "by default they are measured on this one.",
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Only what this run mode would cost, such as 'averaging(every=5, bits=4)'; by "
            "default gradient sharing, and a table of all modes.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say whether a training will scale: how well, what limits it, and what to change.

    That is about gradient sharing; a table says what other run modes would cost, and --mode what
    one of them would. Measures for some seconds what the codec and a master take on this machine,
    and combines that with the given step, model and network. With --measure, step and model come
    from a real run. Exit status: 0 done, 1 the measured script failed, 2 wrong usage.
    """
    check_between(codec_threads, 1, CODEC_THREADS_MAX, "--codec-threads")
    check_between(
        measure_seconds, 0, MEASURE_SECONDS_MAX, "--measure-seconds", unit=" s", low_is_in=False
    )
    if script_arguments and measure_script is None:
        raise UsageError(
            f"{script_arguments[0]!r} is an argument for no script: name one by --measure SCRIPT"
        )
    run_mode = None if mode is None else parse_mode(mode)
    if relays and run_mode is not None and run_mode.has_rounds:
        raise UsageError(
            f"--relays={relays} --mode={mode!r}: relays add updates up in gradient sharing, and "
            "only carry what a mode with rounds sends; leave out --relays"
        )
    link_rate = parse_rate(link, "--link")
    options = _Options(
        step_seconds=None
        if step_seconds is None
        else parse_seconds(step_seconds, "--step-seconds"),
        parameters=None if parameters is None else round(parse_count(parameters, "--parameters")),
        density=None if density is None else parse_count(density, "--density"),
        others=partial(
            Inputs,
            workers=workers,
            link=link_rate,
            link_up=link_rate if link_up is None else parse_rate(link_up, "--link-up"),
            master_link=link_rate
            if master_link is None
            else parse_rate(master_link, "--master-link"),
            rtt_seconds=parse_seconds(rtt, "--rtt"),
            masters=masters,
            relays=relays,
        ),
    )
    known = None if costs is None else Costs.read(costs)
    options.check(measured=measure_script is not None)
    measured = None
    if measure_script is not None:
        measured = _measured([str(measure_script), *(script_arguments or ())], measure_seconds)
    inputs = options.inputs(measured, known, codec_threads)
    crowds = [replace(inputs, workers=n) for n in _worker_counts(inputs.workers)]
    if run_mode is not None and run_mode.has_rounds:
        _say_of_mode(inputs, crowds, run_mode, json=json)
    else:
        modes = USUAL_MODES if run_mode is None and not relays else ()
        _say_of_sharing(inputs, crowds, modes, codec_threads, json=json)


def _say_of_mode(inputs: Inputs, crowds: Sequence[Inputs], mode: Mode, *, json: bool) -> None:
    """Print what one mode with rounds costs."""
    result, *sweep = (estimate_mode(each, mode) for each in (inputs, *crowds))
    if json:
        found = mode_as_json(result) | {"sweep": [mode_as_json(each) for each in sweep]}
        typer.echo(json_text.dumps(found | inputs_as_json(inputs), indent=2))
    else:
        show_mode(result, sweep)


def _say_of_sharing(
    inputs: Inputs,
    crowds: Sequence[Inputs],
    modes: Sequence[Mode],
    codec_threads: int,
    *,
    json: bool,
) -> None:
    """Print how well gradient sharing scales, and what each of several modes costs."""
    result, *sweep = (estimate(each) for each in (inputs, *crowds))
    sentences = advice(result, codec_threads)
    beside = [estimate_mode(inputs, each) for each in modes]
    if json:
        found = as_json(result, sweep, sentences) | {"modes": [*map(mode_as_json, beside)]}
        typer.echo(json_text.dumps(found, indent=2))
        return
    show(result, sweep, sentences)
    if beside:
        show_modes(beside)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """Values of the command line; None where a measured run has to give them."""

    step_seconds: float | None
    parameters: int | None
    density: float | None
    others: Callable[..., Inputs]
    """Makes inputs of these values and the remaining options."""

    def check(self, *, measured: bool) -> None:
        """Refuse values that are missing or not valid, before anything takes time."""
        if not measured:
            given = {"--step-seconds": self.step_seconds, "--parameters": self.parameters}
            missing = [name for name, value in given.items() if value is None]
            if missing:
                raise UsageError(
                    f"no {' and no '.join(missing)}: give what a step takes and how many "
                    "parameters there are, or --measure train.py to have both measured"
                )
        self._inputs(self.step_seconds or 1.0, self.parameters or 10**6, self.density)

    def inputs(self, measured: Measured | None, known: Costs | None, codec_threads: int) -> Inputs:
        """Return the inputs of the estimate, costs included."""
        inputs = self._inputs(
            self.step_seconds or (measured.step_seconds if measured else 0.0),
            self.parameters or (measured.parameters if measured else 0),
            measured.density if measured and self.density is None else self.density,
        )
        if known is None:
            known = calibrate(
                inputs.parameters, inputs.density, codec_threads=codec_threads, say=_say
            )
        inputs = replace(inputs, costs=known)
        return inputs if measured is None else as_measured(inputs, measured)

    def _inputs(self, step_seconds: float, parameters: int, density: float | None) -> Inputs:
        inputs = self.others(
            step_seconds=step_seconds,
            parameters=parameters,
            density=TARGET_DENSITY if density is None else density,
            costs=NO_COSTS,
        )
        if density is not None:
            return inputs
        return replace(inputs, density=density_for(inputs.workers))


NO_COSTS: Final = Costs(**dict.fromkeys(Costs.__dataclass_fields__, 0.0))
"""Costs until they are measured."""


def as_measured(inputs: Inputs, measured: Measured) -> Inputs:
    """Return inputs with the sizes and costs of a real run."""
    as_run = replace(inputs, parameters=measured.parameters, density=measured.density, workers=2)
    encode, apply = (resource.seconds for resource in demands(as_run)[:2])
    encode -= inputs.costs.step_seconds
    other = measured.session_seconds - measured.encode_seconds - (measured.apply_seconds or 0.0)
    costs = inputs.costs.scaled_to(
        encode=measured.encode_seconds / encode if encode > 0 else None,
        apply=measured.apply_seconds / apply if measured.apply_seconds and apply > 0 else None,
    )
    return replace(
        inputs,
        size_ratio=measured.update_bytes / update_bytes(measured.parameters, measured.density),
        costs=replace(costs, step_seconds=max(other, 0.0)),
    )


def _measured(script: Sequence[str], seconds: float) -> Measured:
    try:
        measured = measure(script, seconds, _say)
    except ScriptFailedError as error:
        _say(str(error))
        raise typer.Exit(EXIT_FAILED) from None
    _say(
        f"{measured.steps} steps of {show_seconds(measured.step_seconds)}, and "
        f"{show_seconds(measured.session_seconds)} of session.step() in each; "
        f"{show_bytes(measured.update_bytes)} an update. Two workers and a master shared this "
        "machine: where each has a machine of its own, give --step-seconds"
    )
    return measured


def _worker_counts(workers: int) -> list[int]:
    """Return the numbers of workers in the table: powers of two, and the given number."""
    most = max(SWEEP_MIN, 2 * workers)
    powers = {2**i for i in range(most.bit_length()) if 2**i <= most}
    return sorted(powers | {workers})


def _say(line: str) -> None:
    typer.echo(f"gradwire estimate: {line}", err=True)
