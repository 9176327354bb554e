"""`ScaledChange`: multiplies what a step has changed, where no learning rate does it.

Without an optimizer, or with one that does not step in proportion to its learning rate, the change
itself is multiplied before it is encoded. The change since the last step is what the residual has
grown by: updates of peers move parameters and replica alike, and leave the residual as it is. So a
copy of the residual is kept, 4 bytes for each parameter, and no change of another worker is
multiplied.

What stays in the residual was multiplied by the step that made it, and is not multiplied again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from gradwire_codecs import Feedback


class ScaledChange:
    """Multiplies what has changed since the last step by a factor."""

    def __init__(self, feedback: Feedback, factor: Callable[[], float]) -> None:
        self._feedback = feedback
        self._factor = factor
        self._before = feedback.residual()

    def apply(self) -> None:
        """Multiply what has changed; call `note` after it is sent or deferred."""
        factor = self._factor()
        if factor != 1.0:
            self._feedback.add_growth(self._before, np.float32(factor - 1.0))

    def note(self) -> None:
        """Note the residual: the next change begins here."""
        self._feedback.read_residual(self._before)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Do not count what is done to the residual in the block as a change."""
        change = self._feedback.residual() - self._before
        yield
        self._before = self._feedback.residual() - change
