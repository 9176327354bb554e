"""`DeviceReplica`: the shared parameters S in the memory of a device."""

import numpy as np
import torch

from gradwire_codecs.arrays import Int32Array
from gradwire_codecs.cuda import digests
from gradwire_codecs.digests import MODULUS
from gradwire_codecs.replica import Replica


class DeviceReplica(Replica):
    """A replica whose memory is a device's; a `DeviceFeedback` changes it.

    Parameters
    ----------
    replica : Replica
        Copied to the device.
    device : torch.device
    """

    def __init__(self, replica: Replica, device: torch.device) -> None:
        self.quantum_exponent = replica.quantum_exponent
        self.tensor = torch.tensor(replica.values, dtype=torch.int32, device=device)
        """Shape (N,), dtype int32."""

    def __len__(self) -> int:
        """Return N."""
        return self.tensor.numel()

    @property
    def values(self) -> Int32Array:  # type: ignore[override]
        """A copy in the memory of the host, which cannot be written to.

        It is for what is done seldom: giving all of S away, and comparing it with the master's.
        """
        values: Int32Array = np.array(self.tensor.numpy(force=True))
        values.flags.writeable = False
        return values

    def digest(self) -> int:
        """Return 64 bits that prove that two replicas are equal; see `digests`."""
        return (len(self) + digests.digest_of(self.tensor)) % MODULUS
