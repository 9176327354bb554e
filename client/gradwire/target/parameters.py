"""`Parameters`: what a session trains, seen as one flat float32 vector.

Each kind of target has an adapter: numpy arrays here, torch in `torch_parameters`, which is
imported only where torch already is. `named_errors` turns the errors of the codecs, which have
positions in the vector, into ours, which have names.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gradwire.errors import NonFiniteError, OutOfRangeError, UsageError
from gradwire.settings.training import Feedback as FeedbackSetting
from gradwire_codecs import Feedback, LocalFeedback, Replica, SharedFeedback
from gradwire_codecs import NonFiniteError as NotFinite
from gradwire_codecs import OutOfRangeError as OutOfRange
from gradwire_codecs.arrays import Float32Array, describe
from gradwire_protocol.messages.layout import Layout, Tensor

Writer: TypeAlias = Callable[[Float32Array], None]
"""Sets all values of one tensor from a flat array."""


class Places(NamedTuple):
    """How to write the tensors of a target in place."""

    layout: Layout
    writers: Sequence[Writer]
    """One for each tensor of the layout."""


class Parameters(Protocol):
    """A target and its flat vector."""

    layout: Layout

    @property
    def vector(self) -> Float32Array:
        """Shape (N,). Shares memory with the target where it can; else it is a copy."""

    def gather(self) -> None:
        """Copy changes of the target into `vector`."""

    def sample(self, parts: Sequence[slice]) -> Float32Array:
        """Return a copy of some elements of `vector`, part by part: shape (n,)."""

    def changed(self) -> bool:
        """Return whether the target may have changed since the last call, as `gather` saw it.

        False means that a step has trained nothing.
        """

    def scatter(self) -> None:
        """Copy changes of `vector` into the target."""

    def set(self, values: Float32Array) -> None:
        """Set the vector, of which these are all values, and the target."""

    def take_gradient(self) -> Float32Array | None:
        """Return the target's gradient, shape (N,), and clear it; None where there is none.

        `UsageError` if targets of this kind have no gradients.
        """

    def like_target(self, vector: Float32Array) -> Any:
        """Return a flat vector as an array or tensor, as the target is."""

    def to_array(self, change: Any) -> npt.NDArray[Any]:
        """Return an array or tensor as an array.

        `TypeError`, `ValueError` or `RuntimeError` if numpy cannot read it.
        """

    def feedback(self, replica: Replica, *, kind: FeedbackSetting) -> Feedback:
        """Return a feedback over the vector, wherever its memory is."""


class NumpyParameters:
    """A float32 array of any shape, C-contiguous and writeable, trained in place."""

    def __init__(self, array: Float32Array) -> None:
        if (
            array.dtype != np.float32
            or not array.flags.c_contiguous
            or not array.flags.writeable
            or not array.size
        ):
            raise UsageError(
                "a numpy target has to be a float32 array, C-contiguous, writeable and not empty; "
                f"this is {describe(array)}"
            )
        self.layout = Layout((Tensor("array", array.shape),))
        self.vector: Float32Array = array.reshape(-1)

    def gather(self) -> None:
        """Do nothing: the memory is the same."""

    def sample(self, parts: Sequence[slice]) -> Float32Array:
        """Return a copy of some elements."""
        return np.concatenate([self.vector[part] for part in parts])

    def changed(self) -> bool:
        """Return True: an array counts no changes."""
        return True

    def scatter(self) -> None:
        """Do nothing: the memory is the same."""

    def set(self, values: Float32Array) -> None:
        """Set the array."""
        self.vector[:] = values

    def take_gradient(self) -> Float32Array | None:
        """Raise `UsageError`: an array has none."""
        raise UsageError("an array has no gradient: session.push(gradient) in place of step()")

    def like_target(self, vector: Float32Array) -> Float32Array:
        """Return the vector."""
        return vector

    def to_array(self, change: Any) -> npt.NDArray[Any]:
        """Return the change as numpy reads it."""
        return np.asarray(change)

    def feedback(self, replica: Replica, *, kind: FeedbackSetting) -> Feedback:
        """Return a feedback over the vector."""
        return host_feedback(self.vector, replica, kind=kind)


def host_feedback(vector: Float32Array, replica: Replica, *, kind: FeedbackSetting) -> Feedback:
    """Return a feedback over the vector, of the kind that the setting `feedback` says."""
    found = LocalFeedback if kind == "local" else SharedFeedback
    return found(vector, replica)


@contextmanager
def named_errors(layout: Layout, quantum: float) -> Iterator[None]:
    """Name the parameter in the codecs' errors from inside the block."""
    try:
        yield
    except NotFinite as error:
        raise NonFiniteError(
            f"parameter {layout.locate(error.index)} is {error.value}; nothing was sent"
        ) from None
    except OutOfRange as error:
        raise OutOfRangeError(
            f"parameter {layout.locate(error.index)} is {error.value:g}; the quantum of this "
            f"run, {quantum:g}, expresses magnitudes below {error.limit:g}. A run keeps "
            "its quantum: restart the master, or name another run (run=...), with "
            f"quantum={min(4 * quantum, 1.0)!r}"
        ) from None
