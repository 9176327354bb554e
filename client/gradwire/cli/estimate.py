"""``gradwire estimate``: formulas for a training; docs/estimate.md says what they leave out."""

import json as json_text
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log2
from typing import Annotated, Final

import typer

from gradwire.cli.quantities import (
    check_between,
    parse_count,
    parse_rate,
    parse_seconds,
    show_bytes,
    show_count,
    show_rate,
    show_seconds,
)
from gradwire_codecs.format.update import ELEMENTS_MAX
from gradwire_codecs.policies.density import density_for
from gradwire_codecs.replica.sparse_sum import RESULT_FACTOR
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.modes.kept_state import ANY
from gradwire_protocol.messages.modes.mode import CENTRAL, Mode, parse_mode

HEADERS: Final = 1.07
"""Bytes on a line over those of messages: a datagram of 1,400 bytes has 1,348 of a message, and 42
more for IPv4, UDP and Ethernet."""

SCAN_NS: Final = 0.5
"""Search for what to send, per parameter, on one core of an AMD EPYC (benchmark `codec`)."""

SPARSE_NS: Final = 15
"""Encoding or applying an element of a sparse update there."""

DENSE_NS: Final = {8: 1, 4: 8}
"""Encoding or applying an element of a dense contribution there, by its bits."""

LATE_STEPS: Final = 0.75
"""Where updates come later than so many steps, `staleness_bound="auto"` has workers in lockstep."""

ADAM_STATE: Final = 2
"""Values that an optimizer keeps of each parameter."""

BRACES: Final = str.maketrans("", "", "{}")

WAITING_MAX: Final = 0.5
"""Workers that wait for a larger part of their time get a hint."""


