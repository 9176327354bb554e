"""A run: the training of one model, from its first worker's parameters to the last update."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import ref

import numpy as np

from gradwire_codecs import MalformedUpdateError, Replica, Update
from gradwire_codecs.format.header import INT32_MAX
from gradwire_codecs.replica.replica import FIRST_VALUE_MAX
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.admission import Join
from gradwire_protocol.messages.checkpoint import Checkpoint
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.snapshots import SnapshotAssembly
from gradwire_server.config import RELAY_LIMITS, RelayLimits
from gradwire_server.state.buffer_feed import KeptBuffers
from gradwire_server.state.digests import Digests
from gradwire_server.state.relay import Relay
from gradwire_server.state.replica_copy import ReplicaCopy
from gradwire_server.state.restart import RunRecovery


@dataclass(frozen=True, slots=True)
class LastCheckpoint:
    """What the last checkpoint of a run contains."""

    name: str
    """Of its file."""
    versions: Mapping[int, int]
    finished: bool


@dataclass(slots=True)
class Charge:
    """What a master tells workers of its place among masters; see `terms`."""

    term: int = 1
    """The one that it is in charge of; while it is in charge of none, the highest it has heard."""
    other: str | None = None
    """``host:port`` of the other master."""

    @classmethod
    def of(cls, other: str | None) -> "Charge":
        """Return what a master begins with; one of two has yet to be in charge."""
        return cls(1 if other is None else 0, other)


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
    recovery: RunRecovery | None = None
    """While it comes back from the workers, after the master was started anew."""
    own: "Run | None" = None
    """What the master has of it itself meanwhile: a checkpoint, or a standby's copy."""
    recovered: bool = False
    """Whether it came back so: workers may have had updates that it has not got yet."""
    unclaimed: set[int] = field(default_factory=set)
    """Ranks of workers that were not back when it went on, and still may come."""
    given: set[int] = field(default_factory=set)
    """Ranks that this master has given to new workers. In a run that was recovered, a worker of
    whom nobody knew when it went on may still come back for any other one."""
    stable_told: dict[int, int] = field(default_factory=dict)
    """By rank: what everyone was told last of which updates are stable."""
    has_untold: bool = False
    """Whether somebody is back who may not have been told which updates are stable."""
    kept: LastCheckpoint | None = None
    """What is on the disk of it."""
    charge: Charge = field(default_factory=Charge)
    """Of the master that serves it."""
    digests: Digests | None = None
    """What the replica has to be; None until it is complete."""
    damaged: set[int] = field(default_factory=set)
    """Blocks of the replica that are something else, and could not be mended."""
    buffers: dict[int, KeptBuffers] = field(default_factory=dict)
    """By rank: what the buffers of workers hold; see `buffer_relay`."""
    awaited: bool = False
    """Whether it is from a checkpoint and no worker has joined it yet: no other run takes its
    place."""
    _copy: "ref[ReplicaCopy] | None" = None

    @classmethod
    def begin(cls, name: str, join: Join, limits: RelayLimits = RELAY_LIMITS) -> "Run":
        """Make a run that waits for the parameters of its first worker."""
        relay = Relay(join.layout.elements, limits)
        return cls(name, join.layout, *_unfounded(join), relay)

    @classmethod
    def resume(
        cls, checkpoint: Checkpoint, values: memoryview, limits: RelayLimits = RELAY_LIMITS
    ) -> "Run":
        """Make a run that goes on where a checkpoint ends; its replica is in this memory."""
        replica = Replica(np.frombuffer(values, "<i4"), checkpoint.quantum_exponent)
        relay = Relay(checkpoint.layout.elements, limits)
        relay.go_on_from(checkpoint.versions)
        digests = Digests(replica.values, checkpoint.versions)
        return cls(
            checkpoint.run, checkpoint.layout, replica, None, relay, digests=digests, awaited=True
        )

    def is_that_of(self, join: Join) -> bool:
        """Return whether a worker that is back means this run."""
        return join.run == self.name and self.layout.difference(join.layout) is None

    def begin_again(self, join: Join) -> None:
        """Wait for another worker's parameters: the one that should have sent them is gone.

        They come into the same memory, so there is no question whether there is enough.
        """
        assert self.assembly is not None
        self.assembly.restart()
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
        return self.assembly.accept_block(block)

    def found(self) -> None:
        """Begin with the parameters that are here."""
        self.assembly = None
        self.digests = Digests(self.replica.values, self.relay.versions)

    def take_over(self, other: "Run") -> None:
        """Go on with what another object has of the same run."""
        self.replica, self.assembly, self.kept = other.replica, None, other.kept
        self.relay, self.digests, self.damaged = other.relay, other.digests, other.damaged

    def skip_to(self, rank: int, sequence: int) -> None:
        """Leave out updates that nobody has any more, up to this one."""
        assert self.digests is not None
        self.digests.skip_to(rank, sequence)
        self.relay.skip_to(rank, sequence)

    def apply_update(self, rank: int, update: Update) -> None:
        """Add an update to the replica, or raise `MalformedUpdateError` and change nothing.

        Parameters
        ----------
        rank : int
            Of its origin; it is the next one of that.
        """
        element = self.replica.first_outside(update)
        if element is not None:
            raise MalformedUpdateError(
                f"it takes {self.layout.locate(element)} beyond {INT32_MAX} quanta of "
                f"{self.replica.quantum}: its training diverges"
            )
        self.replica.apply(update)
        assert self.digests is not None
        self.digests.add(rank, self.relay.next_of(rank), update)

    def copy(self) -> ReplicaCopy:
        """Return a copy of the replica, the same for all who ask at one moment."""
        copy = None if self._copy is None else self._copy()
        if copy is None or copy.versions != self.relay.versions:
            assert self.digests is not None
            digests = self.digests.blocks.values.copy()
            values = self.replica.values.copy()
            copy = ReplicaCopy(values, dict(self.relay.versions), digests, self.layout)
            self._copy = ref(copy)
        return copy

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
        return self.assembly is None and self.recovery is None


def _unfounded(join: Join) -> tuple[Replica, SnapshotAssembly]:
    """Return a replica and what fills it: two views of the same memory."""
    assembly = SnapshotAssembly(join.layout.elements)
    return _replica_of(assembly, join), assembly


def _replica_of(assembly: SnapshotAssembly, join: Join) -> Replica:
    return Replica(np.frombuffer(assembly.values, "<i4"), join.quantum_exponent)
