"""`CheckpointState`: what a session adds to a script's checkpoint, and restores from one.

With local feedback, a worker's parameters contain its residual. A worker that founds a run with the
parameters of its own checkpoint has shared it, and must not add it again. With shared feedback the
parameters contain none of it, nor do those of a master's checkpoint.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gradwire.errors import UsageError
from gradwire.replica.push import Push
from gradwire.replica.training_half import TrainingHalf
from gradwire.settings.settings import Settings
from gradwire_codecs import Feedback
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.settings import declared_settings

logger = logging.getLogger("gradwire.session")

STATE_VERSION: Final = 1

PART_ELEMENTS: Final = 2**18
"""Elements of the residual that are looked at together. If a worker joins late, the first ones
differ already."""


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
            kind = state.get("feedback", self._half.settings.feedback)
            declared_settings(Settings)["feedback"].check(kind)
            if kind == "local" and not self._half.tally.steps:
                residual = unshared_part(residual, state.get("digest"), self._half.brought_digest)
            self._half.thresholds.restore(state)
            shared.parameters.gather()
            self._feedback.restore_residual(residual)
            if shared.scaled_change is not None:
                shared.scaled_change.note()
        except KeyError as error:
            raise UsageError(f"the saved state has no {error}") from None
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"the saved state does not fit: {error}") from None
        self._sending.due = True
        shared.parameters.scatter()


def brought_digest(feedback: Feedback) -> str | None:
    """Return the digest of the run's parameters if this worker brought the same, else None.

    A worker that brings the same parameters as the founder is taken to have the founder's
    checkpoint: where all begin with the checkpoint of one worker, not all may add its residual.

    Parameters
    ----------
    feedback : Feedback
        Over the parameters that this worker brought, which are not replaced yet, with the run's
        replica.
    """
    replica = feedback.replica
    near = replica.quantum  # parameters are rounded
    # Part by part: a copy of the whole residual is as large as the model.
    is_far = any(
        np.abs(feedback.residual(slice(start, start + PART_ELEMENTS))).max() > near
        for start in range(0, len(replica), PART_ELEMENTS)
    )
    return None if is_far else f"{replica.digest():016x}"


def unshared_part(residual: Float32Array, digest: Any, brought: str | None) -> Float32Array:
    """Return the part of a saved residual that the run lacks. No step may have been made yet.

    Parameters
    ----------
    residual : ndarray of shape (N,), dtype float32
        Saved with local feedback, so that the parameters beside it contained it.
    digest : str
        Of the shared parameters beside which it was saved.
    brought : str or None
        What `brought_digest` returned when this worker joined.
    """
    # With the digest of the state, this worker brought shared parameters, without residual.
    if brought in (None, digest) or not residual.any():
        return residual
    logger.info(
        "the run began with this worker's parameters, which contain the residual that was "
        "saved: it is not added again"
    )
    return np.zeros_like(residual)
