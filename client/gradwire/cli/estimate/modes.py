"""Estimate of the run modes: what a step of each sends, and how long a step takes with it.

In a mode with rounds every worker makes `Mode.steps_between` steps, and then takes part in a round
of these phases, in which it does not train:

==========  ===================================  ==================================================
phase       what is done                         seconds: of the slowest of
==========  ===================================  ==================================================
encode      a contribution, which is then taken  worker's processor
            out of the parameters again
upload      contributions                        worker's link and network thread, master's link
                                                 and processor with those of all workers
mean        rounded, encoded, added at the       master's processor
            master
download    results                              as upload
apply       results                              worker's processor
round trip                                       the distance to the master
==========  ===================================  ==================================================

A dense contribution has `Mode.bits` for each parameter. That is the most: the codec writes it in
the sparse format where that takes fewer bytes. With the state of optimizers, each value that they
keep of a parameter has 8 bits more. A sparse contribution is as large as an update in
the mode ``sharing``. Steps of all workers are taken to be equally long.

In streams, a contribution has a part of the parameters, and a worker trains on until the next one.
It then waits if the round is not over; only its own processor's time is always lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from gradwire.cli.estimate.demands import (
    DOWN,
    INTO,
    MASTER,
    MEAN_HITS,
    NETWORK,
    OUT,
    UP,
    Lines,
    lines_of,
)
from gradwire.cli.estimate.inputs import Inputs
from gradwire.cli.estimate.model import estimate
from gradwire.cli.estimate.sizes import (
    UPDATE_HEADER_BYTES,
    Traffic,
    ring_bytes,
    traffic_of,
    union_density,
)
from gradwire_protocol.messages.modes.kept_state import ANY
from gradwire_protocol.messages.modes.mode import AVERAGING, CENTRAL, USUAL, Mode

USUAL_MODES: Final = tuple(
    mode
    for usual in USUAL.values()
    for mode in ((usual, replace(usual, bits=4)) if usual.name == AVERAGING else (usual,))
)
"""Each mode with its defaults, and averaging with 4 bits, which sends half as much."""

SLOTS: Final = 2
"""What an optimizer keeps of each parameter where the mode does not say: as much as Adam."""

PROCESSOR: Final = "worker's processor"

ENCODE: Final = "encode"
APPLY: Final = "apply"

DENSE_HITS: Final = {8: 1 / 16, 4: 1 / 2}
"""By bits: what an element of a dense contribution takes, over one of a sparse update. Benchmark
`codec` has 0.05 and 0.4 to encode, 0.06 and 0.5 to decode and add, over the format of hits."""

SCAN_HITS: Final = 1 / 8
"""Looking at an element of the sum, over the same: about 2.4 ns of 17 there."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a round."""

    name: str
    seconds: float
    limit: str
    """The resource that takes the longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeEstimate:
    """What a run mode costs. Bytes and seconds are means of a step."""

    inputs: Inputs
    mode: Mode
    sent_bytes: float
    """Of a contribution or an update."""
    traffic: Traffic
    """On the link of a worker."""
    link_seconds: float
    """In which the link of a worker carries that. In a round a worker waits for both directions,
    one after the other; without rounds, for the slower one."""
    master_link_seconds: float
    """In which the master's link carries the traffic of all workers."""
    phases: tuple[Phase, ...]
    """Of a round; none without rounds."""
    step_seconds: float
    """A step, waiting included. Without rounds, that is where all wait for the shortest resource,
    as with a bound on staleness."""

    @property
    def samples(self) -> float:
        """Fraction of linear scaling."""
        return self.inputs.step_seconds / self.step_seconds

    @property
    def round_seconds(self) -> float:
        """How long a worker does not train in a round."""
        return _total(self.phases)

    def every_at(self, samples: float) -> int:
        """Return after how many steps such a round leaves this fraction of linear scaling."""
        between = self.busy_seconds * samples / (1 - samples)
        if between < self.overlapped_seconds:
            between = self.round_seconds * samples
        return ceil(between / self.inputs.step_seconds)

    @property
    def busy_seconds(self) -> float:
        """How long a round keeps a worker from training, however seldom it is."""
        return self.round_seconds - self.overlapped_seconds

    @property
    def overlapped_seconds(self) -> float:
        """How much of a round training may go on in."""
        if self.mode.streams == 1:
            return 0.0
        return _total([each for each in self.phases if each.name not in (ENCODE, APPLY)])

    @property
    def times_fewer(self) -> float:
        """Bytes that all send with DDP, over those that all and the master send in this mode."""
        ring = ring_bytes(self.inputs.parameters, self.inputs.workers)
        return ring / (self.traffic.up + self.traffic.down)


