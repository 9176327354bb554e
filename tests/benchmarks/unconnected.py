"""`UnconnectedSharing`: what a session does with a model, for workers that share one process.

Parameters, thresholds, codec and replica are the client's own. What is encoded is returned, and
whoever has it hands it to the others.
"""

import torch

from gradwire.replica.thresholds import Thresholds
from gradwire.settings.settings import Settings
from gradwire.target.adapters import parameters_of
from gradwire_codecs import Replica, encoded_hits


class UnconnectedSharing:
    """One worker's part of what is shared.

    Parameters
    ----------
    model : torch.nn.Module
        With the same parameters for all workers at first.
    settings : Settings
    workers : int
        How many there are.
    """

    def __init__(self, model: torch.nn.Module, settings: Settings, workers: int) -> None:
        self._parameters = parameters_of(model)
        vector = self._parameters.vector
        replica = Replica.from_parameters(vector)
        self.feedback = self._parameters.feedback(replica, kind=settings.feedback)
        self.feedback.drop_residual()
        self._thresholds = Thresholds(settings, self.feedback, clock=lambda: 0.0)
        self._thresholds.aim(workers, 1.0)

    def encode(self) -> list[bytes]:
        """Return what is to be sent, after a step of the optimizer."""
        self._parameters.gather()
        threshold = self._thresholds.next()
        assert threshold is not None
        bodies = self.feedback.encode(threshold)
        self._thresholds.observe(
            sent=sum(map(encoded_hits, bodies)), size_bytes=sum(map(len, bodies))
        )
        return bodies

    def apply(self, bodies: list[bytes]) -> None:
        """Apply what a peer has sent."""
        for body in bodies:
            self.feedback.apply(body)
