"""`PriorResidual`: which part of a saved residual the run has already.

With local feedback, a worker's parameters contain its residual. A worker that founds a run with the
parameters of its own checkpoint has shared it, and must not add it again. With shared feedback the
parameters contain none of it, nor do those of a master's checkpoint.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np

from gradwire.settings.training import Feedback as FeedbackSetting
from gradwire_codecs import Feedback
from gradwire_codecs.arrays import Float32Array

logger = logging.getLogger("gradwire.session")

PART_ELEMENTS: Final = 2**18
"""Elements of the residual that are looked at together. If a worker joins late, the first ones
differ already."""


class PriorResidual:
    """Removes from a saved residual what the run has already.

    Parameters
    ----------
    kind : str
        The setting `feedback` of this worker.
    digest : str
        Of the parameters that the run began with, which equal those that this worker brought.
    """

    def __init__(self, kind: FeedbackSetting, digest: str) -> None:
        self._kind = kind
        self._digest = digest

    @classmethod
    def of(cls, feedback: Feedback, kind: FeedbackSetting) -> Self | None:
        """Compare the parameters that this worker brought with the run's, before they are replaced.

        Returns None where they differ: the run has no part of a residual then.

        A worker that brings the same parameters as the founder is taken to have the founder's
        checkpoint: where all begin with the checkpoint of one worker, not all may add its residual.

        Parameters
        ----------
        feedback : Feedback
            Over the parameters that this worker brought, with the run's replica.
        """
        replica = feedback.replica
        near = replica.quantum  # parameters are rounded
        # Part by part: a copy of the whole residual is as large as the model.
        is_far = any(
            np.abs(feedback.residual(slice(start, start + PART_ELEMENTS))).max() > near
            for start in range(0, len(replica), PART_ELEMENTS)
        )
        return None if is_far else cls(kind, f"{replica.digest():016x}")

    def unshared_part(self, residual: Float32Array, state: Mapping[str, Any]) -> Float32Array:
        """Return the part of a saved residual that the run lacks. No step may have been made yet.

        Parameters
        ----------
        residual : ndarray of shape (N,), dtype float32
        state : mapping
            The saved state with that residual. It says with which feedback the residual was saved,
            and beside which shared parameters.
        """
        contained = state.get("feedback", self._kind) == "local"
        # With the digest of the state, this worker brought shared parameters, without residual.
        if self._digest == state.get("digest") or not contained or not residual.any():
            return residual
        logger.info(
            "the run began with this worker's parameters, which contain the residual that was "
            "saved: it is not added again"
        )
        return np.zeros_like(residual)
