"""`PriorResidual`: what the parameters that a worker has joined with are to the run.

With local feedback a worker's parameters contain its residual, or a portion of it. Who starts a run
from parameters of its own checkpoint has made that part of what is shared, and must not add it once
more. Parameters of shared feedback, or of a checkpoint of the master, contain none.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

import numpy as np

from gradwire.settings.training import Feedback as FeedbackSetting
from gradwire.settings.training import portion_of
from gradwire_codecs import Feedback
from gradwire_codecs.arrays import Float32Array

logger = logging.getLogger("gradwire.session")

PART_ELEMENTS: Final = 2**18
"""Of the residual that are looked at together. A worker that comes late differs in the first
part."""


class PriorResidual:
    """Takes from a residual that was saved what the run has already.

    Parameters
    ----------
    kind : str or float
        The setting `feedback` of this worker.
    digest : str or None
        Of the shared parameters that the run began with, where it began with those that were
        brought.
    is_founder : bool
        Whether it was this worker that it began with.
    """

    def __init__(
        self, kind: FeedbackSetting, digest: str | None, *, is_founder: bool = False
    ) -> None:
        self._kind = kind
        self._digest = digest
        self._is_founder = is_founder

    @classmethod
    def of(cls, feedback: Feedback, kind: FeedbackSetting, *, is_founder: bool) -> Self:
        """Look at what was brought, before the parameters become what the run has.

        Who brings the same as the founder is taken for one that has the founder's checkpoint:
        where all begin with the checkpoint of one, its residual is not added by all.

        Parameters
        ----------
        feedback : Feedback
            Over the parameters that were brought, with the run's replica.
        kind : str or float
        is_founder : bool
        """
        replica = feedback.replica
        near = replica.quantum / (feedback.portion or 1.0)  # by the rounding of what was brought
        is_far = any(np.abs(part).max() > near for part in _residual_in_parts(feedback))
        digest = None if is_far else f"{replica.digest():016x}"
        return cls(kind, digest, is_founder=is_founder)

    def without_what_is_shared(
        self, residual: Float32Array, state: Mapping[str, Any]
    ) -> Float32Array:
        """Return what of a saved residual the run does not have, before the first step is made.

        Parameters
        ----------
        residual : ndarray of shape (N,), dtype float32
        state : mapping
            What it was saved in; says with which feedback, and beside which shared parameters.
        """
        contained = portion_of(state.get("feedback", self._kind))
        # Who brought the shared parameters alone has brought them without it.
        if self._digest in (None, state.get("digest")) or not contained or not residual.any():
            return residual
        logger.info(
            "the run began with the parameters that we brought, and these contain %s that was "
            "saved: it is not added again",
            "the residual" if contained == 1.0 else f"{contained:g} of the residual",
        )
        return residual * np.float32(self._is_founder * (1.0 - contained))


def _residual_in_parts(feedback: Feedback) -> Iterator[Float32Array]:
    """Take the residual bit by bit: a copy of all of it is as large as the model."""
    for start in range(0, len(feedback.replica), PART_ELEMENTS):
        yield feedback.residual(slice(start, start + PART_ELEMENTS))
