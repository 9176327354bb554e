"""`DeviceReplica`: the shared parameters S in the memory of a device."""

import numpy as np
import torch

from gradwire_codecs.arrays import Int32Array
from gradwire_codecs.cuda import digests
from gradwire_codecs.cuda.streams import SideStream
from gradwire_codecs.replica.digests import MODULUS
from gradwire_codecs.replica.replica import Replica


class DeviceReplica(Replica):
    """A replica in the memory of a device, copied from `replica`; a `DeviceFeedback` changes it."""

    def __init__(self, replica: Replica, stream: SideStream) -> None:
        self.quantum_exponent = replica.quantum_exponent
        self._stream = stream
        self.tensor = torch.tensor(replica.values, dtype=torch.int32, device=stream.device)
        """Shape (N,), dtype int32."""

    def __len__(self) -> int:
        """Return N."""
        return self.tensor.numel()

    @property
    def values(self) -> Int32Array:  # type: ignore[override]
        """A read-only copy on the host, for rare uses: sending all of S, and comparing it."""
        with self._stream.turn():
            values: Int32Array = np.array(self.tensor.numpy(force=True))
        values.flags.writeable = False
        return values

    def values_at(self, where: slice) -> Int32Array:
        """Return a copy of some elements, shape (n,), in the memory of the host."""
        with self._stream.turn():
            values: Int32Array = self._stream.fetch(self.tensor[where].contiguous()).numpy().copy()
        return values

    def digest(self) -> int:
        """Return 64 bits that are the same for equal replicas; see `digests`."""
        with self._stream.turn():
            digest = digests.digest_of(self.tensor)
            return (len(self) + int(self._stream.fetch(digest).item())) % MODULUS
