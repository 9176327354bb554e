"""`Outcome`: what came of one training, by whatever method."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Final, Self

EVALUATIONS: Final = 30
"""How often a run is evaluated."""

LAST: Final = 5
"""Evaluations whose mean is the loss of a run: those in its last sixth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one run went."""

    steps: Sequence[int]
    """After which it was evaluated."""
    losses: Sequence[float]
    """On what is held out; NaN from where the training has diverged."""
    megabytes: float
    """All that went over the wire, of all processes; 0 where there is none."""
    seconds: float
    """For all steps: of one process its processor time, of several what passed."""

    @property
    def loss(self) -> float:
        """What the run is judged by."""
        return fmean(self.losses[-LAST:])

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return what `to_dict` has described."""
        return cls(**values)


def evaluated_after(steps: int) -> Sequence[int]:
    """Return after which of so many steps a run is evaluated: evenly, and after the last one."""
    count = min(EVALUATIONS, steps)
    return [steps * (i + 1) // count for i in range(count)]
