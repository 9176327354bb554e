"""`DeviceReplica`: the shared parameters S in the memory of a device."""

from typing import Any

import numpy.typing as npt
import torch

from gradwire_codecs.arrays import Int32Array
from gradwire_codecs.replica.replica import Replica


class DeviceReplica(Replica):
    """A replica in the memory of a device, copied from `replica`; a `DeviceFeedback` changes it.

    What is rare copies all of it to the host: sending it, comparing it, its digest.
    """

    def __init__(self, replica: Replica, device: torch.device) -> None:
        self.quantum_exponent = replica.quantum_exponent
        self.tensor = to_device(replica.values, device)
        """Shape (N,), dtype int32."""

    def __len__(self) -> int:
        """Return N."""
        return self.tensor.numel()

    @property
    def values(self) -> Int32Array:  # type: ignore[override]
        """A read-only copy on the host."""
        values = self.values_at(slice(None))
        values.flags.writeable = False
        return values

    def values_at(self, where: slice) -> Int32Array:
        """Return a copy of some elements, shape (n,), in the memory of the host."""
        values: Int32Array = self.tensor[where].to("cpu", copy=True).numpy()
        return values


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device."""
    copy = torch.tensor(array)
    if device.type == "cuda":
        # From other memory, the copy would wait for all that the device has been given to do.
        copy = copy.pin_memory()
    return copy.to(device, non_blocking=True)
