"""`Gradients`: what a worker does in the mode ``central``: it contributes gradients.

The master's optimizer makes a step by them, and the step comes as a result. So the parameters are
those of the replica, always, and what a contribution has left of a gradient waits in a vector of
its own.
"""

from typing import Any

import numpy as np

from gradwire.errors import DivergedError, UsageError
from gradwire.participant.contributing import Contributing
from gradwire_codecs import NonFiniteError, check_finite
from gradwire_codecs.arrays import Float32Array


class Gradients(Contributing):
    """The gradients of one worker."""

    def flush(self, portion: float | None = None) -> None:
        """Send nothing: a step by what is left of gradients would be one step more."""

    def take_uncontained(self) -> None:
        """Return None: gradients are no part of the parameters."""

    # Private.

    def _train(self, change: Any) -> bool:
        """Add the gradient of the target, or the one that is handed over; return if there is one.

        Raises
        ------
        UsageError
            If the script has changed the parameters itself.
        DivergedError
            If the gradient holds a NaN or an infinity, or is too large.
        """
        self._check_unchanged()
        parameters = self._shared.parameters
        gradient = parameters.take_gradient() if change is None else self._flat(change)
        if gradient is None:
            return False
        self._check_values(gradient)
        self._feedback.add_change(gradient)
        return True

    def _purpose(self) -> str:
        assert self.mode.optimizer is not None
        return f"the master's {self.mode.optimizer.name} to step"

    def _based_on(self) -> int:
        """Return how many steps of the master's optimizer the parameters contain."""
        return max(int(self._shared.feedback.replica.values_at(slice(-1, None))[0]), 0)

    def _check_unchanged(self) -> None:
        shared = self._shared
        shared.parameters.gather()
        if shared.parameters.changed() and shared.feedback.residual().any():
            assert self.mode.optimizer is not None
            raise UsageError(
                "the script has changed the parameters; in this run the master does, with "
                f"{self.mode.optimizer.name}: leave out optimizer.step(), and load a checkpoint "
                "before joining"
            )

    def _check_values(self, gradient: Float32Array) -> None:
        layout, optimizer = self._shared.parameters.layout, self.mode.optimizer
        assert optimizer is not None
        try:
            check_finite(gradient)
        except NonFiniteError as error:
            raise DivergedError(
                f"the gradient of {layout.locate(error.index)} is {error.value}; nothing was sent. "
                "A lower learning rate, or a warm-up, may help: see the mode's lr and warm_up"
            ) from None
        at = int(np.abs(gradient).argmax())
        if abs(gradient[at]) >= optimizer.gradient_max:
            raise DivergedError(
                f"the gradient of {layout.locate(at)} is {gradient[at]:g}; nothing was sent. In "
                f"this run magnitudes are below {optimizer.gradient_max:g}: divide the loss, clip "
                "gradients, or begin the run with a larger gradient_max in its mode"
            )
