"""`WarmUp`: makes the first updates of a policy denser."""

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from gradwire_codecs.errors import CodecError
from gradwire_codecs.policies.density import DensityBand, TargetDensity
from gradwire_codecs.policies.policy import Observation, PolicyState, check_density, saved_count

Steered: TypeAlias = TargetDensity | DensityBand
"""Policies that steer a density."""


@dataclass(slots=True)
class WarmUp:
    """Make the first updates denser, and let no change wait for long beside the steps made so far.

    In the first steps of a run all workers change every parameter much, and what stays in residuals
    is large and soon out of date. So these steps send more (Strom 2015 starts with a single worker,
    to the same effect). How long a change waits is about in inverse proportion to the density. So
    the density falls as ``1/t`` after t steps, from `density` down to the policy's own, and the
    residual is always about the same part of what was trained. The policy is shown its updates as
    sparser than they are, and its threshold rises by as much as the density is to fall.
    """

    policy: Steered
    density: float
    """Of the first update; above the policy's own, which for a band is its geometric mean."""
    steps: int
    """Updates until the density is the policy's own, unless it is from the first one on; 1 or
    more."""
    done: int = field(init=False, default=0)
    """How many of these updates were made."""

    def __post_init__(self) -> None:
        """Refuse a schedule that cannot work."""
        if not isinstance(self.policy, TargetDensity | DensityBand):
            raise CodecError(
                f"{type(self.policy).__name__} steers no density, so it cannot warm up; "
                "use TargetDensity or DensityBand"
            )
        check_density("density", self.density)
        usual = self.policy.first_density(1)
        if self.density <= usual:
            raise CodecError(f"density={self.density}; it has to be above the usual one, {usual}")
        if self.steps < 1:
            raise CodecError(f"steps={self.steps}; it has to be 1 or more")

    @property
    def threshold(self) -> float | None:
        """The policy's."""
        return self.policy.threshold

    @property
    def factor(self) -> float:
        """Density of the next update as a multiple of the policy's own."""
        first = max(self.density / self.policy.first_density(1), 1.0)
        return min(first, max(self.steps / self.done, 1.0)) if self.done else first

    def skip_to(self, steps: int) -> None:
        """Count `steps` steps as made, unless more were."""
        self.done = min(max(self.done, steps), self.steps)

    def first_density(self, elements: int) -> float:
        """Return the density of the next update."""
        return self.policy.first_density(elements) * self.factor

    def aim_at(self, target: float) -> None:
        """Change the density that the policy steers; only a `TargetDensity` has one."""
        assert isinstance(self.policy, TargetDensity)
        self.policy.aim_at(target)

    def start(self, threshold: float) -> None:
        """Start the policy."""
        self.policy.start(threshold)

    def observe(self, observation: Observation) -> None:
        """Show the policy the update's density divided by `factor`, and raise its threshold."""
        before = self.factor
        self.policy.observe(replace(observation, density=observation.density / before))
        self.done = min(self.done + 1, self.steps)
        if self.policy.threshold is not None:
            self.policy.threshold *= before / self.factor

    def state(self) -> PolicyState:
        """Return the policy's state, and the steps of the warm-up that were made."""
        return {**self.policy.state(), "warm_up_done": float(self.done)}

    def restore(self, state: PolicyState) -> None:
        """Continue with a saved state; a state without a warm-up counts as past it."""
        done = saved_count(state, "warm_up_done", self.steps)
        self.policy.restore(state)
        self.done = min(done, self.steps)
