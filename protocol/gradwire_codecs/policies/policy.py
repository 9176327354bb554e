"""`ThresholdPolicy`, the interface of all policies, the checks they share, and `FixedThreshold`."""

import sys
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from gradwire_codecs.errors import CodecError

PolicyState: TypeAlias = dict[str, float | None]

UPDATES_MAX: Final = 2**53
"""Updates that a saved state may have seen: up to here a float counts them exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One update, as a policy sees it."""

    density: float
    """Part of all elements that it sends, 0 to 1."""

    threshold: float
    """The threshold that was used: the policy's, as the nearest whole number of quanta."""

    size_bytes: int
    """Its exact size as encoded; 0 if nothing was sent."""

    seconds: float
    """Time since the update before; 0 for the first one."""


class ThresholdPolicy(Protocol):
    """The interface of a policy that chooses thresholds."""

    @property
    def threshold(self) -> float | None:
        """The threshold of the next update in units of the parameters; None before `start`."""

    def first_density(self, elements: int) -> float:
        """Return the density that the first threshold should give.

        The session computes that threshold, a quantile of the first residual.

        Parameters
        ----------
        elements : int
            N, the length of the parameters.
        """

    def start(self, threshold: float) -> None:
        """Use `threshold` for the first update, unless the policy has its own."""

    def observe(self, observation: Observation) -> None:
        """Adapt the threshold after an update."""

    def state(self) -> PolicyState:
        """Return the state to save for `restore`."""

    def restore(self, state: PolicyState) -> None:
        """Continue with a saved state, or raise `CodecError` and change nothing."""


def check_density(name: str, value: float) -> None:
    """Raise `CodecError` unless `value` is above 0 and below 1."""
    if not 0 < value < 1:
        raise CodecError(f"{name}={value}; it has to be in (0, 1)")


def check_positive(name: str, value: float) -> None:
    """Raise `CodecError` unless `value` is positive and finite."""
    if not 0 < value < float("inf"):
        raise CodecError(f"{name}={value}; it has to be positive and finite")


def saved_positive(state: PolicyState, name: str) -> float:
    """Return a number of a saved state, or raise `CodecError` if it is not positive and finite."""
    value: object = state.get(name)
    # An int can be larger than any float.
    if not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise CodecError(f"{name}={value!r} in the saved state; it has to be positive and finite")
    return float(value)


def saved_count(state: PolicyState, name: str, default: int) -> int:
    """Return a saved number of updates, or `default` if the state has none."""
    value: object = state.get(name, default)
    if not isinstance(value, int | float) or not 0 <= value <= UPDATES_MAX:
        raise CodecError(f"{name}={value!r} in the saved state; it has to be 0 to {UPDATES_MAX}")
    return round(value)


def saved_optional(state: PolicyState, name: str) -> float | None:
    """Return a positive number of a saved state; None if it is missing or None."""
    return None if state.get(name) is None else saved_positive(state, name)


@dataclass(slots=True)
class FixedThreshold:
    """A threshold that never changes, as in Strom's paper."""

    threshold: float
    """In units of the parameters; positive."""

    def __post_init__(self) -> None:
        """Refuse a threshold that is not positive and finite."""
        check_positive("threshold", self.threshold)

    def first_density(self, elements: int) -> float:
        """Return any density: no first threshold has to be found."""
        return 0.01

    def start(self, threshold: float) -> None:
        """Do nothing: the threshold is fixed."""

    def observe(self, observation: Observation) -> None:
        """Do nothing: the threshold is fixed."""

    def state(self) -> PolicyState:
        """Return the threshold."""
        return {"threshold": self.threshold}

    def restore(self, state: PolicyState) -> None:
        """Continue with a saved threshold."""
        self.threshold = saved_positive(state, "threshold")
