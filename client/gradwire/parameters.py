"""`Parameters`: what a session trains, seen as one flat float32 vector.

An adapter for each kind of target: numpy arrays here, torch in `torch_parameters`, which is
imported only where torch already is.
"""

import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from gradwire.errors import UsageError
from gradwire_codecs.arrays import Float32Array, describe
from gradwire_protocol.layout import Layout, Tensor


class Parameters(Protocol):
    """A target and its flat vector."""

    layout: Layout
    vector: Float32Array
    """Shape (N,). Where it can, it shares memory with the target."""

    def gather(self) -> None:
        """Bring what the target changed into `vector`."""

    def scatter(self) -> None:
        """Bring what `vector` changed into the target."""

    def like_target(self, vector: Float32Array) -> Any:
        """Return a flat vector as the kind of thing that the target is made of."""


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

    def scatter(self) -> None:
        """Do nothing: the memory is the same."""

    def like_target(self, vector: Float32Array) -> Float32Array:
        """Return the vector."""
        return vector


def parameters_of(target: object) -> Parameters:
    """Return the adapter for a target.

    Raises
    ------
    UsageError
        If it is nothing that can be trained.
    """
    if isinstance(target, np.ndarray):
        return NumpyParameters(target)
    # Whoever passes something of torch has imported it; nobody else has to pay for that.
    torch = sys.modules.get("torch")
    if torch is not None:
        from gradwire.torch_parameters import TorchParameters

        if isinstance(target, torch.nn.Module):
            return TorchParameters(list(target.named_parameters()), target)
        if isinstance(target, Sequence) and all(isinstance(t, torch.Tensor) for t in target):
            return TorchParameters([(str(i), tensor) for i, tensor in enumerate(target)])
    raise UsageError(
        "the target has to be a torch.nn.Module, a list of torch tensors, or a float32 numpy "
        f"array, not {describe(target)}"
    )
