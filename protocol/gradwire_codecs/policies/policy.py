"""What a session asks of a threshold policy, and what all policies check."""

import sys
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from gradwire_codecs.errors import CodecError

PolicyState: TypeAlias = dict[str, float | None]

UPDATES_MAX: Final = 2**53
"""Updates that a saved state may have seen: up to here a float counts them exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What came of one update."""

    density: float
    """Part of all elements that it sends, 0 to 1."""

    threshold: float
    """What it was encoded with: the policy's threshold as the nearest whole number of quanta."""

    size_bytes: int
    """Its exact size as encoded; 0 where nothing was sent."""

    seconds: float
    """Time since the update before it; 0 where there was none."""


class ThresholdPolicy(Protocol):
    """What a session asks of a policy."""

    @property
    def threshold(self) -> float | None:
        """The threshold of the next update in units of the parameters; None before `start`."""

    def first_density(self, elements: int) -> float:
        """Return the density that a first threshold, taken from the first residual, should give.

        Parameters
        ----------
        elements : int
            N, the length of the vector that updates are of.
        """

    def start(self, threshold: float) -> None:
        """Take `threshold` for the first update, unless the policy has one of its own."""

    def observe(self, observation: Observation) -> None:
        """Learn what came of an update."""

    def state(self) -> PolicyState:
        """Return what `restore` needs."""

    def restore(self, state: PolicyState) -> None:
        """Go on from where the policy that returned `state` was, or raise and change nothing."""


def check_density(name: str, value: float) -> None:
    """Raise `CodecError` for what is no part of all elements between none and all."""
    if not 0 < value < 1:
        raise CodecError(f"{name}={value}; it has to be in (0, 1)")


def check_positive(name: str, value: float) -> None:
    """Raise `CodecError` for what is not positive and finite."""
    if not 0 < value < float("inf"):
        raise CodecError(f"{name}={value}; it has to be positive and finite")


def saved_positive(state: PolicyState, name: str) -> float:
    """Return a number of a saved state that has to be positive and finite."""
    value: object = state.get(name)
    # A whole number can be larger than any float.
    if not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise CodecError(f"{name}={value!r} in the saved state; it has to be positive and finite")
    return float(value)


def saved_count(state: PolicyState, name: str, default: int) -> int:
    """Return a saved number of updates; `default` where the state has none."""
    value: object = state.get(name, default)
    if not isinstance(value, int | float) or not 0 <= value <= UPDATES_MAX:
        raise CodecError(f"{name}={value!r} in the saved state; it has to be 0 to {UPDATES_MAX}")
    return round(value)


def saved_optional(state: PolicyState, name: str) -> float | None:
    """Return the same where it is there, and None where it is not."""
    return None if state.get(name) is None else saved_positive(state, name)