def estimate_mode(inputs: Inputs, mode: Mode) -> ModeEstimate:
    """Estimate what a run mode costs."""
    return _with_rounds(inputs, mode) if mode.has_rounds else _without_rounds(inputs, mode)


def _without_rounds(inputs: Inputs, mode: Mode) -> ModeEstimate:
    lines = lines_of(inputs, inputs.traffic)
    return ModeEstimate(
        inputs=inputs,
        mode=mode,
        sent_bytes=inputs.update_bytes,
        traffic=inputs.traffic,
        link_seconds=max(lines.up, lines.down),
        master_link_seconds=max(lines.into, lines.out),
        phases=(),
        step_seconds=inputs.step_seconds / estimate(inputs).in_step,
    )


def _with_rounds(inputs: Inputs, mode: Mode) -> ModeEstimate:
    contributors = _contributors(inputs, mode)
    sent, received = _message(inputs, mode, 1), _message(inputs, mode, contributors)
    results = inputs.workers / contributors
    traffic = traffic_of(sent.size, received.size, results)
    lines = lines_of(inputs, traffic)
    elements = inputs.parameters * (1 + _slots(mode))
    phases = _phases(inputs, elements / mode.streams, lines, sent, received, results)
    every = mode.steps_between
    found = ModeEstimate(
        inputs=inputs,
        mode=mode,
        sent_bytes=sent.size,
        traffic=Traffic(traffic.up / every, traffic.down / every),
        link_seconds=(lines.up + lines.down) / every,
        master_link_seconds=(lines.into + lines.out) / every,
        phases=phases,
        step_seconds=inputs.step_seconds,
    )
    trained = every * inputs.step_seconds
    lost = found.busy_seconds + max(found.overlapped_seconds - trained, 0.0)
    return replace(found, step_seconds=inputs.step_seconds + lost / every)


@dataclass(frozen=True, slots=True)
class _Message:
    """A contribution, or a result."""

    hits: float
    """Of a sparse update that takes as long."""
    size: float


def _contributors(inputs: Inputs, mode: Mode) -> int:
    """Return how many contributions are in a result, of which each worker receives every one."""
    if mode.name == CENTRAL:
        return min(mode.gradients_per_update, inputs.workers)
    return inputs.workers


def _message(inputs: Inputs, mode: Mode, contributors: int) -> _Message:
    """Return what a contribution takes, or the mean of several."""
    if mode.bits:
        parameters = inputs.parameters / mode.streams
        values = inputs.parameters * _slots(mode)
        size = UPDATE_HEADER_BYTES + parameters * mode.bits / 8 + values
        return _Message(parameters * DENSE_HITS[mode.bits] + values * DENSE_HITS[8], size)
    density = max(inputs.density, union_density(inputs.density, contributors))
    mean = replace(inputs, density=density)
    return _Message(mean.hits, mean.update_bytes)


def _slots(mode: Mode) -> int:
    """Return how many values of an optimizer go with each parameter, a byte each."""
    kept = mode.optimizer_state
    return SLOTS if kept == ANY else 0 if kept is None else len(kept.slots)


def _phases(
    inputs: Inputs,
    elements: float,
    lines: Lines,
    sent: _Message,
    received: _Message,
    results: float,
) -> tuple[Phase, ...]:
    costs, workers, masters = inputs.costs, inputs.workers, inputs.masters
    mean = (elements * SCAN_HITS + received.hits * MEAN_HITS) / masters
    up, down = sent.size / masters, received.size / masters
    return (
        _phase(
            ENCODE,
            {PROCESSOR: costs.to_encode(elements, sent.hits) + costs.to_apply(sent.hits)},
        ),
        _phase(
            "upload",
            {
                UP: lines.up,
                INTO: lines.into,
                NETWORK: masters * costs.to_handle(up),
                MASTER: workers * costs.to_take_in(sent.hits / masters, up),
            },
        ),
        _phase("mean", {MASTER: results * mean * costs.master_seconds_per_hit}),
        _phase(
            "download",
            {
                DOWN: lines.down,
                OUT: lines.out,
                NETWORK: results * masters * costs.to_handle(down),
                MASTER: results * workers * costs.to_pass_on(down),
            },
        ),
        _phase(APPLY, {PROCESSOR: results * costs.to_apply(received.hits)}),
        _phase("round trip", {"distance": inputs.rtt_seconds}),
    )


def _phase(name: str, takes: dict[str, float]) -> Phase:
    """Return a phase that is over when the last of several resources is done with it."""
    limit = max(takes, key=lambda resource: takes[resource])
    return Phase(name, takes[limit], limit)


def _total(phases: Sequence[Phase]) -> float:
    return sum(phase.seconds for phase in phases)