def estimate_command(
    *,
    parameters: Annotated[
        str, typer.Option(metavar="COUNT", help="Parameters of the model, such as 14.6M.")
    ],
    step_seconds: Annotated[
        str, typer.Option(metavar="TIME", help="A worker's step without gradwire: 0.1 or 100ms.")
    ],
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
    """Compute whether a training will scale: seconds of a step, waiting, bytes.

    Each line has its formula, and the formula with your numbers.
    """
    found = estimate(
        Inputs(
            parameters=round(parse_count(parameters, "--parameters")),
            training=parse_seconds(step_seconds, "--step-seconds"),
            workers=workers,
            link=parse_rate(link, "--link"),
            rtt=parse_seconds(rtt, "--rtt"),
            mode=parse_mode(mode),
            density=density_for(workers) if density is None else density,
        )
    )
    if json:
        typer.echo(json_text.dumps({"verdict": found.verdict, **found.values}, indent=2))
    else:
        typer.echo("\n".join([found.verdict, *found.lines]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A training, its workers, and the master's line: as the options of the command."""

    parameters: int
    training: float
    """Seconds of a step without gradwire: forward, backward, optimizer."""
    workers: int
    link: float
    """Bits per second in each direction."""
    rtt: float
    mode: Mode
    density: float

    def __post_init__(self) -> None:
        """Refuse values beyond their limits, naming both."""
        check_between(self.parameters, 1, ELEMENTS_MAX, "--parameters")
        check_between(self.training, 1e-6, 3600, "--step-seconds", unit=" s")
        check_between(self.workers, 2, WORKERS_MAX, "--workers")
        check_between(self.link, 1e3, 1e13, "--link", unit=" bit/s")
        check_between(self.rtt, 0, 60, "--rtt", unit=" s")
        check_between(self.density, 1e-7, 1, "--density")


class Estimate:
    """Quantities by name, and a line of text for each that follows from others."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.lines: list[str] = []
        self.verdict = ""
        self._shown: dict[str, str] = {}

    def give(self, name: str, value: float, show: Callable[[float], str] = show_count) -> float:
        """Note a quantity that is known."""
        self.values[name] = value
        self._shown[name] = show(value)
        return value

    def add(
        self, name: str, formula: str, value: float, show: Callable[[float], str] = show_count
    ) -> float:
        """Note a quantity; its formula has the names of others in braces."""
        names, numbers = formula.translate(BRACES), formula.format_map(self._shown)
        self.lines.append(f"{name} = {names} = {numbers} = {show(value)}")
        return self.give(name, value, show)


def estimate(inputs: Inputs) -> Estimate:
    """Estimate a training."""
    found, mode = Estimate(), inputs.mode
    workers = found.give("workers", inputs.workers)
    parameters = found.give("parameters", inputs.parameters)
    training = found.give("training", inputs.training, show_seconds)
    found.give("density", mode.sparse or inputs.density)
    link = found.give("link", inputs.link, show_rate)
    rtt = found.give("rtt", inputs.rtt, show_seconds)
    every = found.give("every", mode.steps_between)
    received = _received(inputs, found)
    message, codec = (_dense if mode.bits else _sparse)(inputs, found, received)
    computing = training + codec / every
    found.add("computing", "{training} + {codec} / {every}", computing, show_seconds)
    carried = f"{{workers}} x (1 + {{received}}) x {{message}} x {HEADERS}"
    size = workers * (1 + received) * message * HEADERS
    line = size * 8 / link + rtt
    found.add("line", f"{carried} x 8 / {{link}} + {{rtt}}", line, show_seconds)
    if not mode.has_rounds and line <= LATE_STEPS * computing:
        formula, step = "{computing}", computing
    elif mode.streams > 1:
        formula, step = "max({computing}, {line} / {every})", max(computing, line / every)
    else:
        formula, step = "{computing} + {line} / {every}", computing + line / every
    found.add("step", formula, step, show_seconds)
    waiting = found.add("waiting", "1 - {computing} / {step}", 1 - computing / step, _show_percent)
    found.add("bytes", f"{carried} / {{every}}", size / every, show_bytes)
    efficiency = found.add("efficiency", "{training} / {step}", training / step, _show_percent)
    speed_up = found.add("speed_up", "{workers} x {efficiency}", workers * efficiency)
    ring = 2 * (workers - 1) * 4 * parameters
    found.add("ddp_bytes", "2 x ({workers} - 1) x 4 x {parameters}", ring, show_bytes)
    ddp_step = max(training, ring / workers * 8 / link)
    formula = "max({training}, {ddp_bytes} / {workers} x 8 / {link})"
    found.add("ddp_step", formula, ddp_step, show_seconds)
    is_worth_it = found.give("is_worth_it", speed_up > 1 and step < ddp_step)
    found.verdict = (
        f"{'Worth it' if is_worth_it else 'Not worth it'}: {inputs.workers} workers do "
        f"{speed_up:.3g} times as much as one alone; with DDP on such lines, "
        f"{workers * training / ddp_step:.3g} times at most."
    )
    if waiting > WAITING_MAX:
        found.verdict += " They mostly wait: try fewer workers, a smaller density, rarer rounds."
    return found


def _received(inputs: Inputs, found: Estimate) -> float:
    """Add how many messages a worker receives for one that it sends."""
    mode, workers = inputs.mode, inputs.workers
    if not mode.has_rounds:
        return found.add("received", "{workers} - 1", workers - 1)
    if not mode.bits:  # a result has all that any worker has changed
        most = found.give("received_max", RESULT_FACTOR) if mode.sparse else inf
        formula = "min({workers}, {received_max})" if mode.sparse else "{workers}"
        return found.add("received", formula, min(workers, most))
    closing = min(mode.gradients_per_update, workers) if mode.name == CENTRAL else workers
    found.give("contributions", closing)
    return found.add("received", "{workers} / {contributions}", workers / closing)


def _sparse(inputs: Inputs, found: Estimate, received: float) -> tuple[float, float]:
    """Add the bytes of a sparse update, and the seconds to encode one and to apply others.

    One bit of a changed element is its sign. The codec writes where they are in little more than
    the entropy H.
    """
    parameters, density = inputs.parameters, found.values["density"]
    entropy = -sum(part * log2(part) for part in (density, 1 - density) if part)
    size = parameters * (density + entropy) / 8
    seconds = parameters * (SCAN_NS + (1 + received) * density * SPARSE_NS) * 1e-9
    formula = f"{{parameters}} x ({SCAN_NS} + (1 + {{received}}) x {{density}} x {SPARSE_NS}) ns"
    found.add("message", "{parameters} x ({density} + H({density})) / 8", size, show_bytes)
    return size, found.add("codec", formula, seconds, show_seconds)


def _dense(inputs: Inputs, found: Estimate, received: float) -> tuple[float, float]:
    """Add the bytes of a dense contribution, and the seconds to encode it and to apply results."""
    mode, parameters, kept = inputs.mode, inputs.parameters, inputs.mode.optimizer_state
    slots = ADAM_STATE if kept == ANY else 0 if kept is None else len(kept.slots)
    bits, state = found.give("bits", mode.bits), found.give("state", slots)
    streams = found.give("streams", mode.streams)
    size = parameters * (bits + 8 * state) / 8 / streams
    seconds = parameters * (1 + received) * DENSE_NS[mode.bits] * 1e-9 / streams
    formula = f"{{parameters}} x (1 + {{received}}) x {DENSE_NS[mode.bits]} ns / {{streams}}"
    found.add("message", "{parameters} x ({bits} + 8 x {state}) / 8 / {streams}", size, show_bytes)
    return size, found.add("codec", formula, seconds, show_seconds)


def _show_percent(part: float) -> str:
    return f"{part:.1%}"
