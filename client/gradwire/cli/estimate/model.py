"""Estimate of a training with W workers, by arithmetic.

In a round every worker makes one step, sends one update, and receives those of the W - 1 others.
With updates of B bytes and h hits, a round takes

=======================  =======================================================  ==============
resource                 seconds a round                                          when it is short
=======================  =======================================================  ==============
encode                   step + parameters x pass + h x encode                    the step is longer
apply                    (W - 1) x (apply + h x apply per hit)                    the step is longer
network thread           W x (network + B x network per byte)                     added up
worker's link, up        B and the acknowledgements of W - 1 updates              put off
worker's link, down      W - 1 times B and acknowledgements                       added up
master's link, in        W times B and acknowledgements of W (W - 1)              put off
master's link, out       W (W - 1) times B and acknowledgements of W              added up
master's processor       W x (update + h x per hit + B x per byte                 put off
                         + (W - 1) x (delivery + B x per byte))
=======================  =======================================================  ==============

Deeplearning4j's formula adds all of this to the step. Here the training thread only encodes and
applies, and *no worker waits* for the rest. A resource whose round takes longer than a step is
short, and then

- updates are *put off*: a worker with `OUTBOX_UPDATES_MAX` updates or `OUTBOX_BYTES_MAX` bytes in
  flight to the master sends nothing in a step, and its change goes out with a later update;
- or *added up*: updates that a worker does not receive in time gather at the master, which sends it
  their sum.

So workers train at the full rate and no change is lost, but changes arrive later, and a sum arrives
as one large change instead of many small ones. The effect on the loss depends on the training, so
there is no factor for it here. `Estimate` has the rate of samples, the part of the updates that
arrive one by one, and their age.
"""

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Final

from gradwire.cli.estimate.costs import Costs
from gradwire.cli.estimate.quantities import check_between
from gradwire.cli.estimate.sizes import (
    Traffic,
    link_bytes,
    sum_bytes,
    traffic_of,
    union_density,
    update_bytes,
)
from gradwire.errors import UsageError
from gradwire.replica.outbox import OUTBOX_BYTES_MAX, OUTBOX_UPDATES_MAX
from gradwire_codecs.format.update import ELEMENTS_MAX
from gradwire_protocol.limits import STREAMS_MAX, WINDOW_BYTES_MIN, charge_of

BEHIND_BYTES_MAX: Final = WINDOW_BYTES_MIN // 2
"""Of updates that a master lets follow a sum in flight (`gradwire_server.state.conflation`)."""

STEP_SECONDS_MAX: Final = 3600.0
RTT_SECONDS_MAX: Final = 60.0
RATE_MIN, RATE_MAX = 1e3, 1e13
DENSITY_MIN: Final = 1e-7

DELAY_STEPS_MIN: Final = 1.5
"""The step that computes a change, and half a step that the change waits at its receiver."""

NETWORK: Final = "worker's network thread"
UP: Final = "worker's link, up"
DOWN: Final = "worker's link, down"
INTO: Final = "master's link, in"
OUT: Final = "master's link, out"
MASTER: Final = "master's processor"

ROUNDS: Final = 40
"""Iterations that find the step time; each gets nearer by the part of a step that applying
takes."""
TOLERANCE: Final = 1e-7
"""Relative change of the step time at which the iteration ends."""
HALVINGS: Final = 24


class Kind(Enum):
    """The consequence of a short resource."""

    TRAINS = "the step is longer"
    PUTS_OFF = "updates are put off"
    ADDS_UP = "updates are added up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A training, its network, and the number of workers."""

    step_seconds: float
    """A step without gradwire: forward, backward, optimizer."""
    parameters: int
    density: float
    """Fraction of all parameters that an update changes."""
    workers: int
    link: float
    """Rate at which each worker can receive, in bits per second."""
    link_up: float
    """Rate at which each worker can send, in bits per second."""
    master_link: float
    """Rate at which the master can send, and receive, in bits per second."""
    rtt_seconds: float
    """Round trip between a worker and the master."""
    size_ratio: float = 1.0
    """Size of real updates over that of updates with hits at random places."""
    costs: Costs = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse values beyond their limits, naming both."""
        check = partial(check_between, low_is_in=False)
        check(self.step_seconds, 0, STEP_SECONDS_MAX, "--step-seconds", unit=" s")
        check_between(self.parameters, 1, ELEMENTS_MAX, "--parameters")
        check_between(self.density, DENSITY_MIN, 1, "--density")
        check_between(self.workers, 1, STREAMS_MAX, "--workers")
        for name, rate in (
            ("--link", self.link), ("--link-up", self.link_up), ("--master-link", self.master_link)
        ):  # fmt: skip
            check_between(rate, RATE_MIN, RATE_MAX, name, unit=" bit/s")
        check_between(self.rtt_seconds, 0, RTT_SECONDS_MAX, "--rtt", unit=" s")
        if self.hits < 1:
            raise UsageError(
                f"--density={self.density:g} of {self.parameters} parameters is less than one "
                f"parameter; it has to be at least {1 / self.parameters:g}"
            )

    @property
    def hits(self) -> float:
        """Elements that an update changes."""
        return self.parameters * self.density

    @property
    def update_bytes(self) -> float:
        """Bytes of an update."""
        return self.size_ratio * update_bytes(self.parameters, self.density)

    @property
    def traffic(self) -> Traffic:
        """What a round takes of a worker's link."""
        return traffic_of(self.update_bytes, self.update_bytes, self.workers - 1)


