"""`ScaledChange`: multiplies what a step has changed, where no learning rate does it.

Without an optimizer, or with one that does not step in proportion to its learning rate, the change
itself is multiplied before it is encoded. What has changed since the last step is what the residual
has grown by: updates of peers move parameters and replica alike, and leave it as it is. So a copy
of the residual is kept, 4 bytes for each parameter, and no part of what others do is multiplied.

What waits in the residual was multiplied when it was made, and is not again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from gradwire_codecs import Feedback


class ScaledChange:
    """What has changed since the last step, to be multiplied.

    Parameters
    ----------
    feedback : Feedback
        Whose parameters change.
    factor : callable
        Returns what the change of this step is multiplied by.
    """

    def __init__(self, feedback: Feedback, factor: Callable[[], float]) -> None:
        self._feedback = feedback
        self._factor = factor
        self._before = feedback.residual()

    def apply(self) -> None:
        """Multiply what has changed; `note` has to follow when it is sent, or waits."""
        factor = self._factor()
        if factor != 1.0:
            self._feedback.add_growth(self._before, np.float32(factor - 1.0))

    def note(self) -> None:
        """Note what is left: the next change begins here."""
        self._feedback.read_residual(self._before)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Let what is done to the residual in the block count as no change."""
        change = self._feedback.residual() - self._before
        yield
        self._before = self._feedback.residual() - change
