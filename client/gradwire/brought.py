"""`Brought`: what the parameters that a worker has joined with are to the run.

With local feedback a worker's parameters contain its residual. Who starts a run from parameters of
its own checkpoint has made the residual part of what is shared, and must not add it once more.
Parameters of shared feedback, or of a checkpoint of the master, contain none.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

import numpy as np

from gradwire_codecs import Feedback
from gradwire_codecs.arrays import Float32Array

logger = logging.getLogger("gradwire.session")

PART_ELEMENTS: Final = 2**18
"""Of the residual that are looked at together. Who comes late differs in the first part."""


class Brought:
    """Takes from a residual that was saved what the run has already.

    Parameters
    ----------
    kind : str
        Which feedback this worker has: local or shared.
    digest : str or None
        Of the shared parameters that the run began with, where it began with those that were
        brought.
    """

    def __init__(self, kind: str, digest: str | None) -> None:
        self._kind = kind
        self._digest = digest

    @classmethod
    def of(cls, feedback: Feedback, kind: str) -> Self:
        """Look at what was brought, before the parameters become what the run has.

        Who founds the run and who brings the same as the founder are not told apart: where all
        begin with the checkpoint of one, its residual is not added by all.

        Parameters
        ----------
        feedback : Feedback
            Over the parameters that were brought, with the run's replica.
        kind : str
        """
        replica = feedback.replica
        is_far = any(np.abs(part).max() > replica.quantum for part in _residual_in_parts(feedback))
        return cls(kind, None if is_far else f"{replica.digest():016x}")

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
        contained = state.get("feedback", self._kind) == "local"
        # Who brought the shared parameters alone has brought them without it.
        if self._digest in (None, state.get("digest")) or not contained or not residual.any():
            return residual
        logger.info(
            "the run began with the parameters that we brought, and these contain the residual "
            "that was saved: it is not added again"
        )
        return np.zeros_like(residual)


def _residual_in_parts(feedback: Feedback) -> Iterator[Float32Array]:
    """Take the residual bit by bit: a copy of all of it is as large as the model."""
    elements = len(feedback.replica)
    for start in range(0, elements, PART_ELEMENTS):
        yield feedback.residual_at(np.arange(start, min(start + PART_ELEMENTS, elements)))