@dataclass(frozen=True, slots=True)
class Resource:
    """What a round takes of one resource."""

    name: str
    seconds: float
    """For one step of every worker, if every update is sent by itself."""
    kind: Kind
    load: float = 0.0
    """`seconds` over a step; above 1 the resource is short."""

    @property
    def is_short(self) -> bool:
        """Whether updates are put off, or added up, because of this resource."""
        return self.kind is not Kind.TRAINS and self.load > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The expected speed, limit and delay of a training."""

    inputs: Inputs
    resources: tuple[Resource, ...]
    limit: Resource
    """The shortest resource; if none is short, the largest load of the training thread."""
    step_seconds: float
    """A step with gradwire."""
    samples: float
    """Fraction of linear scaling: samples a second over W times those of a single worker."""
    sent: float
    """Part of the steps that send an update of their own."""
    one_by_one: float
    """Part of the updates that arrive by themselves, and not in a sum."""
    in_step: float
    """Fraction of linear scaling if all workers wait for the shortest resource, as with a bound on
    staleness, and in Deeplearning4j's formula."""
    delay_steps: float
    """Steps from reading the parameters for a change until the other workers have the change."""

    @property
    def as_sent(self) -> float:
        """Part of all changes that arrive in an update of their own step."""
        return self.sent * self.one_by_one

    @property
    def speed_up(self) -> float:
        """Samples a second, over those of one worker without gradwire."""
        return self.inputs.workers * self.samples

    @property
    def staleness(self) -> float:
        """Updates of others applied during the delay, as `SessionStats.staleness` counts them.

        While a change is on its way, its receiver applies updates of the other workers, and its own
        updates. Of these the sender also lacked those that were on their way to it.
        """
        workers = self.inputs.workers
        if workers == 1:
            return 0.0
        on_the_way = self.delay_steps - DELAY_STEPS_MIN
        return self.sent * ((workers - 1) * DELAY_STEPS_MIN + workers * on_the_way)


def estimate(inputs: Inputs) -> Estimate:
    """Estimate a training."""
    resources = demands(inputs)
    flow = _flow(inputs, resources)
    loaded = tuple(replace(r, load=r.seconds / flow.step_seconds) for r in resources)
    return Estimate(
        inputs=inputs,
        resources=loaded,
        limit=_limit(loaded),
        step_seconds=flow.step_seconds,
        samples=inputs.step_seconds / flow.step_seconds,
        sent=flow.sent,
        one_by_one=flow.one_by_one,
        in_step=inputs.step_seconds / max(_full_step(inputs, resources), _scarcest(resources)),
        delay_steps=DELAY_STEPS_MIN
        + (_flight(inputs, resources) + flow.waiting_seconds) / flow.step_seconds,
    )


def keeps_up(inputs: Inputs) -> bool:
    """Return whether every update arrives as it was sent."""
    resources = demands(inputs)
    return _scarcest(resources) <= _full_step(inputs, resources)


def demands(inputs: Inputs) -> tuple[Resource, ...]:
    """Return what a round takes of each resource, by the table above."""
    costs, workers, hits, size = inputs.costs, inputs.workers, inputs.hits, inputs.update_bytes
    peers = workers - 1
    passed_on = peers * costs.to_pass_on(size)
    master = workers * (costs.to_take_in(hits, size) + passed_on)
    lines = lines_of(inputs, inputs.traffic)
    return (
        Resource("encode", costs.to_encode(inputs.parameters, hits), Kind.TRAINS),
        Resource("decode and apply", peers * costs.to_apply(hits), Kind.TRAINS),
        Resource(NETWORK, workers * costs.to_handle(size), Kind.ADDS_UP),
        Resource(UP, lines.up, Kind.PUTS_OFF),
        Resource(DOWN, lines.down, Kind.ADDS_UP),
        Resource(INTO, lines.into, Kind.PUTS_OFF),
        Resource(OUT, lines.out, Kind.ADDS_UP),
        Resource(MASTER, master, Kind.PUTS_OFF),
    )


@dataclass(frozen=True, slots=True)
class Lines:
    """Seconds in which the links of a worker and of the master carry something."""

    up: float
    down: float
    into: float
    out: float


