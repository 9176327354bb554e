"""`SimulatedWorker`: a worker on a `SimulatedNetwork`, without threads and without a model.

Everything else is the production code: `Worker`, `Endpoint`, `Inbox`, the codec. A training step
changes the parameters at random, encodes what has reached the threshold, and applies what came in.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from gradwire.errors import GradwireError
from gradwire.features.buffers import BufferSharing
from gradwire.replica.repair import Repair
from gradwire.replica.stats import Tally
from gradwire.threads.clocks import Clocks
from gradwire.threads.inbox import Inbox, complete
from gradwire.threads.membership import Comparison
from gradwire.worker.listener import Rebase
from gradwire.worker.peer_sequences import Sum
from gradwire.worker.update_log import OwnUpdate, OwnUpdateLog
from gradwire.worker.worker import Worker
from gradwire_codecs import NOTHING, LocalFeedback, Replica, SharedFeedback, multiple_of
from gradwire_protocol import Credentials, Endpoint
from gradwire_protocol.messages.admission import CODEC_VERSION, Join, Peer, Welcome
from gradwire_protocol.messages.fields import WORKER_ID_BYTES, covers, total
from gradwire_protocol.messages.replicas import Blocks
from gradwire_protocol.messages.states import Buffers
from gradwire_protocol.messages.updates import EncodedUpdate
from support.feedbacks import QuarterFeedback, counts_for
from support.network import Host
from support.simulated_buffers import LAYOUT as BUFFERS

if TYPE_CHECKING:
    from support.training import SimulatedRun

CHANGE = 1e-3
"""Standard deviation of what a step changes."""


class SimulatedWorker:
    """A worker without threads: the session's part, in a few lines."""

    sharing: BufferSharing | None = None
    buffers: Mapping[int, Buffers] = MappingProxyType({})
    clock = 0
    """Its steps, where it tells them with its updates; 0 where it does not."""
    clock_told = 0

    def __init__(
        self, run: "SimulatedRun", name: str, feedback: str, credentials: Credentials | None = None
    ) -> None:
        self.name = name
        self.feedback_kind = feedback
        self.change = CHANGE
        """Standard deviation of what its steps change."""
        self.trains = slice(None)
        """The parameters that its steps change."""
        self.run = run
        self.inbox = Inbox(run.elements, bytes_max=2_000)
        self.welcome: Welcome | None = None
        self.versions: dict[int, int] = {}
        self.peers: Sequence[Peer] = ()
        self.live = False
        self.finished: Mapping[int, int] | None = None
        self.done = self.leaving = self.closed = False
        self.error: GradwireError | None = None
        self.stable: Mapping[int, int] = {}
        self.lost: str | None = None
        self.module = run.new_buffers(name)
        """With the buffers that are averaged, if this one has any."""
        self.stopping = False
        self.later: Inbox | None = None
        """What comes after a replica that is on its way."""
        self.comparison: Comparison | None = None
        self.mending = False
        """Whether damage is being mended."""
        self.sums = self.reconnections = self.rebases = 0
        self.kept, self.clocks = OwnUpdateLog(), Clocks()
        self.delivered = self.sent = self.applied = 0
        self.came_in = np.zeros(run.elements)
        """What the training steps have changed."""
        self.began = np.zeros(run.elements)
        """The parameters it began with."""
        self.random = np.random.default_rng(run.network.random.randrange(2**32))
        request = Join(
            run=None,
            worker_id=run.network.random.randbytes(WORKER_ID_BYTES),
            name=name,
            rank=None,
            codec=CODEC_VERSION,
            quantum_exponent=-24,
            layout=run.layout,
            gives_state=run.gives_state,
        )
        self.initial = self.random.normal(0, 0.1, run.elements).astype(np.float32)
        self.worker = Worker(
            request,
            self,
            run.dialled,
            random=run.network.random.random,
            buffers=None if self.module is None else BUFFERS,
        )
        self.endpoint = Endpoint(
            run.config, random_bytes=run.network.random.randbytes, credentials=credentials
        )
        self.worker.connect(self.endpoint, run.dialled, run.network.now)
        self.host: Host = run.network.add(name, self.endpoint, self.worker)

    @property
    def now(self) -> float:
        """The time on its clock."""
        return self.run.network.now + self.host.ahead

    # What the network thread would call.

    def on_welcome(self, welcome: Welcome) -> None:
        self.welcome = welcome
        self.peers = welcome.roster
        if welcome.founder:
            replica = Replica.from_parameters(self.initial, welcome.quantum_exponent)
            self.run.initial = replica.values.copy()
            self.run.network.after(0, lambda: self.found(replica))

    def found(self, replica: Replica) -> None:
        self.replica = replica
        self.worker.found(replica.values.astype("<i4").tobytes(), self.now)
        self.run.network.turn(self.host)

    def on_snapshot_progress(self, elements: int) -> None:
        assert 0 < elements <= self.run.elements

    def on_live(self, snapshot: memoryview | None) -> None:
        assert self.welcome is not None
        if snapshot is not None:
            values = np.frombuffer(snapshot, "<i4").astype(np.int32)
            self.replica = Replica(values, self.welcome.quantum_exponent)
        # Half of those with local feedback have but a quarter of the residual in their parameters.
        local = QuarterFeedback if self.welcome.rank % 2 else LocalFeedback
        kind = local if self.feedback_kind == "local" else SharedFeedback
        self.feedback = kind(np.zeros(self.run.elements, np.float32), self.replica)
        self.feedback.settle()
        self.began = self.feedback.parameters.astype(np.float64)
        self.snapshot_values = self.replica.values.copy()
        self.versions = dict(self.welcome.versions)
        self.versions[self.welcome.rank] = self.welcome.sequence
        self.mender = Repair(
            self.feedback,
            self.welcome.rank,
            self.versions,
            self.kept,
            self.run.layout,
            seconds=self.run.digest_seconds,
            clock=lambda: self.run.network.now,
        )
        for rank, sequence in self.versions.items():
            for earlier in range(1, sequence + 1):
                self.run.ledger.note(self.name, rank, earlier)
        if self.module is not None:
            self.sharing = BufferSharing(
                self.module,
                steps=self.run.buffer_steps or 0,
                rank=self.welcome.rank,
                others=self,
                send=None if self in self.run.observers else self.share_buffers,
                tally=Tally(),
            )
        self.live = True
        self.reconnections += self.lost is not None
        self.lost = None

    def on_lost(self, reason: str) -> None:
        self.lost = reason
        self.mending, self.comparison = False, None

    def on_blocks(self, blocks: Blocks, *, missed: bool) -> None:
        self.comparison = Comparison(blocks, missed=missed)
        self.mending = not missed
        if missed:  # nobody makes steps that count meanwhile
            self.run.network.after(0, self.pull)

    def on_mended(self, rebase: Rebase | None) -> None:
        if rebase is not None:
            self.inbox.mend(rebase)
        self.mending = False

    def on_wanted(self) -> None:
        self.run.network.after(0, self.found_again)

    def found_again(self) -> None:
        if self.host.alive:
            self.pull()
            values = self.replica.values.astype("<i4").tobytes()
            self.worker.found_again(values, dict(self.versions), self.now)
            self.run.network.turn(self.host)

    def on_resync(self, versions: Mapping[int, int]) -> None:
        self.later = Inbox(self.run.elements, bytes_max=2_000)
        self.fence = versions

    def on_anew(self) -> None:
        self.later = None
        self.inbox.take()

    def on_part(self, values: memoryview, blocks: Blocks) -> tuple[int, ...]:
        assert self.later is not None
        before, self.inbox, self.later = self.inbox, self.later, None
        return complete(values, before.take(), blocks)

    def on_back(self, rebase: Rebase | None) -> None:
        if rebase is not None:
            assert self.later is not None
            self.inbox.restart(rebase, self.later)
            self.rebases += 1
        self.lost = self.later = self.comparison = None
        self.mender.note_reconnection()
        self.reconnections += 1

    def on_update(self, rank: int, update: EncodedUpdate) -> None:
        later = self.later is not None and update.sequence > self.fence.get(rank, 0)
        (self.later if self.later is not None and later else self.inbox).put(rank, update)
        self.clocks.hear({rank: update.clock} if update.clock else {})

    def on_sum(self, total: Sum) -> None:
        (self.inbox if self.later is None else self.later).put_sum(total)
        self.clocks.hear(total.clocks)
        self.sums += 1

    def on_correction(self, correction: EncodedUpdate) -> None:
        assert (self.rank, correction.sequence) not in self.run.ledger.corrections
        self.run.ledger.corrections[self.rank, correction.sequence] = correction.body
        self.inbox.put(None, correction)

    def on_delivered(self, size: int) -> None:
        self.delivered += 1

    def on_roster(self, peers: Sequence[Peer]) -> None:
        self.peers = peers

    def on_buffers(self, buffers: Mapping[int, Buffers]) -> None:
        self.buffers = buffers

    def on_stable(self, versions: Mapping[int, int]) -> None:
        assert covers(versions, self.stable), "what was stable is so for ever"
        self.stable = versions

    def on_finished(self, versions: Mapping[int, int]) -> None:
        self.finished = versions

    def on_stopping(self, reason: str) -> None:
        self.stopping = True
        self.run.network.after(0, lambda: self.comply(reason))

    def comply(self, reason: str) -> None:
        self.worker.comply(reason, self.run.network.now)
        self.run.network.turn(self.host)

    def on_closed(self, error: GradwireError | None) -> None:
        self.closed = True
        self.error = error

    # What the training thread would do.

    @property
    def rank(self) -> int:
        assert self.welcome is not None
        return self.welcome.rank

    @property
    def others(self) -> set[int]:
        """The ranks of the others that train, as far as it knows."""
        return {peer.rank for peer in self.peers if not peer.finished} - {self.rank}

    @property
    def is_gone(self) -> bool:
        """Whether it is dead, or leaving, or has left."""
        return self.closed or self.leaving or not self.host.alive

    def step(self) -> None:
        """Train, encode, push, pull."""
        if self.module is not None and self.sharing is not None:
            self.module.train()
            self.sharing.before_push()
        self.step_parameters()
        if self.sharing is not None:
            self.sharing.stepped()

    def share_buffers(self, buffers: Buffers) -> None:
        self.worker.share_buffers(buffers, self.now)
        self.run.network.turn(self.host)

    def step_parameters(self) -> None:
        parameters = self.feedback.parameters
        before = parameters.astype(np.float64)
        change = self.random.normal(0, self.change, parameters.size).astype(np.float32)
        parameters[self.trains] += change[self.trains] / counts_for(self.feedback)
        self.came_in += (parameters - before) * counts_for(self.feedback)
        if self.lost is not None or self.stopping:
            return  # what was trained waits in the residual
        self.push(self.feedback.encode(multiple_of(2 * CHANGE, float(self.replica.quantum))))
        self.pull()

    def push(self, bodies: list[bytes]) -> None:
        if not bodies and self.clock_told != self.clock:
            bodies = [NOTHING]
        self.clock_told = self.clock
        based_on = total(self.versions, without=self.rank)
        for body in bodies:
            self.versions[self.rank] += 1
            self.run.ledger.encoded(self.name, self.rank, self.versions[self.rank], body)
            self.kept.put(OwnUpdate(self.versions[self.rank], based_on, body))
        self.sent += len(bodies)
        self.worker.push(bodies, based_on, self.now, clock=self.clock)
        self.run.network.turn(self.host)

    def pull(self) -> None:
        if not self.host.alive or self.closed:
            return
        arrivals = self.inbox.take()
        if arrivals.rebase is not None:
            self.mender.mend(arrivals.rebase)
            if arrivals.rebase.missed:
                self.rebase(arrivals.rebase.blocks.versions)
        if arrivals.conflated is not None:
            self.mender.note_sum(arrivals.conflated_versions)
            self.feedback.apply_sum(arrivals.conflated)
            for rank, sequence in arrivals.conflated_versions.items():
                for each in range(self.versions.get(rank, 0) + 1, sequence + 1):
                    self.run.ledger.note(self.name, rank, each)
                    self.applied += 1
                self.versions[rank] = sequence
        for origin, update in arrivals.updates:
            self.feedback.apply(update.body)
            if origin is None:
                self.mender.note_correction(update)
                continue
            self.mender.note(origin, update)
            last = self.versions.get(origin, 0)
            assert update.sequence > last, f"{self.name} got {origin}/{update.sequence} twice"
            assert update.sequence == last + 1, f"{self.name} got {origin}/{last + 1} never"
            self.run.ledger.note(self.name, origin, update.sequence)
            self.versions[origin] = update.sequence
            self.applied += 1
        self.check()

    def check(self) -> None:
        """Compare the replica with the master's, if there is something to compare with."""
        network, comparison = self.run.network, self.comparison
        if comparison is not None:
            blocks = comparison.blocks
            numbers = self.mender.compare(blocks, self.versions, missed=comparison.missed)
            if numbers is not None:
                self.comparison = None
                self.worker.want(blocks, numbers, network.now)
        elif self.lost is None:
            digest = self.mender.digest(self.versions)
            if digest is not None:
                self.worker.tell_digest(digest, network.now)
        network.turn(self.host)

    def rebase(self, versions: Mapping[int, int]) -> None:
        """Note which updates are in the replica that it has not seen."""
        for rank in versions.keys() | self.versions.keys():
            if rank != self.rank:
                sequence = versions.get(rank, 0)
                for each in range(sequence + 1, self.versions.get(rank, 0) + 1):
                    # A master started anew has the replica of one worker; others may be ahead of
                    # it in what is then sent again.
                    assert self.run.masters > 1 or self.run.takes_back, "nothing is taken back"
                    self.run.ledger.take_back(self.name, rank, each)
                    self.applied -= 1
                for each in range(self.versions.get(rank, 0) + 1, sequence + 1):
                    self.run.ledger.note(self.name, rank, each)
                    self.applied += 1
        for rank, sequence in self.versions.items():
            taken_back = range(versions.get(rank, 0) + 1, sequence + 1)
            if rank != self.rank and taken_back:
                assert self.run.master.run is not None
                assert self.run.master.run.recovered, "nothing is taken back"
                for each in taken_back:  # their origins send them again
                    del self.run.ledger.applied[self.name, rank, each]
        self.versions = {**versions, self.rank: self.versions[self.rank]}

    def finish(self) -> None:
        """Send the rest and say so."""
        if self.sharing is not None:
            self.sharing.finishing()
        self.push(self.feedback.encode(1, magnitude_max=2**31 - 1))
        self.worker.finish(self.now)
        self.run.network.turn(self.host)

    def try_to_complete(self) -> bool:
        """Apply what there is; leave when that is all there is."""
        self.pull()
        finished = self.finished is not None and covers(self.versions, self.finished)
        if not self.done and finished and not self.mending:
            self.residual_at_the_end = self.feedback.residual().astype(np.float64)
            self.feedback.settle()
            if self.sharing is not None:
                self.sharing.finished()
            self.done = True
            self.leave()
        return self.done

    def leave(self) -> None:
        self.leaving = True
        self.worker.leave("finished", self.now)
        self.run.network.turn(self.host)
