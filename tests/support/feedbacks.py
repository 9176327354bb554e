"""The kinds of feedback that tests of all of them are run with."""

from typing import Final

import numpy as np
import pytest

from gradwire_codecs import LocalFeedback, PartialFeedback, Replica, SharedFeedback
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.feedback.host_feedback import HostFeedback


class QuarterFeedback(PartialFeedback):
    """A quarter of the residual is in the parameters."""

    def __init__(self, parameters: Float32Array, replica: Replica, *, threads: int = 1) -> None:
        super().__init__(parameters, replica, 0.25, threads=threads)


KINDS: Final = pytest.mark.parametrize("kind", [LocalFeedback, SharedFeedback, QuarterFeedback])


def start(kind: type[HostFeedback], initial: Float32Array) -> HostFeedback:
    """Return the feedback of a worker that begins with these parameters, a copy of them."""
    feedback = kind(initial.copy(), Replica.from_parameters(initial))
    feedback.drop_residual()
    return feedback


def train(feedback: HostFeedback, random: np.random.Generator, scale: float = 1e-3) -> None:
    """Change all parameters by normal noise."""
    feedback.parameters += random.normal(0, scale, len(feedback.parameters)).astype(np.float32)


def rounding_of(feedback: HostFeedback) -> float:
    """Return what the rounding of a parameter does to a residual of which it has a portion."""
    largest = np.abs(feedback.parameters).max()
    return float(np.spacing(largest)) * (counts_for(feedback) - 1.0)


def counts_for(feedback: HostFeedback) -> float:
    """Return what a change of a parameter counts for."""
    return 1.0 / (feedback.portion or 1.0)
