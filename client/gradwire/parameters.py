"""`Parameters`: what a session trains, seen as one flat float32 vector.

An adapter for each kind of target: numpy arrays here, torch in `torch_parameters`, which is
imported only where torch already is.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gradwire.errors import UsageError
from gradwire_codecs import Feedback, LocalFeedback, PartialFeedback, Replica, SharedFeedback
from gradwire_codecs.arrays import Float32Array, describe
from gradwire_protocol.layout import Layout, Tensor

if TYPE_CHECKING:
    import torch

Writer: TypeAlias = Callable[[Float32Array], None]
"""Sets all values of one tensor, from a flat array."""


class Places(NamedTuple):
    """The tensors of a target, to be written to and left where they are."""

    layout: Layout
    writers: Sequence[Writer]
    """One for each tensor of the layout."""


class Parameters(Protocol):
    """A target and its flat vector."""

    layout: Layout

    @property
    def vector(self) -> Float32Array:
        """Shape (N,). Where it can, it shares memory with the target; else it is a copy."""

    def gather(self) -> None:
        """Bring what the target changed into `vector`."""

    def changed(self) -> bool:
        """Return whether anything may have changed the target since this was last asked.

        As far as `gather` has seen. No means that a step has trained nothing.
        """

    def scatter(self) -> None:
        """Bring what `vector` changed into the target."""

    def like_target(self, vector: Float32Array) -> Any:
        """Return a flat vector as the kind of thing that the target is made of."""

    def to_array(self, change: Any) -> npt.NDArray[Any]:
        """Return what is of the kind of the target as an array; any other array is returned, too.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            If it is nothing that numpy reads.
        """

    def feedback(self, replica: Replica, *, portion: float, threads: int) -> Feedback:
        """Return a feedback over the vector, wherever its memory is.

        Parameters
        ----------
        replica : Replica
        portion : float
            How much of the residual is in the parameters, 0 to 1.
        threads : int
            How many encode, where the vector is in the memory of the host.
        """


class NumpyParameters:
    """A float32 array, trained in place.

    Parameters
    ----------
    array : ndarray of any shape, dtype float32
        C-contiguous and writeable.
    """

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

    def changed(self) -> bool:
        """Return True: an array counts no changes."""
        return True

    def scatter(self) -> None:
        """Do nothing: the memory is the same."""

    def like_target(self, vector: Float32Array) -> Float32Array:
        """Return the vector."""
        return vector

    def to_array(self, change: Any) -> npt.NDArray[Any]:
        """Return it as numpy reads it."""
        return np.asarray(change)

    def feedback(self, replica: Replica, *, portion: float, threads: int) -> Feedback:
        """Return a feedback over the vector."""
        return host_feedback(self.vector, replica, portion=portion, threads=threads)


def host_feedback(
    vector: Float32Array, replica: Replica, *, portion: float, threads: int
) -> Feedback:
    """Return a feedback over a vector in the memory of the host."""
    if 0.0 < portion < 1.0:
        return PartialFeedback(vector, replica, portion, threads=threads)
    kind = LocalFeedback if portion else SharedFeedback
    return kind(vector, replica, threads=threads)


def parameters_of(target: object) -> Parameters:
    """Return the adapter for a target.

    Raises
    ------
    UsageError
        If it is nothing that can be trained.
    """
    if isinstance(target, np.ndarray):
        return NumpyParameters(target)
    tensors, module = _tensors_of(target)
    from gradwire.torch_parameters import TorchParameters

    return TorchParameters(tensors, module)


def places_of(target: object) -> Places:
    """Return where to write the parameters of a target, none of which is moved for that.

    Raises
    ------
    UsageError
        If it is nothing that can be trained.
    """
    if isinstance(target, np.ndarray):
        parameters = NumpyParameters(target)
        return Places(parameters.layout, [partial(np.copyto, parameters.vector)])
    tensors, _ = _tensors_of(target)
    from gradwire.torch_parameters import layout_of, trained_of, write

    trained = trained_of(tensors)
    return Places(layout_of(trained), [partial(write, tensor) for _, tensor in trained])


def _tensors_of(
    target: object,
) -> "tuple[Sequence[tuple[str, torch.Tensor]], torch.nn.Module | None]":
    """Return the tensors of a target with their names, and the module that they are of."""
    # Whoever passes something of torch has imported it; nobody else has to pay for that.
    torch = sys.modules.get("torch")
    if torch is not None:
        if isinstance(target, torch.nn.Module):
            from gradwire.module_tree import named

            return named(target), target
        if isinstance(target, Sequence) and all(isinstance(t, torch.Tensor) for t in target):
            return [(str(i), tensor) for i, tensor in enumerate(target)], None
    raise UsageError(
        "the target has to be a torch.nn.Module, a list of torch tensors, or a float32 numpy "
        f"array, not {describe(target)}"
    )
