"""The kinds of feedback that tests of all of them are run with."""

from typing import Final

import numpy as np
import pytest

from gradwire_codecs import LocalFeedback, Replica, SharedFeedback
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.feedback.host_feedback import HostFeedback

KINDS: Final = pytest.mark.parametrize("kind", [LocalFeedback, SharedFeedback])


def start(kind: type[HostFeedback], initial: Float32Array) -> HostFeedback:
    """Return the feedback of a worker that begins with these parameters, a copy of them."""
    feedback = kind(initial.copy(), Replica.from_parameters(initial))
    feedback.drop_residual()
    return feedback


def train(feedback: HostFeedback, random: np.random.Generator, scale: float = 1e-3) -> None:
    """Change all parameters by normal noise."""
    feedback.parameters += random.normal(0, scale, len(feedback.parameters)).astype(np.float32)
