"""`EarlyStopping`: when training is good enough, or becomes no better.

It knows no session: scores go in, and out comes whether to stop. A session passes that on to all
other workers.
"""

from collections.abc import Callable
from math import isfinite
from time import monotonic

from gradwire.errors import UsageError


class EarlyStopping:
    """Judges one score after the other, such as the loss on held-out data after each epoch.

    Made by `Session.early_stopping`. By itself it tells nobody.

    Parameters
    ----------
    patience : int, optional
        Scores in a row that may be no better than the best one; the next such one stops.
    minimum_improvement : float
        By how much a score has to be better than the best one to count as better.
    target : float, optional
        A score that is good enough.
    maximum_seconds : float, optional
        Since it was made.
    maximum_scores : int, optional
        After so many, whatever they are.
    larger_is_better : bool
        For accuracies and the like; a loss is better when it is smaller.
    tell : callable, optional
        Called with the reason, once, when it decides to stop.
    told : callable, optional
        Returns why somebody else wants training to end; None while nobody does.
    clock : callable
        Returns seconds.

    Raises
    ------
    UsageError
        If a limit is none, or there is no limit at all.
    """

    def __init__(
        self,
        *,
        patience: int | None = None,
        minimum_improvement: float = 0.0,
        target: float | None = None,
        maximum_seconds: float | None = None,
        maximum_scores: int | None = None,
        larger_is_better: bool = False,
        tell: Callable[[str], None] = lambda reason: None,
        told: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        limits = {
            "patience": patience,
            "target": target,
            "maximum_seconds": maximum_seconds,
            "maximum_scores": maximum_scores,
        }
        if all(limit is None for limit in limits.values()):
            raise UsageError(f"early stopping without a limit: say one of {', '.join(limits)}")
        for name, value, least in (
            ("patience", patience, 0),
            ("maximum_seconds", maximum_seconds, 0),
            ("maximum_scores", maximum_scores, 1),
            ("minimum_improvement", minimum_improvement, 0),
        ):
            if value is not None and not value >= least:
                raise UsageError(f"early stopping: {name}={value}; it has to be at least {least}")
        self._patience = patience
        self._minimum_improvement = minimum_improvement
        self._target = target
        self._maximum_seconds = maximum_seconds
        self._maximum_scores = maximum_scores
        self._sign = -1.0 if larger_is_better else 1.0
        self._tell = tell
        self._told = told
        self._clock = clock
        self._began = clock()
        self.best: float | None = None
        """The best score so far; None before the first one."""
        self.best_at = 0
        """The how manieth score that was, from 1 on."""
        self.scores = 0
        """How many were noted."""
        self.reason: str | None = None
        """Why to stop; None while there is no reason to."""

    @property
    def is_best(self) -> bool:
        """Whether the last score is the best one: the moment to keep a copy of the model."""
        return self.scores > 0 and self.best_at == self.scores

    def note(self, score: float) -> bool:
        """Note a score; return whether to stop.

        A score that is NaN or infinite stops at once. It never counts as the best one.
        """
        self.scores += 1
        score = float(score)
        if isfinite(score) and (self.best is None or self._gain(score) > self._minimum_improvement):
            self.best, self.best_at = score, self.scores
        if self.reason is None:
            self.reason = self._told()
            if self.reason is None:
                self.reason = self._judge(score)
                if self.reason is not None:
                    self._tell(self.reason)
        return self.reason is not None

    def _gain(self, score: float) -> float:
        """Return by how much a score is better than the best one."""
        assert self.best is not None
        return self._sign * (self.best - score)

    def _judge(self, score: float) -> str | None:
        """Return why to stop after this score, if there is a reason."""
        if not isfinite(score):
            return f"the score is {score}"
        if self._target is not None and self._sign * (self._target - score) >= 0:
            return f"the score {score:g} has reached the target of {self._target:g}"
        seconds = self._clock() - self._began
        if self._maximum_seconds is not None and seconds >= self._maximum_seconds:
            return f"{self._maximum_seconds:g} s are over; the best score is {self.best:g}"
        if self._maximum_scores is not None and self.scores >= self._maximum_scores:
            return f"score {self.scores} was to be the last; the best is {self.best:g}"
        if self._patience is not None and self.scores - self.best_at > self._patience:
            return (
                f"no better score than {self.best:g} in the last {self.scores - self.best_at}, by "
                f"{self._minimum_improvement:g} or more"
            )
        return None
