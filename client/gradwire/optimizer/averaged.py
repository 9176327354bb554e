"""`Averaged`: an optimizer's state as elements of the replica, which rounds average."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.modes.kept_state import KeptState


class Averaged(Protocol):
    """The state of an optimizer, and its elements behind those of the parameters."""

    kept: KeptState
    """What the optimizer keeps."""

    def read(self) -> None:
        """Set the elements to the state of the optimizer; 0 where it has none."""

    def write(self) -> None:
        """Set the state of the optimizer to that of the elements."""


Averages: TypeAlias = Callable[[KeptState, slice, Float32Array, float], Averaged]
"""Makes one of what the run averages, the part of the model that a replica is of, the elements (a
view of shape (n,)) and the replica's quantum. It raises `UsageError` if the optimizer keeps
something else."""
