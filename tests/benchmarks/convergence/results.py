"""What `convergence` compares: methods, and what came of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import fmean
from typing import Final

from benchmarks.convergence import member
from benchmarks.convergence.outcome import Outcome
from benchmarks.convergence.tasks import Task

ONE_PROCESS: Final = "one process, the batch of all"
DDP: Final = "DDP"
POWER_SGD: Final = "DDP, PowerSGD hook"
GRADWIRE: Final = "gradwire"
WITH_RELAYS: Final = "gradwire with two relays"
WITH_MASTERS: Final = "gradwire with two masters"
PROCESSES: Final = {DDP: member.DDP, POWER_SGD: member.POWER_SGD, GRADWIRE: member.GRADWIRE}
"""Methods of several processes, and what these call them."""


@dataclass(frozen=True, slots=True)
class Runs:
    """What one method has come to, by learning rate: an outcome for each seed."""

    by_rate: Mapping[float, Sequence[Outcome]]

    @property
    def best_rate(self) -> float:
        """The rate with the lowest mean loss."""
        means = {rate: mean_loss(outcomes) for rate, outcomes in self.by_rate.items()}
        return min(means, key=lambda rate: means[rate] if isfinite(means[rate]) else float("inf"))

    @property
    def best(self) -> Sequence[Outcome]:
        """What came of it."""
        return self.by_rate[self.best_rate]

    @property
    def loss(self) -> float:
        """Mean over the seeds."""
        return mean_loss(self.best)

    @property
    def megabytes(self) -> float:
        """Mean over the seeds."""
        return fmean(outcome.megabytes for outcome in self.best)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One task, all methods."""

    task: Task
    four: Mapping[str, Runs]
    """By method."""
    sixteen: Mapping[str, Runs]
    delayed: Mapping[int, Sequence[Outcome]]
    """By delay, at gradwire's best rate: simulated, 4 workers."""
    beyond: Mapping[str, Sequence[Outcome]]
    """With relays, and with several masters, at gradwire's best rate; nothing of most tasks."""
    seconds: float
    """What a step of one worker takes by itself."""


def mean_loss(outcomes: Sequence[Outcome]) -> float:
    """Return the mean over the seeds; not a number where one has diverged."""
    losses = [outcome.loss for outcome in outcomes]
    return fmean(losses) if all(map(isfinite, losses)) else nan
