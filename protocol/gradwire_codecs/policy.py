"""Threshold policies: which threshold the next update uses.

A policy sees the density of each update (the part of all elements that it sends) and answers
with a threshold. Its state is a few plain numbers, saved and restored with the session's.
"""

import sys
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from gradwire_codecs.errors import CodecError

TARGET_DENSITY: Final = 0.01
"""One element in a hundred per update, some 9 bits each: convergence suffers below it, and bytes
grow above it with little gain."""

GAIN: Final = 0.05
"""How strongly an update that misses the target moves the threshold: by this power of the ratio.
In the long run the density is inversely proportional to the threshold, but a threshold that falls
sets free at once what has gathered below it; a stronger gain makes the density swing."""

GAIN_FIRST: Final = 0.5
"""The same for the first update, falling with one over their number: the residual of the first
steps grows quickly, and a threshold that followed slowly would send them densely."""

FACTOR_MAX: Final = 2.0
"""Most that one update multiplies or divides the threshold by."""

UPDATES_MAX: Final = 2**53
"""Updates that a saved state may have seen: up to here a float counts them exactly."""

PolicyState: TypeAlias = dict[str, float | None]


class ThresholdPolicy(Protocol):
    """What a session asks of a policy."""

    @property
    def threshold(self) -> float | None:
        """The threshold of the next update in units of the parameters; None before `start`."""

    @property
    def target_density(self) -> float:
        """The density that a first threshold, taken from the first residual, should lead to."""

    def start(self, threshold: float) -> None:
        """Take `threshold` for the first update, unless the policy has one of its own."""

    def observe(self, density: float, threshold: float) -> None:
        """Learn what came of an update.

        Parameters
        ----------
        density : float
            Part of all elements that it sends, 0 to 1.
        threshold : float
            What it was encoded with: `threshold` as the nearest whole number of quanta.
        """

    def state(self) -> PolicyState:
        """Return what `restore` needs."""

    def restore(self, state: PolicyState) -> None:
        """Go on from where the policy that returned `state` was."""


@dataclass(slots=True)
class FixedThreshold:
    """The same threshold for ever, as in Strom's paper."""

    threshold: float
    """In units of the parameters; positive."""

    target_density: float = TARGET_DENSITY
    """Not used: there is no first threshold to find."""

    def __post_init__(self) -> None:
        """Refuse a threshold that is not positive and finite."""
        if not 0 < self.threshold < float("inf"):
            raise CodecError(f"threshold={self.threshold}; it has to be positive and finite")

    def start(self, threshold: float) -> None:
        """Keep the threshold it was made with."""

    def observe(self, density: float, threshold: float) -> None:
        """Take no notice."""

    def state(self) -> PolicyState:
        """Return the threshold."""
        return {"threshold": self.threshold}

    def restore(self, state: PolicyState) -> None:
        """Take over the threshold."""
        self.threshold = _number(state, "threshold")


@dataclass(slots=True)
class AdaptiveThreshold:
    """Raise the threshold after an update denser than the target, lower it after a sparser one.

    The first threshold, unless one is given, is the quantile of the first residual that leads to
    the target density at once: a guess in absolute units fits no model but the one it was made
    for.
    """

    target_density: float = TARGET_DENSITY
    """Part of all elements that an update should send, above 0 and below 1."""

    initial: float | None = None
    """Threshold of the first update in units of the parameters; None takes the quantile."""

    threshold: float | None = field(init=False)
    _updates: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        if not 0 < self.target_density < 1:
            raise CodecError(f"target_density={self.target_density}; it has to be in (0, 1)")
        if self.initial is not None and not 0 < self.initial < float("inf"):
            raise CodecError(f"initial={self.initial}; it has to be positive and finite")
        self.threshold = self.initial

    def start(self, threshold: float) -> None:
        """Take `threshold` unless `initial` was given."""
        if self.threshold is None:
            self.threshold = threshold

    def observe(self, density: float, threshold: float) -> None:
        """Move one step towards the target."""
        if self.threshold is None:
            return
        self._updates += 1
        gain = max(GAIN, GAIN_FIRST / self._updates)
        factor = (density / self.target_density) ** gain
        moved = self.threshold * min(max(factor, 1 / FACTOR_MAX), FACTOR_MAX)
        # One quantum is the least that can be used, and there is a most. A threshold that went on
        # beyond either would have to come all the way back.
        self.threshold = min(max(moved, threshold / FACTOR_MAX), threshold * FACTOR_MAX)

    def state(self) -> PolicyState:
        """Return the present threshold, and how many updates have led to it."""
        return {"threshold": self.threshold, "updates": float(self._updates)}

    def restore(self, state: PolicyState) -> None:
        """Take over both."""
        threshold = None if state.get("threshold") is None else _number(state, "threshold")
        updates: object = state.get("updates") or 0
        if not isinstance(updates, int | float) or not 0 <= updates <= UPDATES_MAX:
            raise CodecError(f"updates={updates!r} in the saved state; it is 0 to {UPDATES_MAX}")
        self.threshold, self._updates = threshold, round(updates)


def _number(state: PolicyState, name: str) -> float:
    value = state.get(name)
    # A whole number can be larger than any float.
    if not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise CodecError(f"{name}={value!r} in the saved state; it has to be positive and finite")
    return float(value)
