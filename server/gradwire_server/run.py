"""A run: the training of one model, from its first worker's parameters to the last update."""

from dataclasses import dataclass, field

import numpy as np

from gradwire_codecs import Replica
from gradwire_protocol.messages import Join, Layout
from gradwire_protocol.snapshots import SnapshotAssembly
from gradwire_server.relay import Relay


@dataclass(slots=True)
class Run:
    """What a master keeps of a run.

    Made from the request of a worker whose parameters are to start it.
    """

    name: str
    layout: Layout
    replica: Replica
    assembly: SnapshotAssembly | None
    """The first worker's parameters, while they come in."""
    relay: Relay = field(default_factory=Relay)
    finished: bool = False

    @classmethod
    def begin(cls, name: str, join: Join) -> "Run":
        """Make a run that waits for the parameters of its first worker."""
        return cls(name, join.layout, *_unfounded(join))

    def begin_again(self, join: Join) -> None:
        """Wait for another worker's parameters: the one that should have sent them is gone."""
        self.replica, self.assembly = _unfounded(join)

    def snapshot(self) -> bytes:
        """Return the replica as it travels: a copy, little-endian int32."""
        return self.replica.values.astype("<i4", copy=False).tobytes()

    @property
    def founded(self) -> bool:
        """Whether the replica is complete, so that workers can be given it."""
        return self.assembly is None


def _unfounded(join: Join) -> tuple[Replica, SnapshotAssembly]:
    """Return a replica and what fills it: two views of the same memory."""
    assembly = SnapshotAssembly(join.layout.elements)
    return Replica(np.frombuffer(assembly.values, "<i4"), join.quantum_exponent), assembly
