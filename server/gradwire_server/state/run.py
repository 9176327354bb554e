"""A run: one training of one model, from its first worker's parameters to the last update."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakSet

import numpy as np

from gradwire_codecs import MalformedUpdateError, Replica, Update
from gradwire_codecs.arrays import Int32Array
from gradwire_codecs.format.header import INT32_MAX
from gradwire_codecs.replica.replica import FIRST_VALUE_MAX
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.admission import Join
from gradwire_protocol.messages.checkpoint.format import Checkpoint, CheckpointError
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.modes.mode import Mode, model_of
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.snapshots import SnapshotAssembly
from gradwire_protocol.messages.updates import Stable
from gradwire_server.config import RELAY_LIMITS, RelayLimits
from gradwire_server.series.histograms import LayerHistograms
from gradwire_server.series.journal import Journal
from gradwire_server.series.series import Series
from gradwire_server.state.buffer_feed import RankBuffers
from gradwire_server.state.digests import Digests
from gradwire_server.state.relay import Relay
from gradwire_server.state.replica_copy import ReplicaCopy
from gradwire_server.state.restart import RunRecovery
from gradwire_server.state.roster import Parted
from gradwire_server.state.work import WorkLedger
from gradwire_server.updates.optimizer import layout_of, saved_layout
from gradwire_server.updates.rounds import Rounds
from gradwire_server.updates.vetting import Reference


class DivergedUpdateError(MalformedUpdateError):
    """An update takes an element beyond int32: the training of its origin diverges."""


@dataclass(frozen=True, slots=True)
class LastCheckpoint:
    """The last checkpoint of a run."""

    name: str
    """Of the file."""
    versions: Mapping[int, int]
    is_over: bool
    """Whether the run was not to go on after it."""
    buffers_hash: int
    """As `hash_of` returns it."""


def hash_of(buffers: Iterable[bytes]) -> int:
    """Return a number by which to notice that the buffers have changed, without keeping them."""
    return hash(tuple(buffers))


@dataclass(slots=True)
class Leadership:
    """The term of a master, and the address of its standby or primary; see `terms`."""

    term: int = 1
    """While the master is in charge, its own term; else the highest term it has heard of."""
    other: str | None = None
    """``host:port`` of the other master."""

    @classmethod
    def of(cls, other: str | None) -> "Leadership":
        """Return the initial state: a master that has another one is not in charge yet."""
        return cls(1 if other is None else 0, other)


@dataclass(slots=True)
class Run:
    """All that a master keeps of a run."""

    name: str
    layout: Layout
    replica: Replica
    assembly: SnapshotAssembly | None
    """The first worker's parameters, while they arrive."""
    relay: Relay
    finished: bool = False
    ended: bool = False
    """Whether it was ended before it has finished: by order, or to make room for another one."""
    recovery: RunRecovery | None = None
    """Set while a restarted master recovers the run from its workers."""
    local_copy: "Run | None" = None
    """During a recovery: the master's own copy, from a checkpoint or from its time as standby."""
    recovered: bool = False
    """Whether the run was recovered from workers: some may have updates that it lacks."""
    unclaimed: set[int] = field(default_factory=set)
    """Ranks of workers that had not returned when the recovery ended, and still may return."""
    assigned_ranks: set[int] = field(default_factory=set)
    """Ranks that this master has given to new workers. In a recovered run, a worker that no other
    one knew of may still return as any other rank."""
    stable_sent: Stable = field(default_factory=lambda: Stable(0, {}))
    """The last one that was sent to all members."""
    must_repeat_stable: bool = False
    """Whether a worker has returned that may have missed a STABLE."""
    last_checkpoint: LastCheckpoint | None = None
    leadership: Leadership = field(default_factory=Leadership)
    """That of the master that serves the run."""
    journal: Journal = field(default_factory=Journal)
    """That of its master, too."""
    series: Series = field(default_factory=Series)
    """What its workers have logged."""
    histograms: LayerHistograms = field(default_factory=LayerHistograms)
    """How its parameters are distributed, where workers say so."""
    parted: dict[int, Parted] = field(default_factory=dict)
    """By rank, the workers that take part no more."""
    digests: Digests | None = None
    """The digests that replicas must have; None until the first parameters are complete."""
    buffers: dict[int, RankBuffers] = field(default_factory=dict)
    """By rank: the module buffers of workers; see `buffer_relay`."""
    works: dict[str, WorkLedger] = field(default_factory=dict)
    """By name: the items that its workers divide among themselves."""
    items_paused: bool = False
    """Whether no item is granted, by order of an operator."""
    epochs_granted: int | None = None
    """Of how many epochs items are granted, by order of an operator; None for all."""
    stop_reason: str | None = None
    """Why all workers are to end their training; None while they are not."""
    awaits_workers: bool = False
    """Whether the run is from a checkpoint and no worker has joined it yet: no other run may
    replace it."""
    mode: Mode = field(default_factory=Mode)
    rounds: Rounds | None = None
    """What workers contribute, in a mode with rounds."""
    reference: Reference = field(default_factory=Reference)
    """What the norms of updates are compared with."""
    state_reference: Reference = field(default_factory=Reference)
    """That of an optimizer's state, where it is contributed, too."""
    last_results: Sequence[Sequence[Update]] = ()
    """The updates of the last results of another master, which has served the run before: as many
    as the next step of the outer optimizer follows from."""
    _copies: WeakSet[ReplicaCopy] = field(default_factory=WeakSet)

    @classmethod
    def begin(
        cls,
        name: str,
        join: Join,
        limits: RelayLimits = RELAY_LIMITS,
        mode: Mode = Mode(),  # noqa: B008  # immutable
    ) -> "Run":
        """Return a run that waits for the parameters of its first worker."""
        layout = layout_of(join.layout, mode)
        assembly = SnapshotAssembly(layout.elements)
        relay = Relay(layout.elements, limits, has_rounds=mode.has_rounds)
        run = cls(name, layout, _replica_of(assembly, join), assembly, relay, mode=mode)
        run.begin_rounds()  # it takes memory that there has to be
        return run

    @classmethod
    def resume(
        cls,
        checkpoint: Checkpoint,
        values: memoryview,
        limits: RelayLimits = RELAY_LIMITS,
        *,
        buffers: memoryview | None = None,
    ) -> "Run":
        """Return the run of a checkpoint, with `values` as the memory of its replica.

        Its first worker gets `buffers`, those of the file.

        Raises `CheckpointError` if its tensors do not fit its mode.
        """
        mode = checkpoint.mode
        layout = layout_of(model_of(checkpoint.layout), mode)
        if saved_layout(layout, mode) != checkpoint.layout:
            raise CheckpointError(f"its tensors are not those of a run with mode {mode}")
        integers = np.frombuffer(values, "<i4")
        replica = Replica(integers[: layout.elements], checkpoint.quantum_exponent)
        relay = Relay(layout.elements, limits, has_rounds=mode.has_rounds)
        relay.start_from(checkpoint.place, checkpoint.versions)
        run = cls(
            checkpoint.run,
            layout,
            replica,
            None,
            relay,
            mode=mode,
            last_results=_as_results(integers[layout.elements :]),
            works={each.plan.name: WorkLedger(each.plan, each.ledger) for each in checkpoint.works},
            awaits_workers=True,
        )
        run.found()
        if buffers:
            values_of = checkpoint.buffers.from_file(buffers)
            message = checkpoint.buffers.pack_values(0, values_of, final=False)
            run.buffers[0] = RankBuffers(message.pack(), final=False, is_orphan=True)
        return run

    @property
    def parameters(self) -> int:
        """How many elements of the replica are the model's."""
        return model_of(self.layout).elements

    def matches(self, join: Join) -> bool:
        """Return whether a returning worker belongs to this run."""
        return join.run == self.name and self.difference(join.layout) is None

    def difference(self, model: Layout) -> str | None:
        """Describe the first difference of a model from that of the run; None if there is none."""
        return model_of(self.layout).difference(model)

    def restart_founding(self, join: Join) -> None:
        """Wait for another worker's parameters, because the founder has left.

        They go into the same memory, so this cannot fail for want of it.
        """
        assert self.assembly is not None
        self.assembly.restart()
        self.replica = _replica_of(self.assembly, join)

    def add_first_block(self, block: Snapshot) -> bool:
        """Store a block of the first parameters; return whether that was the last one.

        Raises `InvalidMessageError` if it does not fit, or an element is too large to start a run
        with. Elements are integers, so none of them is NaN or infinite.
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
        """Start the run: the first parameters are complete."""
        self.assembly = None
        self.digests = Digests(self.replica.values, self.relay.log.head)
        self.begin_rounds()

    def begin_rounds(self) -> None:
        """In a mode with rounds, begin with none: what is in no result is contributed again."""
        if self.rounds is not None:
            self.rounds.restart(self.relay.versions)
        elif self.mode.has_rounds:
            self.rounds = Rounds(self.mode, self.layout, self.relay.versions)
        if self.rounds is not None:
            self.rounds.remember(self.last_results, self.replica)

    def relayed(self, versions: Mapping[int, int]) -> dict[int, int]:
        """Return the part of a version vector that says which updates were relayed."""
        has_rounds = self.mode.has_rounds
        return {r: s for r, s in versions.items() if r >= WORKERS_MAX or not has_rounds}

    def accepted(self, rank: int) -> int:
        """Return the sequence of the last update that was accepted from a rank."""
        accepted = self.relay.versions if self.rounds is None else self.rounds.accepted
        return accepted.get(rank, 0)

    @property
    def packed_buffers(self) -> tuple[bytes, ...]:
        """The messages with the buffers of all ranks."""
        return tuple(each.packed for each in self.buffers.values())

    def adopt(self, other: "Run") -> None:
        """Take the replica and the relay of another object for the same run."""
        self.replica, self.assembly = other.replica, None
        self.last_checkpoint = other.last_checkpoint
        self.relay, self.digests = other.relay, other.digests
        self.works, self.mode = other.works, other.mode
        self.last_results = other.last_results
        self.buffers = other.buffers | self.buffers

    def skip_to(self, rank: int, sequence: int) -> None:
        """Skip lost updates of a rank, up to this one."""
        self.relay.skip_to(rank, sequence)

    def apply_update(self, update: Update, updates: int = 1) -> None:
        """Add the next entry of the log to the replica, or several as a sum.

        Raises `DivergedUpdateError` if an element would leave the range of 32 bits. The replica is
        unchanged then.
        """
        self.check_range(update)
        self.replica.apply(update)
        assert self.digests is not None
        self.digests.add(update, self.relay.log.head + updates)
        for copy in self._copies:
            copy.on_update(update)

    def check_range(self, update: Update) -> None:
        """Raise `DivergedUpdateError` if an update takes an element beyond the range of 32 bits."""
        element = self.replica.first_outside(update)
        if element is not None:
            quantum = float(self.replica.quantum)
            raise DivergedUpdateError(
                f"it takes {self.layout.locate(element)} from "
                f"{quantum * int(self.replica.values[element]):g} beyond the range of the run, "
                f"which expresses magnitudes below {quantum * (INT32_MAX + 1):g}"
            )

    def copy(self) -> ReplicaCopy:
        """Return a copy of the replica, the same one as long as the replica does not change."""
        versions, position = self.relay.versions, self.relay.log.head
        for copy in self._copies:
            if copy.position == position:
                return copy
        assert self.digests is not None
        digests = self.digests.blocks.values.copy()
        copy = ReplicaCopy(self.replica.values, position, dict(versions), digests, self.layout)
        self._copies.add(copy)
        return copy

    @property
    def claimable_ranks(self) -> frozenset[int]:
        """Ranks a returning worker may still claim, as far as those already back know."""
        if self.recovery is None:
            return frozenset()
        return frozenset(self.recovery.known)

    @property
    def is_over(self) -> bool:
        """Whether the run does not go on when the master is started again."""
        return self.finished or self.ended

    @property
    def founded(self) -> bool:
        """Whether the replica is complete, so that it can be sent to workers."""
        return self.assembly is None and self.recovery is None


def _as_results(step: Int32Array) -> Sequence[Sequence[Update]]:
    """Return an outer optimizer's last step as the result that it was."""
    index = np.flatnonzero(step).astype(np.uint32)
    return [[Update(0, len(step), 1, index, step[index])]] if index.size else []


def _replica_of(assembly: SnapshotAssembly, join: Join) -> Replica:
    """Return a replica in the memory that the assembly fills."""
    return Replica(np.frombuffer(assembly.values, "<i4"), join.quantum_exponent)
