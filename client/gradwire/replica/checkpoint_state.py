"""`CheckpointState`: what a session adds to a script's checkpoint, and restores from one."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gradwire.errors import UsageError
from gradwire.replica.push import Push
from gradwire.replica.training_half import TrainingHalf
from gradwire.settings.settings import Settings
from gradwire_protocol.settings import declared_settings

STATE_VERSION: Final = 1


class CheckpointState:
    """Residual, threshold policy and versions of one worker."""

    def __init__(self, half: TrainingHalf, sending: Push) -> None:
        self._shared = half.shared
        self._feedback = half.sends_from
        self._half = half
        self._sending = sending

    def save(self) -> dict[str, Any]:
        """Return residual, threshold policy and versions."""
        shared = self._shared
        shared.parameters.gather()
        return {
            "version": STATE_VERSION,
            "run": shared.run,
            "feedback": self._half.settings.feedback,
            "digest": f"{shared.feedback.replica.digest():016x}",
            "residual": shared.parameters.like_target(self._feedback.residual()),
            **self._half.thresholds.state(),
            "versions": dict(shared.versions),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore residual and threshold policy, or raise `UsageError` and change nothing."""
        version = state.get("version")
        if not isinstance(version, int) or version != STATE_VERSION:  # `!=` of an array is an array
            raise UsageError(
                f"the saved state has version {version!r}; this gradwire reads {STATE_VERSION}"
            )
        shared = self._shared
        try:
            residual = np.asarray(state["residual"])
            self._feedback.check_residual(residual)
            feedback = state.get("feedback", self._half.settings.feedback)
            declared_settings(Settings)["feedback"].check(feedback)
            self._half.thresholds.restore(state)
            shared.parameters.gather()
            prior = self._half.prior_residual
            if prior is not None and not self._half.tally.steps:
                residual = prior.unshared_part(residual, state)
            self._feedback.restore_residual(residual)
            if shared.scaled_change is not None:
                shared.scaled_change.note()
        except KeyError as error:
            raise UsageError(f"the saved state has no {error}") from None
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"the saved state does not fit: {error}") from None
        self._sending.due = True
        shared.parameters.scatter()
