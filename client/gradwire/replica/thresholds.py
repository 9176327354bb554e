"""`Thresholds`: which threshold the next update uses, and what the policy learns of it.

It belongs to the training half of a worker. Three things decide: the policy, which sees every
ordinary update; the shake-up, which every so many steps sends one with a much smaller threshold, so
that small changes are not delayed for ever; and, where each tensor has its own, how much tensors
change.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from gradwire.errors import UsageError
from gradwire.settings.settings import Settings
from gradwire_codecs import (
    CodecError,
    Feedback,
    Observation,
    ResidualStatistics,
    Sections,
    TensorFactors,
    WarmUp,
    multiple_of,
)
from gradwire_codecs.arrays import Float32Array, describe
from gradwire_protocol.messages.layout import Layout

UNTRAINED_SHARE_MAX: Final = 1e-3
"""A residual that changes by less than this part of itself was not trained: applying updates of
peers rounds it."""

MEASURE_EVERY: Final = 8
MEASURE_ALL_UNTIL: Final = 32
"""What tensors change by is measured in the first steps, and in every eighth one after them: it
takes two looks at tens of thousands of elements that are far apart in memory."""


class Thresholds:
    """The thresholds of one session.

    Parameters
    ----------
    settings : Settings
    feedback : Feedback
        Whose residual is looked at; not changed.
    layout : Layout
        The tensors that the vector is made of.
    clock : callable
        Returns seconds, from any beginning.
    """

    def __init__(
        self, settings: Settings, feedback: Feedback, layout: Layout, *, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._feedback = feedback
        self._clock = clock
        self._policy = settings.make_policy()
        self._tensors = TensorFactors([tensor.elements for tensor in layout.tensors])
        self._multiple: int | None = None
        """The last ordinary threshold, in quanta, of which tensors have multiples."""
        self._steps = 0
        self._shakes = False
        """Whether the update that is due, or was the last, is a shake-up."""
        self.last = 0
        """The common threshold of the last update, in quanta."""
        self._observed_at: float | None = None
        self._sample: Float32Array | None = None
        self._kept: Float32Array | None = None
        """What was left after the last update, where what a step changes is to be measured."""

    def note_run_steps(self, steps: int) -> None:
        """Note how many steps the run has made: a warm-up that is over is not made up for."""
        if isinstance(self._policy, WarmUp):
            self._policy.skip_to(steps)

    def next(self) -> int | Sections | None:
        """Return the threshold of the update that is due, in quanta.

        None where nothing has changed yet from which a first one could be taken.

        Raises
        ------
        NonFiniteError
            If a parameter that is looked at is NaN or infinite.
        UsageError
            If the policy's threshold is of no use.
        """
        policy, feedback = self._policy, self._feedback
        if policy.threshold is None:
            if not feedback.residual().any():
                return None
            density = policy.first_density(len(feedback.replica))
            policy.start(feedback.first_threshold(density))
        self._measure()
        self._multiple = multiple = self._whole(policy.threshold)
        self._steps += 1
        every = self._settings.shake_up_steps
        self._shakes = every > 0 and self._steps % every == 0
        if self._shakes:
            multiple = max(round(multiple / self._settings.shake_up_divisor), 1)
        self.last = multiple
        return self._thresholds(multiple)

    def observe(self, *, sent: int, size_bytes: int) -> float:
        """Learn what came of the update that `next` was asked for; return its density.

        Parameters
        ----------
        sent : int
            Elements it changes.
        size_bytes : int
            Its exact size as encoded.
        """
        assert self._multiple is not None
        elements = len(self._feedback.replica)
        density = sent / elements
        now = self._clock()
        seconds = 0.0 if self._observed_at is None else now - self._observed_at
        if self._shakes:  # its density and size say nothing about the policy's threshold
            self._observed_at = now
        elif sent or self._is_training():
            self._observed_at = now
            threshold = self._multiple * self._quantum
            self._policy.observe(
                Observation(
                    density=density, threshold=threshold, size_bytes=size_bytes, seconds=seconds
                )
            )
        return density

    def note_kept(self) -> None:
        """Note what is left after an update, before anything else changes it."""
        if self._settings.tensor_thresholds and (
            self._steps < MEASURE_ALL_UNTIL or self._steps % MEASURE_EVERY == 0
        ):
            self._kept = self._feedback.residual_at(self._tensors.sample)

    @property
    def ordinary(self) -> int | Sections | None:
        """The last threshold that was no shake-up's, in quanta; None before the first update."""
        return None if self._multiple is None else self._thresholds(self._multiple)

    def residual_statistics(self) -> ResidualStatistics:
        """Return how large the residual is in thresholds, from a sample of each tensor."""
        thresholds = self.ordinary
        if thresholds is None:
            return ResidualStatistics.of(np.empty(0, np.float32), 1.0)
        index = self._tensors.sample
        sample = self._feedback.residual_at(index)
        if isinstance(thresholds, int):
            return ResidualStatistics.of(sample, thresholds * self._quantum)
        section = np.searchsorted(thresholds.bounds, index, "right") - 1
        multiples = thresholds.multiples[section].astype(np.float32)
        return ResidualStatistics.of(sample, multiples * np.float32(self._quantum))

    # What goes into a checkpoint.

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs."""
        state: dict[str, Any] = {"policy": dict(self._policy.state()), "steps": self._steps}
        if self._settings.tensor_thresholds:
            state["tensors"] = self._tensors.state()
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over policy, factors of tensors and when a shake-up is due, or change nothing.

        A state that was saved without factors begins them anew.

        Raises
        ------
        CodecError, KeyError
            If it does not fit.
        """
        if not isinstance(state["policy"], Mapping):
            raise CodecError(f"the policy is {describe(state['policy'])}")
        steps = state["steps"]
        if not isinstance(steps, int) or steps < 0:
            raise CodecError(f"steps={steps!r} in the saved state; it is a number from 0 on")
        tensors = TensorFactors(self._tensors.lengths)
        if self._settings.tensor_thresholds and "tensors" in state:
            if not isinstance(state["tensors"], Mapping):
                raise CodecError(f"what tensors change by is {describe(state['tensors'])}")
            tensors.restore(state["tensors"])
        policy = self._settings.make_policy()
        policy.restore(dict(state["policy"]))
        if isinstance(policy, WarmUp) and isinstance(self._policy, WarmUp):
            policy.skip_to(self._policy.done)
        self._policy, self._tensors, self._steps = policy, tensors, steps
        self._kept = None

    # Private.

    @property
    def _quantum(self) -> float:
        return float(self._feedback.replica.quantum)

    def _whole(self, threshold: float | None) -> int:
        try:
            return multiple_of(threshold or 0.0, self._quantum)
        except CodecError as error:
            raise UsageError(f"the threshold policy is of no use: {error}") from None

    def _thresholds(self, multiple: int) -> int | Sections:
        return self._tensors.sections(multiple) if self._settings.tensor_thresholds else multiple

    def _measure(self) -> None:
        """Learn what the optimizer has changed since `note_kept`.

        The residual has changed by just that: what peers send moves parameters and replica alike.
        """
        kept, self._kept = self._kept, None
        if kept is not None:
            self._tensors.observe(self._feedback.residual_at(self._tensors.sample) - kept)

    def _is_training(self) -> bool:
        """Return whether the residual has changed since the last time this was asked.

        A step that sends nothing lowers the threshold only where something was trained. Lowered
        in every step of a script that accumulates gradients or evaluates, it would be so low
        afterwards that hundreds of updates were dense.
        """
        sample = self._feedback.residual_sample()
        before, self._sample = self._sample, sample
        moved = np.abs(sample - before).sum() if before is not None else 0.0
        return bool(moved > UNTRAINED_SHARE_MAX * np.abs(sample).sum())
