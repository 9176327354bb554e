"""`Thresholds`: which threshold the next update uses, and what the policy learns from it.

It belongs to the training half of a worker. Two rules decide: the policy, which sees every ordinary
update, and the shake-up, which every `shake_up_steps` steps sends an update with a much smaller
threshold, so that small changes are not delayed for ever.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from gradwire.errors import UsageError
from gradwire.settings.settings import Settings
from gradwire.settings.training import WARM_UP_DENSITY
from gradwire_codecs import (
    CodecError,
    Feedback,
    Observation,
    ResidualStatistics,
    TargetDensity,
    WarmUp,
    multiple_of,
)
from gradwire_codecs.arrays import Float32Array, describe
from gradwire_codecs.policies.density import density_for

SHAKE_UP_DIVISOR: Final = 8
"""Of the threshold in a shake-up: such an update is 43 times as large as one of 1 %."""

UNTRAINED_SHARE_MAX: Final = 1e-3
"""A residual that changes by less than this part of itself was not trained: rounding changes it
when peers' updates are applied."""


class Thresholds:
    """The thresholds of one session."""

    def __init__(
        self, settings: Settings, feedback: Feedback, *, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._feedback = feedback
        self._clock = clock
        self._policy = settings.make_policy()
        self._follows_workers = settings.has_usual_threshold
        self.ordinary: int | None = None
        """The last threshold but for shake-ups, in quanta; None before the first update."""
        self._steps = 0
        self._shakes = False
        """Whether the update that is due, or was the last, is a shake-up."""
        self.last = 0
        """The threshold of the last update, in quanta."""
        self._observed_at: float | None = None
        self._sample: Float32Array | None = None

    def note_run_steps(self, steps: int) -> None:
        """Skip the part of a warm-up that the run has already made."""
        if isinstance(self._policy, WarmUp):
            self._policy.skip_to(steps)

    def aim(self, workers: int, factor: float) -> None:
        """Aim at the density that suits so many workers, times a factor.

        Not where the settings are about it.
        """
        policy = self._policy
        if not self._follows_workers:
            return
        if isinstance(policy, WarmUp):
            policy.density = WARM_UP_DENSITY * factor
        if isinstance(policy, TargetDensity | WarmUp):
            policy.aim_at(density_for(workers) * factor)

    def next(self) -> int | None:
        """Return the threshold of the update that is due, in quanta.

        None while nothing has changed from which the first one could be taken.

        Raises
        ------
        NonFiniteError
            If a parameter that is looked at is NaN or infinite.
        UsageError
            If the threshold of the policy cannot be used.
        """
        policy, feedback = self._policy, self._feedback
        if policy.threshold is None:
            if not feedback.residual().any():
                return None
            density = policy.first_density(len(feedback.replica))
            policy.start(feedback.first_threshold(density))
        self.last = self.ordinary = self._in_quanta(policy.threshold)
        self._steps += 1
        every = self._settings.shake_up_steps
        self._shakes = every > 0 and self._steps % every == 0
        if self._shakes:
            self.last = max(round(self.ordinary / SHAKE_UP_DIVISOR), 1)
        return self.last

    def observe(self, *, sent: int, size_bytes: int) -> float:
        """Tell the policy about the update that `next` was asked for; return its density.

        Parameters
        ----------
        sent : int
            Elements that it changes.
        size_bytes : int
            Its exact size as encoded.
        """
        assert self.ordinary is not None
        elements = len(self._feedback.replica)
        density = sent / elements
        now = self._clock()
        seconds = 0.0 if self._observed_at is None else now - self._observed_at
        if self._shakes:  # its density and size say nothing about the policy's threshold
            self._observed_at = now
        elif sent or self._is_training():
            self._observed_at = now
            threshold = self.ordinary * self._quantum
            self._policy.observe(
                Observation(
                    density=density, threshold=threshold, size_bytes=size_bytes, seconds=seconds
                )
            )
        return density

    def residual_statistics(self) -> ResidualStatistics:
        """Return the residual's statistics in units of the threshold, from a sample."""
        if self.ordinary is None:
            return ResidualStatistics.of(np.empty(0, np.float32), 1.0)
        sample = self._feedback.residual_sample()
        return ResidualStatistics.of(sample, self.ordinary * self._quantum)

    # Checkpoints.

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs."""
        return {"policy": dict(self._policy.state()), "steps": self._steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the policy and the steps to the next shake-up, or change nothing.

        Raises `CodecError` or `KeyError` if the state does not fit.
        """
        if not isinstance(state["policy"], Mapping):
            raise CodecError(f"the policy is {describe(state['policy'])}, not a mapping")
        steps = state["steps"]
        if not isinstance(steps, int) or steps < 0:
            raise CodecError(f"steps={steps!r} in the saved state; it is an integer from 0 on")
        policy = self._settings.make_policy()
        policy.restore(dict(state["policy"]))
        if isinstance(policy, WarmUp) and isinstance(self._policy, WarmUp):
            policy.skip_to(self._policy.done)
        self._policy, self._steps = policy, steps

    # Private.

    @property
    def _quantum(self) -> float:
        return float(self._feedback.replica.quantum)

    def _in_quanta(self, threshold: float | None) -> int:
        try:
            return multiple_of(threshold or 0.0, self._quantum)
        except CodecError as error:
            raise UsageError(f"the threshold policy has no usable threshold: {error}") from None

    def _is_training(self) -> bool:
        """Return whether the residual has changed since the last call.

        A step that sends nothing lowers the threshold only if something was trained. A script that
        accumulates gradients or evaluates would lower it in every step otherwise, so far that
        hundreds of later updates were dense.
        """
        sample = self._feedback.residual_sample()
        before, self._sample = self._sample, sample
        moved = np.abs(sample - before).sum() if before is not None else 0.0
        return bool(moved > UNTRAINED_SHARE_MAX * np.abs(sample).sum())
