"""`PartialFeedback`: residual feedback over arrays with a portion of the residual in them."""

import numpy as np

from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.feedback.feedback import EVERYWHERE, Feedback, checked_portion
from gradwire_codecs.feedback.host_feedback import HostFeedback
from gradwire_codecs.replica.replica import Replica


class PartialFeedback(HostFeedback):
    """The parameters contain a portion of the residual, from which all of it is computed.

    Parameters
    ----------
    parameters, replica, threads
        As for `HostFeedback`.
    portion : float
        Above 0 and at most 1.
    """

    moves_parameters = True

    def __init__(
        self, parameters: Float32Array, replica: Replica, portion: float, *, threads: int = 1
    ) -> None:
        self.portion = checked_portion(portion)
        self._scanned_portion = np.float32(portion)
        super().__init__(parameters, replica, threads=threads)

    def residual(self, where: slice = EVERYWHERE) -> Float32Array:
        """Return a copy of the residual, or of a slice of it."""
        return self._whole(super().residual(where))

    def read_residual(self, into: Float32Array) -> None:
        """Copy the residual to an array."""
        super().read_residual(into)
        self._whole(into)

    def add_growth(self, before: Float32Array, factor: np.float32) -> None:
        """Add `factor` times the growth of the residual since `before`."""
        Feedback.add_growth(self, before, factor * self._scanned_portion)

    def clip(self, limit: np.float32) -> tuple[int, float]:
        """Clip the residual to plus or minus `limit`."""
        elements, magnitude = super().clip(limit * self._scanned_portion)
        return elements, magnitude / float(self._scanned_portion)

    def _whole(self, ahead: Float32Array) -> Float32Array:
        """Turn the portion that is in the parameters into the residual, in place."""
        ahead *= np.float32(1.0 / self.portion)
        return ahead