def lines_of(inputs: Inputs, traffic: Traffic) -> Lines:
    """Return how long links are busy with the traffic of one worker, and the master's with all."""
    up, down = 8 * traffic.up, 8 * traffic.down
    all_up, all_down = inputs.workers * up, inputs.workers * down
    return Lines(
        up=up / inputs.link_up,
        down=down / inputs.link,
        into=all_up / inputs.master_link,
        out=all_down / inputs.master_link,
    )


def _limit(resources: tuple[Resource, ...]) -> Resource:
    candidates = [r for r in resources if r.is_short]
    candidates = candidates or [r for r in resources if r.kind is Kind.TRAINS]
    return max(candidates, key=lambda resource: resource.load)


def _most(resources: tuple[Resource, ...], kind: Kind) -> float:
    return max(r.seconds for r in resources if r.kind is kind)


def _scarcest(resources: tuple[Resource, ...]) -> float:
    return max(r.seconds for r in resources if r.kind is not Kind.TRAINS)


def _full_step(inputs: Inputs, resources: tuple[Resource, ...]) -> float:
    """Return the time of a step that encodes its change and applies an update of every peer."""
    return inputs.step_seconds + sum(r.seconds for r in resources if r.kind is Kind.TRAINS)


def _flight(inputs: Inputs, resources: tuple[Resource, ...]) -> float:
    """Return how long an update takes to another worker where it waits for no other update."""
    bits = 8 * link_bytes(inputs.update_bytes)
    by_kind = {resource.name: resource.seconds for resource in resources}
    # The master sends to one worker after another; this is the time to the middle one.
    copies = inputs.workers / 2
    return (
        inputs.rtt_seconds
        + bits / min(inputs.link_up, inputs.master_link)
        + max(copies * bits / inputs.master_link, bits / inputs.link)
        + by_kind[MASTER] / inputs.workers
        + 2 * by_kind[NETWORK] / inputs.workers
    )


@dataclass(frozen=True, slots=True)
class _Flow:
    """Rate and delay of updates within the limits of all resources."""

    step_seconds: float
    sent: float
    one_by_one: float
    waiting_seconds: float
    """Time that an update waits on its way."""


def _flow(inputs: Inputs, resources: tuple[Resource, ...]) -> _Flow:
    """Find the step time: a step applies only the updates that arrive in it."""
    encode, apply = (r.seconds for r in resources if r.kind is Kind.TRAINS)
    puts_off, adds_up = _most(resources, Kind.PUTS_OFF), _most(resources, Kind.ADDS_UP)
    step, sent = inputs.step_seconds + encode + apply, 1.0
    sums = _Sums(1.0, 1.0, 0.0)
    for _ in range(ROUNDS):
        sent = min(1.0, step / puts_off)
        sums = _sums(inputs, sent * adds_up, step)
        before, step = step, inputs.step_seconds + sent * (encode + sums.applied * apply)
        if abs(step - before) <= TOLERANCE * step:
            break
    waiting = sums.waiting_seconds
    if sent < 1:
        outbox = min(OUTBOX_UPDATES_MAX, max(OUTBOX_BYTES_MAX / inputs.update_bytes, 1))
        waiting += outbox * puts_off
    return _Flow(step, sent, sums.one_by_one, waiting)


@dataclass(frozen=True, slots=True)
class _Sums:
    """How updates arrive where a master adds them up."""

    one_by_one: float
    applied: float
    """Applied elements, over those of the single updates."""
    waiting_seconds: float


def _sums(inputs: Inputs, seconds: float, step_seconds: float) -> _Sums:
    """Return how updates arrive by a resource of which a round takes `seconds`.

    While a sum is sent, the next one gathers, and some updates follow the sum by themselves. So
    there is a period in which a sum and these updates are sent, and in which as many updates come
    as are in both. The more updates change the same elements, the smaller is the sum, which is what
    bounds the period.
    """
    peers = inputs.workers - 1
    if not peers or seconds <= step_seconds:
        return _Sums(1.0, 1.0, 0.0)
    size = inputs.update_bytes
    seconds_of_one = seconds / peers
    following_max = BEHIND_BYTES_MAX // charge_of(round(size))

    def needed(updates: float) -> float:
        following = min(updates, following_max)
        total = sum_bytes(inputs.parameters, inputs.density, updates - following)
        return (following + total / size) * seconds_of_one

    seconds_between = step_seconds / peers
    low = high = following_max + 1.0
    while needed(high) > high * seconds_between:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if needed(middle) > middle * seconds_between else (low, middle)
    following = min(high, following_max)
    gathered, period = high - following, high * seconds_between
    changed = union_density(inputs.density, gathered)
    one_by_one = following / high
    return _Sums(
        one_by_one,
        (following + changed / inputs.density) / high,
        period * (1.5 * (1 - one_by_one) + 0.5 * one_by_one),
    )
