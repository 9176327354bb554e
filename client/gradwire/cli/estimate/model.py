"""Estimate of a training with W workers, by arithmetic.

Deeplearning4j's formula adds all that a round takes (`demands`) to the step. Here the training
thread only encodes and applies, and *no worker waits* for the rest. A resource whose round takes
longer than a step is short, and then

- updates are *put off*: a worker with `OUTBOX_UPDATES_MAX` updates or `OUTBOX_BYTES_MAX` bytes in
  flight to the master sends nothing in a step, and its change goes out with a later update;
- or *added up*: updates that a worker does not receive in time gather at the master, which sends it
  their sum.

So workers train at the full rate and no change is lost, but changes arrive later, and a sum arrives
as one large change instead of many small ones. The effect on the loss depends on the training, so
there is no factor for it here. `Estimate` has the rate of samples, the part of the updates that
arrive one by one, and their age.
"""

from dataclasses import dataclass, replace
from typing import Final

from gradwire.cli.estimate.demands import MASTER, NETWORK, RELAY, Kind, Resource, demands
from gradwire.cli.estimate.inputs import Inputs
from gradwire.cli.estimate.sizes import link_bytes, sum_bytes, union_density
from gradwire.replica.outbox import OUTBOX_BYTES_MAX, OUTBOX_UPDATES_MAX
from gradwire_protocol.limits import WINDOW_BYTES_MIN, charge_of

BEHIND_BYTES_MAX: Final = WINDOW_BYTES_MIN // 2
"""Of updates that a master lets follow a sum in flight (`gradwire_server.state.conflation`)."""

DELAY_STEPS_MIN: Final = 1.5
"""The step that computes a change, and half a step that the change waits at its receiver."""

ROUNDS: Final = 40
"""Iterations that find the step time; each gets nearer by the part of a step that applying
takes."""
TOLERANCE: Final = 1e-7
"""Relative change of the step time at which the iteration ends."""
HALVINGS: Final = 24


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
    """Part of the updates that arrive by themselves, and not in a sum; with relays, in a sum of
    their own step, and not in one of several."""
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
    if inputs.relays:
        return (
            inputs.rtt_seconds
            + bits / inputs.link_up
            + 8 * link_bytes(inputs.sum_bytes(inputs.workers)) / inputs.link
            + by_kind[RELAY]
            + by_kind[MASTER]
        )
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
    if inputs.relays:
        return _sums_of_relays(inputs, seconds, step_seconds)
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


def _sums_of_relays(inputs: Inputs, seconds: float, step_seconds: float) -> _Sums:
    """Return how updates arrive where each sum has those of several steps."""
    workers = inputs.workers
    of_a_step = inputs.sum_bytes(workers)

    def busy(steps: float) -> float:
        return seconds * inputs.sum_bytes(steps * workers) / of_a_step

    low = high = 1.0
    while busy(high) > high * step_seconds:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if busy(middle) > middle * step_seconds else (low, middle)
    changed = inputs.sum_hits(high * workers) / inputs.sum_hits(workers)
    return _Sums(1 / high, changed / high, 1.5 * high * step_seconds)
