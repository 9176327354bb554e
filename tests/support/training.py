"""Simulated training: a master and workers on a `SimulatedNetwork`, and what must be true of them.

Everything but the threads and the model is the production code: `Master`, `Worker`, `Endpoint`,
`Inbox`, the codec. A worker's training step changes its parameters at random, encodes what has
reached the threshold, and applies what came in.

`Ledger` keeps its own account of every update, from its encoding on, with plain dictionaries, and
what workers and master have in the end is compared with that. `support.invariants` watches the
connections.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from random import Random

import numpy as np

from gradwire.errors import GradwireError
from gradwire.inbox import Inbox, Rebase
from gradwire.kept import Kept, OwnUpdate
from gradwire.membership import Comparison
from gradwire.mending import Mending, complete
from gradwire.origins import Sum
from gradwire.worker import Worker
from gradwire_codecs import LocalFeedback, Replica, SharedFeedback, decode, multiple_of
from gradwire_codecs.arrays import Int32Array
from gradwire_protocol import ConnectionConfig, Credentials, Endpoint, Keyring, Role, RunKey
from gradwire_protocol.layout import Layout, Tensor
from gradwire_protocol.messages import (
    CODEC_VERSION,
    WORKER_ID_BYTES,
    Blocks,
    EncodedUpdate,
    Join,
    Peer,
    Welcome,
    covers,
    total,
)
from gradwire_server.checkpoint_writer import CheckpointWriter
from gradwire_server.config import MasterConfig
from gradwire_server.decoding import Decoder
from gradwire_server.master import Master
from gradwire_server.metrics import ServerMetrics
from gradwire_server.run import Run
from support.invariants import Invariants
from support.network import Host, Link, SimulatedNetwork

MASTER = "master"
CHANGE = 1e-3
"""Standard deviation of what a step changes."""


class Ledger:
    """Every update ever encoded, by (rank, sequence), and who has applied it."""

    def __init__(self) -> None:
        self.updates: dict[tuple[int, int], bytes] = {}
        self.encoders: dict[tuple[int, int], str] = {}
        """Who encoded an update: ranks are used again."""
        self.applied: Counter[tuple[str, int, int]] = Counter()
        self.corrections: dict[tuple[int, int], bytes] = {}
        """What the master told the origin of an update that it has clipped."""

    def encoded(self, worker: str, rank: int, sequence: int, body: bytes) -> None:
        """Note a new update; its origin has it.

        A rank goes on to another worker where the last update accepted from it ended. So a name
        can come twice, if nobody has ever seen what had it first.
        """
        last = self.encoders.get((rank, sequence))
        if last is not None:
            assert self.who_applied(rank, sequence) == [last], f"{rank}/{sequence} was used twice"
            del self.applied[last, rank, sequence]
        self.updates[rank, sequence] = body
        self.encoders[rank, sequence] = worker
        self.note(worker, rank, sequence)

    def note(self, worker: str, rank: int, sequence: int) -> None:
        """Note that a worker has applied an update."""
        self.applied[worker, rank, sequence] += 1
        assert self.applied[worker, rank, sequence] == 1, (
            f"{worker} applied update {rank}/{sequence} twice"
        )

    def take_back(self, worker: str, rank: int, sequence: int) -> None:
        """Note that a worker has not applied an update any more."""
        assert self.applied[worker, rank, sequence] == 1
        del self.applied[worker, rank, sequence]

    def who_applied(self, rank: int, sequence: int) -> list[str]:
        """Return the workers that have applied an update."""
        return [name for name, *update in self.applied if update == [rank, sequence]]

    def cut(self, versions: Mapping[int, int]) -> None:
        """Forget all updates that a version vector does not contain: everybody has lost them."""
        for rank, sequence in [*self.updates]:
            if sequence > versions.get(rank, 0):
                del self.updates[rank, sequence], self.encoders[rank, sequence]
        for name, rank, sequence in [*self.applied]:
            if sequence > versions.get(rank, 0):
                del self.applied[name, rank, sequence]

    def sum_of(self, versions: Mapping[int, int], elements: int) -> Int32Array:
        """Add up the updates that a version vector contains, in the plainest way."""
        values = np.zeros(elements, np.int64)
        for (rank, sequence), body in [*self.updates.items(), *self.corrections.items()]:
            if sequence <= versions.get(rank, 0):
                update = decode(body, elements)
                for i, change in zip(update.index.tolist(), update.change.tolist(), strict=True):
                    values[i] += change
        return values.astype(np.int32)


class SimulatedWorker:
    """A worker without threads: the session's part, in a few lines."""

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
        self.done = False
        self.leaving = False
        self.closed = False
        self.error: GradwireError | None = None
        self.stable: Mapping[int, int] = {}
        self.lost: str | None = None
        self.stopping = False
        self.later: Inbox | None = None
        """What comes after a replica that is on its way."""
        self.comparison: Comparison | None = None
        self.mending = False
        """Whether damage is being mended."""
        self.sums = self.reconnections = self.rebases = 0
        self.kept = Kept()
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
        )
        self.initial = self.random.normal(0, 0.1, run.elements).astype(np.float32)
        self.worker = Worker(request, self, run.dialled, random=run.network.random.random)
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

    def on_live(self, snapshot: bytearray | None) -> None:
        assert self.welcome is not None
        if snapshot is not None:
            values = np.frombuffer(snapshot, "<i4").astype(np.int32)
            self.replica = Replica(values, self.welcome.quantum_exponent)
        kind = LocalFeedback if self.feedback_kind == "local" else SharedFeedback
        self.feedback = kind(np.zeros(self.run.elements, np.float32), self.replica)
        self.feedback.settle()
        self.began = self.feedback.parameters.astype(np.float64)
        self.snapshot_values = self.replica.values.copy()
        self.versions = dict(self.welcome.versions)
        self.versions[self.welcome.rank] = self.welcome.sequence
        self.mender = Mending(
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

    def on_part(self, values: bytearray, blocks: Blocks) -> tuple[int, ...]:
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

    def on_sum(self, total: Sum) -> None:
        (self.inbox if self.later is None else self.later).put_sum(total)
        self.sums += 1

    def on_correction(self, correction: EncodedUpdate) -> None:
        assert (self.rank, correction.sequence) not in self.run.ledger.corrections
        self.run.ledger.corrections[self.rank, correction.sequence] = correction.body
        self.inbox.put(None, correction)

    def on_delivered(self, size: int) -> None:
        self.delivered += 1

    def on_roster(self, peers: Sequence[Peer]) -> None:
        self.peers = peers

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
    def is_gone(self) -> bool:
        """Whether it is dead, or leaving, or has left."""
        return self.closed or self.leaving or not self.host.alive

    def step(self) -> None:
        """Train, encode, push, pull."""
        parameters = self.feedback.parameters
        before = parameters.astype(np.float64)
        change = self.random.normal(0, self.change, parameters.size).astype(np.float32)
        parameters[self.trains] += change[self.trains]
        self.came_in += parameters - before
        if self.lost is not None or self.stopping:
            return  # what was trained waits in the residual
        self.push(self.feedback.encode(multiple_of(2 * CHANGE, float(self.replica.quantum))))
        self.pull()

    def push(self, bodies: list[bytes]) -> None:
        based_on = total(self.versions, without=self.rank)
        for body in bodies:
            self.versions[self.rank] += 1
            self.run.ledger.encoded(self.name, self.rank, self.versions[self.rank], body)
            self.kept.put(OwnUpdate(self.versions[self.rank], based_on, body))
        self.sent += len(bodies)
        self.worker.push(bodies, based_on, self.now)
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
            self.done = True
            self.leave()
        return self.done

    def leave(self) -> None:
        self.leaving = True
        self.worker.leave("finished", self.now)
        self.run.network.turn(self.host)


class SimulatedRun:
    """A master and its workers.

    Parameters
    ----------
    seed : int
    link : Link
    elements : int
        Size of the model.
    idle_timeout_seconds, connect_timeout_seconds : float
    run_key : RunKey, optional
        Of the master; with it, everyone has a key, and all packets are sealed.
    resumed : Run, optional
        What the master begins with.
    writer : CheckpointWriter, optional
        What writes its checkpoints.
    watches_transport : bool
        Whether `support.invariants` looks on, which takes half as much time again.
    """

    def __init__(
        self,
        seed: int,
        link: Link,
        *,
        elements: int = 400,
        idle_timeout_seconds: float = 30.0,
        connect_timeout_seconds: float = 60.0,
        master: MasterConfig | None = None,
        decoder: Decoder | None = None,
        run_key: RunKey | None = None,
        resumed: Run | None = None,
        writer: CheckpointWriter | None = None,
        watches_transport: bool = True,
    ) -> None:
        self.network = SimulatedNetwork(seed, link)
        if watches_transport:
            self.invariants = Invariants(self.network)
        self.elements = elements
        self.digest_seconds = 0.2
        self.mismatches_expected = False
        """Whether the test damages replicas."""
        self.damage_may_stay = False
        """Whether damage may become part of the run: a worker was away with it, or the master
        got the run back with it."""
        self.layout = Layout((Tensor("weights", (elements,)),))
        self.ledger = Ledger()
        self.initial: Int32Array = np.zeros(elements, np.int32)
        self.config = ConnectionConfig(
            idle_timeout_seconds=idle_timeout_seconds,
            connect_timeout_seconds=connect_timeout_seconds,
        )
        self.dialled = MASTER
        """Whom workers dial that join."""
        self.workers: list[SimulatedWorker] = []
        self.observers: list[SimulatedWorker] = []
        self.run_key = run_key
        self.takes_back = False
        """Whether a worker may be given a replica that lacks what comes again."""
        self.drained: str | None = None
        """Why the master is drained, once it is."""
        self.time_ahead: dict[str, float] = {}
        """By the name in a key: how far the time of day of its owner is ahead, or behind."""
        self._greetings = count(1)
        self._names = count()
        settings = master or MasterConfig(idle_timeout_seconds=idle_timeout_seconds)
        self.settings = settings
        self.decoder = decoder
        self.masters = 0
        """How many have begun, one after the other."""
        self.start_master(resumed, writer)

    def start_master(
        self, resumed: Run | None = None, writer: CheckpointWriter | None = None
    ) -> None:
        """Let a master begin, that knows nothing unless it has a checkpoint."""
        settings = self.settings
        self.masters += 1
        self.metrics = ServerMetrics()
        if resumed is not None:
            self.initial = resumed.replica.values.copy()
        self.master = Master(
            settings,
            self.metrics,
            self.decoder,
            on_denied=self.on_denied,
            on_drained=self.on_drained,
            run=resumed,
            writer=writer,
        )
        self.master_endpoint = Endpoint(
            settings.connection,
            random_bytes=self.network.random.randbytes,
            connections_max=settings.connections_max,
            credentials=self.master_credentials,
        )
        self.master_host = self.network.add(MASTER, self.master_endpoint, self.master)

    def kill_master(self, *, back_after: float) -> None:
        """Let the master die without a word, and another one begin in its place."""
        self.network.kill(self.master_host)
        self.network.after(back_after, self.start_master_anew)

    def start_master_anew(self) -> None:
        """Let a master begin in the place of another one, as a daemon does."""
        self.start_master()
        self.master.begin(self.network.now)
        self.network.turn(self.master_host)

    def cut_off(self, worker: SimulatedWorker, seconds: float) -> None:
        """Let nothing through between a worker and the master, for some time."""
        for ends in ((worker.name, MASTER), (MASTER, worker.name)):
            self.network.set_link(*ends, Link(loss=1.0))
            self.network.after(seconds, partial(self.network.set_link, *ends, self.network.link))

    @property
    def random(self) -> Random:
        """The network's source of randomness."""
        return self.network.random

    @property
    def master_credentials(self) -> Credentials | None:
        """What the master lets others in by."""
        if self.run_key is None:
            return None
        return Credentials(
            keyring=Keyring([self.run_key]), unix_time_ns=self.unix_time_ns, instance=MASTER
        )

    def credentials(self, name: str, role: Role = Role.WORKER) -> Credentials | None:
        """Return what somebody dials the master with."""
        if self.run_key is None:
            return None
        return Credentials(
            key=self.run_key.worker_key(name, role), unix_time_ns=partial(self.unix_time_ns, name)
        )

    def unix_time_ns(self, name: str = MASTER) -> int:
        """Return the time of day: later with every call, or a second one would be a replay."""
        now = self.network.now + self.time_ahead.get(name, 0.0)
        return round(1e9 * now) + next(self._greetings)

    def on_denied(self, names: frozenset[str]) -> None:
        """Do what a daemon does."""
        assert self.run_key is not None
        self.master_endpoint.set_keyring(Keyring([self.run_key], names), self.network.now)

    def on_drained(self, reason: str) -> None:
        """Note that it is time to stop."""
        self.drained = reason

    def join(self, feedback: str = "local", key_name: str | None = None) -> SimulatedWorker:
        """Let another worker join."""
        name = f"worker{next(self._names)}"
        worker = SimulatedWorker(self, name, feedback, self.credentials(key_name or name))
        self.workers.append(worker)
        return worker

    def observe(self) -> SimulatedWorker:
        """Let an observer join."""
        name = f"observer{len(self.observers)}"
        credentials = self.credentials(name, Role.OBSERVER)
        observer = SimulatedWorker(self, name, "local", credentials)
        self.observers.append(observer)
        return observer

    def join_and_wait(self, n: int) -> None:
        """Let workers join, and wait until all are live."""
        joining = [self.join(self.random.choice(["local", "shared"])) for _ in range(n)]
        self.network.run(lambda: all(w.live for w in joining), seconds=120)

    def train(self, steps: int, *, interval: float = 0.05) -> None:
        """Let every live worker make so many steps, each at its own pace."""
        left = {w.name: steps for w in self.workers if w.live and not w.is_gone}

        def step(worker: SimulatedWorker) -> None:
            if worker.is_gone:
                del left[worker.name]
                return
            worker.step()
            left[worker.name] -= 1
            if left[worker.name]:
                self.network.after(interval * self.random.uniform(0.2, 2.0), lambda: step(worker))
            else:
                del left[worker.name]

        for worker in [w for w in self.workers if w.name in left]:
            self.network.after(interval * self.random.random(), lambda w=worker: step(w))  # type: ignore[misc]
        self.network.run(lambda: not left, seconds=600)

    def finish(self) -> None:
        """Let every live worker finish, and check what then has to be true."""
        finishing = [w for w in self.workers if w.live and not w.is_gone]
        for worker in finishing:
            self.network.after(0.2 * self.random.random(), worker.finish)
        everyone = finishing + [w for w in self.observers if w.live and not w.is_gone]
        runs = [self.master.run]

        def all_complete() -> bool:
            if self.master.run is not None:  # or the last worker has left, and an observer not yet
                runs[:] = [self.master.run]
            return sum(w.try_to_complete() for w in everyone) == len(everyone)

        self.network.run(all_complete, seconds=300)
        self.check_the_end(everyone, runs[0])
        self.network.run(lambda: all(w.closed for w in finishing), seconds=60)
        assert [w.error for w in finishing] == [None] * len(finishing)
        self.network.run(lambda: not len(self.master_endpoint), seconds=60)
        assert self.master.run is None

    # What has to be true.

    def check_the_end(self, workers: Sequence[SimulatedWorker], run: Run | None) -> None:
        """All have everything, exactly once, and the same bits."""
        assert run is not None
        if not self.mismatches_expected:
            assert self.metrics.digest_mismatches._value.get() == 0
            assert self.metrics.replica_damages._value.get() == 0
        versions = run.relay.versions
        everything = (self.initial + self.ledger.sum_of(versions, self.elements)).tobytes()
        if self.damage_may_stay:
            everything = run.replica.values.tobytes()
        assert run.replica.values.tobytes() == everything
        for worker in workers:
            # `Ledger.note` has seen to it that nothing was applied twice.
            for rank, sequence in versions.items():
                for each in range(1, sequence + 1):
                    assert self.ledger.applied[worker.name, rank, each] == 1
            assert worker.replica.values.tobytes() == everything
            assert worker.replica.digest() == run.replica.digest()
            assert worker.feedback.parameters.tobytes() == workers[0].feedback.parameters.tobytes()
            if not self.damage_may_stay:
                self.check_conservation(worker)

    def check_conservation(self, worker: SimulatedWorker) -> None:
        """Check that a worker has sent or still has all that its steps changed."""
        quantum = float(worker.replica.quantum)
        own = np.zeros(self.elements)
        for name, body in self.ledger.updates.items():
            if self.ledger.encoders[name] == worker.name:
                update = decode(body, self.elements)
                own[update.index] += update.change.astype(np.float64) * quantum
        rounding = 2.0**-24 * (worker.sent + worker.applied + 8) * 2
        assert np.abs(own + worker.residual_at_the_end - worker.came_in).max() <= rounding
