"""`WithState`: a target beside the state of an optimizer, as one flat vector.

The state is an `Averaged`: elements behind those of the parameters, which rounds average.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gradwire.settings.training import Feedback as FeedbackSetting
from gradwire.target.parameters import Parameters, host_feedback
from gradwire_codecs import Feedback, Replica
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.modes.kept_state import KeptState


class WithState:
    """`Parameters` of a target, and behind them elements that it does not have.

    The vector is in the memory of the host, wherever the target is, and is a copy.

    Parameters
    ----------
    layout : Layout
        Of the replica. It begins with the layout of the target.
    """

    def __init__(self, target: Parameters, layout: Layout) -> None:
        self.layout = layout
        self._target = target
        self._own = target.layout.elements
        self.vector: Float32Array = np.zeros(layout.elements, np.float32)
        self.gather()

    @property
    def state(self) -> Float32Array:
        """A view of the elements behind those of the target."""
        return self.vector[self._own :]

    def gather(self) -> None:
        """Copy changes of the target into the vector."""
        self._target.gather()
        self.vector[: self._own] = self._target.vector

    def sample(self, parts: Sequence[slice]) -> Float32Array:
        """Return a copy of some elements."""
        return np.concatenate([self.vector[part] for part in parts])

    def changed(self) -> bool:
        """Return whether the target may have changed since the last call."""
        return self._target.changed()

    def scatter(self) -> None:
        """Copy changes of the vector into the target."""
        self._target.set(self.vector[: self._own])

    def set(self, values: Float32Array) -> None:
        """Set the vector and the target."""
        self.vector[:] = values
        self.scatter()

    def take_gradient(self) -> Float32Array | None:
        """Return the gradient of the target: shape (N,), without the state."""
        return self._target.take_gradient()

    def like_target(self, vector: Float32Array) -> Any:
        """Return the target's part of a vector, as the target is."""
        return self._target.like_target(vector[: self._own])

    def to_array(self, change: Any) -> npt.NDArray[Any]:
        """Return an array or tensor as an array."""
        return self._target.to_array(change)

    def feedback(self, replica: Replica, *, kind: FeedbackSetting) -> Feedback:
        """Return a feedback over the vector."""
        return host_feedback(self.vector, replica, kind=kind)


class Averaged(Protocol):
    """The state of an optimizer, and its elements behind those of the parameters."""

    kept: KeptState
    """What the optimizer keeps."""

    def read(self) -> None:
        """Set the elements to the state of the optimizer; 0 where it has none."""

    def write(self) -> None:
        """Set the state of the optimizer to that of the elements."""


Averages: TypeAlias = Callable[[KeptState, Layout, Float32Array, float], Averaged]
"""Makes one of what the run averages, the model, the elements (a view of shape (n,)) and the
replica's quantum. It raises `UsageError` if the optimizer keeps something else."""
