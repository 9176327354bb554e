"""Advice on a training that does not scale, each line with its figure."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import log10
from typing import Final

from gradwire.cli.estimate.model import (
    DENSITY_MIN,
    INTO,
    OUT,
    Estimate,
    Inputs,
    Kind,
    keeps_up,
)
from gradwire.cli.estimate.quantities import show_bytes, show_seconds
from gradwire.worker.inbox import INBOX_BYTES_MAX
from gradwire_protocol.limits import STREAMS_MAX

OVERHEAD_MIN: Final = 0.05
"""Smaller fractions of a step are not worth a change."""

SEARCH_STEPS: Final = 30
STEPS_MAX: Final = 64
"""With more steps in one update, updates are not small any more."""


def workers_max(inputs: Inputs) -> int:
    """Return up to how many workers every update arrives as it was sent; 0 if not even for one.

    With more workers a round takes more of every resource, and a step grows by less. So the search
    takes it that where a number of workers is too large, all larger ones are.
    """
    low, high = 0, 1
    while high <= STREAMS_MAX and keeps_up(replace(inputs, workers=high)):
        low, high = high, 2 * high
    high = min(high, STREAMS_MAX + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if keeps_up(replace(inputs, workers=middle)):
            low = middle
        else:
            high = middle
    return low


def density_max(inputs: Inputs) -> float | None:
    """Return the largest density, below the given one, at which every update arrives as sent.

    None if the given density fits, or no smaller one does.
    """
    lowest = max(DENSITY_MIN, 1 / inputs.parameters)
    fitting, given = log10(lowest), log10(inputs.density)
    if keeps_up(inputs) or not keeps_up(replace(inputs, density=lowest * (1 + 1e-9))):
        return None
    for _ in range(SEARCH_STEPS):
        middle = (fitting + given) / 2
        if keeps_up(replace(inputs, density=max(10**middle, lowest * (1 + 1e-9)))):
            fitting = middle
        else:
            given = middle
    return max(float(10**fitting), lowest)


def advice(estimate: Estimate, codec_threads: int) -> list[str]:
    """Return sentences on what to change, the most useful ones first."""
    return [*_if_short(estimate), *_if_slow(estimate, codec_threads), *_of_memory(estimate)]


def headline(estimate: Estimate) -> str:
    """Return in one line whether the workers keep up, and otherwise what would make them."""
    inputs = estimate.inputs
    who = "1 worker" if inputs.workers == 1 else f"{inputs.workers} workers"
    if not estimate.limit.is_short:
        return (
            f"Fast enough for {who} at this density: {estimate.speed_up:.3g} times the samples of "
            f"one alone ({estimate.samples:.1%} of linear scaling)."
        )
    most, density, steps = workers_max(inputs), density_max(inputs), steps_min(inputs)
    remedies = [str(most)] if most >= 2 else []
    if density is not None:
        remedies.append(f"density {_shown(density)}")
    if not remedies and steps is not None:
        remedies.append(f"session.step() after every {steps} steps")
    use = f"use {', or '.join(remedies)}" if remedies else f"it takes more of {estimate.limit.name}"
    return f"Too slow for {who} at this density: {use}."


def steps_min(inputs: Inputs) -> int | None:
    """Return the least number of steps in one update with which all keep up; None if none does."""
    return _smallest(lambda n: replace(inputs, step_seconds=n * inputs.step_seconds), STEPS_MAX)


def _if_short(estimate: Estimate) -> Iterator[str]:
    inputs = estimate.inputs
    if not estimate.limit.is_short:
        most = workers_max(inputs)
        if most < STREAMS_MAX:
            yield f"up to {most} workers, every update arrives as it was sent"
        return
    density = density_max(inputs)
    if density is not None:
        yield (
            f"target_density={_shown(density)} would fit: {_update(inputs, density)} an update "
            f"instead of {show_bytes(inputs.update_bytes)}"
        )
    most = workers_max(inputs)
    if most >= 2:
        yield f"{most} workers would fit, at this density"
    steps = steps_min(inputs)
    if steps is not None:
        yield (
            f"session.step() after every {steps} steps of the optimizer would fit: one update then "
            "carries the changes of all of them, at the same density"
        )
    yield from _if_processor(estimate)


def _if_processor(estimate: Estimate) -> Iterator[str]:
    inputs, name = estimate.inputs, estimate.limit.name
    if name in (INTO, OUT):
        needed = estimate.limit.load * inputs.master_link
        yield f"a master where the link carries {needed / 1e6:.0f} Mbit/s would do"


def _if_slow(estimate: Estimate, codec_threads: int) -> Iterator[str]:
    inputs = estimate.inputs
    encode, apply = (r for r in estimate.resources if r.kind is Kind.TRAINS)
    scanning = inputs.parameters * inputs.costs.pass_seconds_per_parameter
    if scanning > OVERHEAD_MIN * inputs.step_seconds and codec_threads == 1:
        yield (
            f"codec_threads=2 saves up to half of the {show_seconds(scanning)} in which the "
            "training thread searches for what to send, where a core is idle then"
        )
    if apply.load > OVERHEAD_MIN:
        yield (
            f"applying {inputs.workers - 1} updates takes {apply.load:.0%} of a step: half the "
            "density takes half of that, as does session.step() after every second step"
        )
    if encode.load > OVERHEAD_MIN and inputs.step_seconds < 0.05:
        yield (
            f"a step of {show_seconds(inputs.step_seconds)} is short beside "
            f"{show_seconds(encode.seconds)} of encoding: larger batches cost less"
        )


def _of_memory(estimate: Estimate) -> Iterator[str]:
    inputs = estimate.inputs
    waiting = (inputs.workers - 1) * inputs.update_bytes
    if waiting > INBOX_BYTES_MAX:
        yield (
            f"{show_bytes(waiting)} of updates come in a step; beyond "
            f"{show_bytes(INBOX_BYTES_MAX)} a worker adds them up before it applies them"
        )
    if estimate.one_by_one < 1:
        slow = inputs.workers if estimate.limit.name.startswith("master") else 1
        needed = slow * 2 * 4 * inputs.parameters / 2**20
        each = "all" if slow > 1 else "each slow one"
        yield (
            f"the master adds up for {each} of {inputs.workers} workers: --conflation-mib-max has "
            f"to be at least {needed:.0f}, or it drops workers as too slow"
        )


def _smallest(inputs_with: Callable[[int], Inputs], most: int) -> int | None:
    """Return the smallest number, from 2 to `most`, with which all keep up; None if none does."""
    return next((n for n in range(2, most + 1) if keeps_up(inputs_with(n))), None)


def _update(inputs: Inputs, density: float) -> str:
    return show_bytes(replace(inputs, density=density).update_bytes)


def _shown(density: float) -> str:
    """Return a density rounded down, so that it still fits."""
    digits = 1 - int(log10(density)) + 1
    return f"{int(density * 10**digits) / 10**digits:g}"
