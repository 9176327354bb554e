"""`WarmUp`: a policy whose first updates are denser, and become as it has them step by step."""

import math
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from gradwire_codecs.errors import CodecError
from gradwire_codecs.policies.band import DensityBand
from gradwire_codecs.policies.density import TargetDensity
from gradwire_codecs.policies.policy import Observation, PolicyState, check_density, saved_count

Steered: TypeAlias = TargetDensity | DensityBand
"""Policies that steer a density, and so can steer another one for a while."""


@dataclass(slots=True)
class WarmUp:
    """Let a policy see its updates as sparser than they are, by a factor that goes to one.

    In the first steps of a run all workers change everything by much, and what waits in residuals
    then is large and soon out of date; so these steps send more (Strom 2015 starts with a single
    worker, which does the same). The density that the policy steers to begins with `density` and
    goes over to the policy's own geometrically, so that no step sends much less than the one
    before, and policies need not know of it.
    """

    policy: Steered
    density: float
    """Of the first update; above the one that the policy has, for a band its middle by ratio."""
    steps: int
    """Updates until it is the policy's own; 1 or more."""
    done: int = field(init=False, default=0)
    """How many of these there were."""

    def __post_init__(self) -> None:
        """Refuse a schedule that cannot work."""
        if not isinstance(self.policy, TargetDensity | DensityBand):
            raise CodecError(
                f"{type(self.policy).__name__} steers no density that a warm-up could begin above: "
                "TargetDensity and DensityBand do"
            )
        check_density("warm_up_density", self.density)
        usual = self.policy.first_density(1)
        if self.density <= usual:
            raise CodecError(f"warm_up_density={self.density}; it is above the usual one, {usual}")
        if self.steps < 1:
            raise CodecError(f"warm_up_steps={self.steps}; it is 1 or more")

    @property
    def threshold(self) -> float | None:
        """The policy's."""
        return self.policy.threshold

    @property
    def factor(self) -> float:
        """How many times as dense as usual the next update should be."""
        left = 1 - self.done / self.steps
        return math.pow(self.density / self.policy.first_density(1), left)

    def skip_to(self, steps: int) -> None:
        """Note that there were so many steps, if these are more than is known of."""
        self.done = min(max(self.done, steps), self.steps)

    def first_density(self, elements: int) -> float:
        """Return the density to begin with."""
        return self.policy.first_density(elements) * self.factor

    def start(self, threshold: float) -> None:
        """Hand it on."""
        self.policy.start(threshold)

    def observe(self, observation: Observation) -> None:
        """Let the policy learn as much too little or too much as there was for the warm-up."""
        self.policy.observe(replace(observation, density=observation.density / self.factor))
        self.done = min(self.done + 1, self.steps)

    def state(self) -> PolicyState:
        """Return the policy's state, and how many steps there were."""
        return {**self.policy.state(), "warm_up_done": float(self.done)}

    def restore(self, state: PolicyState) -> None:
        """Take over both; who was saved without a warm-up is past it."""
        done = saved_count(state, "warm_up_done", self.steps)
        self.policy.restore(state)
        self.done = min(done, self.steps)
