"""A run: the training of one model, from its first worker's parameters to the last update."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gradwire_codecs import Replica
from gradwire_codecs.replica import FIRST_VALUE_MAX
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.checkpoint import Checkpoint
from gradwire_protocol.layout import Layout
from gradwire_protocol.messages import Join, Snapshot
from gradwire_protocol.snapshots import SnapshotAssembly
from gradwire_server.recovery import Recovery
from gradwire_server.relay import Relay
from gradwire_server.update_log import UPDATE_LOG_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Kept:
    """What the last checkpoint of a run contains."""

    name: str
    """Of its file."""
    versions: Mapping[int, int]
    finished: bool


@dataclass(slots=True)
class Run:
    """What a master keeps of a run.

    Made from the request of a worker whose parameters are to start it, or from a checkpoint.
    """

    name: str
    layout: Layout
    replica: Replica
    assembly: SnapshotAssembly | None
    """The first worker's parameters, while they come in."""
    relay: Relay
    finished: bool = False
    recovery: Recovery | None = None
    """While it comes back from the workers, after the master was started anew."""
    recovered: bool = False
    """Whether it came back so: workers may have had updates that it has not got yet."""
    unclaimed: set[int] = field(default_factory=set)
    """Ranks of workers that were not back when it went on, and still may come."""
    stable_told: dict[int, int] = field(default_factory=dict)
    """By rank: what everyone was told last of which updates are stable."""
    kept: Kept | None = None
    """What is on the disk of it."""
    awaited: bool = False
    """Whether it is from a checkpoint and no worker has joined it yet: no other run takes its
    place."""

    @classmethod
    def begin(cls, name: str, join: Join, log_bytes_max: int = UPDATE_LOG_BYTES_MAX) -> "Run":
        """Make a run that waits for the parameters of its first worker."""
        return cls(name, join.layout, *_unfounded(join), Relay(log_bytes_max))

    @classmethod
    def resume(cls, checkpoint: Checkpoint, values: memoryview) -> "Run":
        """Make a run that goes on where a checkpoint ends; its replica is in this memory."""
        replica = Replica(np.frombuffer(values, "<i4"), checkpoint.quantum_exponent)
        relay = Relay()
        relay.go_on_from(checkpoint.versions)
        return cls(checkpoint.run, checkpoint.layout, replica, None, relay, awaited=True)

    def begin_again(self, join: Join) -> None:
        """Wait for another worker's parameters: the one that should have sent them is gone.

        They come into the same memory, so there is no question whether there is enough.
        """
        assert self.assembly is not None
        self.assembly.begin_again()
        self.replica = _replica_of(self.assembly, join)

    def add_first(self, block: Snapshot) -> bool:
        """Take a block of the first parameters; return whether that is all of them.

        Raises
        ------
        InvalidMessageError
            If it does not fit, or an element is so large that the run could not start with it. As
            they are integers, there is no NaN and no infinity among them.
        """
        assert self.assembly is not None
        values = np.frombuffer(block.values, "<i4", count=len(block.values) // 4)
        for value in (int(values.min()), int(values.max())):
            if abs(value) > FIRST_VALUE_MAX and self.recovery is None:
                raise InvalidMessageError(
                    f"first parameters with {value} quanta; the limit is {FIRST_VALUE_MAX}: choose "
                    "a larger quantum"
                )
        return self.assembly.add(block)

    def snapshot(self) -> bytes:
        """Return the replica as it travels: a copy, little-endian int32."""
        return self.replica.values.astype("<i4", copy=False).tobytes()

    @property
    def returning(self) -> frozenset[int]:
        """Ranks that somebody may come back for of whom those know who are back."""
        if self.recovery is None:
            return frozenset()
        known = [resume.versions for resume in self.recovery.returned.values()]
        return frozenset().union(*known)

    @property
    def founded(self) -> bool:
        """Whether the replica is complete, so that workers can be given it."""
        return self.assembly is None


def _unfounded(join: Join) -> tuple[Replica, SnapshotAssembly]:
    """Return a replica and what fills it: two views of the same memory."""
    assembly = SnapshotAssembly(join.layout.elements)
    return _replica_of(assembly, join), assembly


def _replica_of(assembly: SnapshotAssembly, join: Join) -> Replica:
    return Replica(np.frombuffer(assembly.values, "<i4"), join.quantum_exponent)
