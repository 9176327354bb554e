"""`SimulatedRun`: a master and workers on a `SimulatedNetwork`, and what must be true of them.

Everything but the threads and the model is the production code. What workers and master have in the
end is compared with a `Ledger`; `support.invariants` watches the connections.
"""

from collections.abc import Sequence
from functools import partial
from itertools import count
from random import Random
from typing import Any
from zlib import crc32

import numpy as np

from gradwire_codecs import decode
from gradwire_codecs.arrays import Int32Array
from gradwire_protocol import ConnectionConfig, Credentials, Endpoint, Keyring, Role, RunKey
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.modes.mode import Mode
from gradwire_server.checkpoints.writer import CheckpointWriter
from gradwire_server.config import MasterConfig
from gradwire_server.master.master import Master
from gradwire_server.metrics import RunMetrics, ServerMetrics
from gradwire_server.runs.runs import Runs
from gradwire_server.state.roster import Phase
from gradwire_server.state.run import Run
from gradwire_server.updates.decoding import Decoder
from gradwire_server.updates.optimizer import layout_of
from support.invariants import Invariants
from support.ledger import Ledger
from support.network import Link, SimulatedNetwork
from support.peer import ScriptedPeer, join_request
from support.round_accounts import RoundAccounts
from support.runs import GivenBackground, value_of
from support.simulated_buffers import Range, SimulatedBuffers, check_the_end
from support.simulated_worker import SimulatedWorker

MASTER = "master"


def worker_id_of(name: str) -> bytes:
    """Return the id of a scripted peer."""
    return name.encode().ljust(WORKER_ID_BYTES, b".")


class SimulatedRun:
    """A master and its workers.

    With `buffer_steps` set before they join, some of them have buffers that are averaged.

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

    buffer_steps: int | None = None
    mode: Mode | None = None
    """What workers ask for that join."""

    def __init__(
        self,
        seed: int = 1,
        link: Link | None = None,
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
        self.network = SimulatedNetwork(seed, link or Link())
        self.seed = seed
        self.buffers_seen = Range()
        if watches_transport:
            self.invariants = Invariants(self.network)
        self.elements = elements
        self.mismatches_expected = False
        """Whether the test damages replicas."""
        self.damage_may_stay = False
        """Whether damage may become part of the run: a worker was away with it, or the master
        got the run back with it."""
        self.layout = Layout((Tensor("weights", (elements,)),))
        self.ledger = Ledger()
        self.round_accounts = RoundAccounts(elements)
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

    @property
    def master(self) -> Master:
        """The master of the only run."""
        return self.runs.first

    @property
    def metrics(self) -> RunMetrics:
        """The metrics of the only run."""
        return self.master.state.metrics

    @property
    def state(self) -> Run:
        """The run as the master has it."""
        assert self.master.run is not None
        return self.master.run

    @property
    def has_optimizer(self) -> bool:
        """Whether the master steps, by gradients."""
        return self.mode is not None and self.mode.optimizer is not None

    @property
    def replica_elements(self) -> int:
        """How many elements a replica has: the parameters, and a master's optimizer's state."""
        return layout_of(self.layout, self.mode or Mode()).elements

    def new_buffers(self, name: str) -> SimulatedBuffers | None:
        """Return the buffers of a worker, if it has any."""
        if self.buffer_steps is None or not crc32(name.encode()) % 4:
            return None
        return SimulatedBuffers(name, self.seed, self.buffers_seen)

    def start_master(
        self, resumed: Run | None = None, writer: CheckpointWriter | None = None
    ) -> None:
        """Let a master begin, that knows nothing unless it has a checkpoint."""
        settings = self.settings
        self.masters += 1
        if resumed is not None:
            self.initial = resumed.replica.values.copy()
        self.runs = Runs(
            settings,
            ServerMetrics(),
            GivenBackground(self.decoder, writer),
            on_denied=self.on_denied,
            on_drained=self.on_drained,
            resumed=[] if resumed is None else [resumed],
        )
        self.master_endpoint = Endpoint(
            settings.connection,
            random_bytes=self.network.random.randbytes,
            connections_max=settings.connections_max,
            credentials=self.master_credentials,
        )
        self.master_host = self.network.add(MASTER, self.master_endpoint, self.runs)

    def kill_master(self, *, back_after: float) -> None:
        """Let the master die without a word, and another one begin in its place."""
        self.network.kill(self.master_host)
        self.network.after(back_after, self.start_master_anew)

    def start_master_anew(self) -> None:
        """Let a master begin in the place of another one, as a daemon does."""
        self.start_master()
        self.runs.begin(self.network.now)
        self.network.turn(self.master_host)

    def separate(self, one: str, other: str, seconds: float) -> None:
        """Let nothing through between two hosts, for some time."""
        for ends in ((one, other), (other, one)):
            self.network.set_link(*ends, Link(loss=1.0))
            self.network.after(seconds, partial(self.network.set_link, *ends, self.network.link))

    def cut_off(self, worker: SimulatedWorker, seconds: float) -> None:
        """Let nothing through between a worker and the master, for some time."""
        self.separate(worker.name, MASTER, seconds)

    def lose_master(self, *workers: SimulatedWorker, back_after: float = 1.0) -> None:
        """Kill the master, and wait until these workers have lost it."""
        self.kill_master(back_after=back_after)
        self.network.run(lambda: all(worker.lost is not None for worker in workers), seconds=30)

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

    def join_and_wait(self, n: int, *, seconds: float = 120) -> list[SimulatedWorker]:
        """Let workers join, and wait until all are live; return these."""
        joining = [self.join(self.random.choice(["local", "shared"])) for _ in range(n)]
        self.network.run(lambda: all(w.live for w in joining), seconds=seconds)
        return joining

    @property
    def in_charge(self) -> Master | None:
        """The master that workers have to come back to."""
        return self.master

    def wait_until_all_are_back(self, *, seconds: float = 60) -> None:
        """Wait until all workers that are alive take part."""

        def are_back() -> bool:
            alive = [worker for worker in self.workers if not worker.is_gone]
            master = self.in_charge
            return (
                master is not None
                and all(worker.lost is None for worker in alive)
                and [m.phase for m in master.roster.workers] == [Phase.LIVE] * len(alive)
            )

        self.network.run(are_back, seconds=seconds)

    # Peers that a test makes say what it wants.

    def dial(
        self, name: str = "rogue", role: Role = Role.WORKER, *, address: str | None = None
    ) -> ScriptedPeer:
        """Return a peer that has dialled the master, with a key where the master has one."""
        credentials = self.credentials(name, role)
        return ScriptedPeer(self.network, address or name, dial=MASTER, credentials=credentials)

    def ask_to_join(
        self, name: str = "rogue", role: Role = Role.WORKER, **fields: Any
    ) -> ScriptedPeer:
        """Return a peer that has sent JOIN, with an id made of its name.

        `fields` are those of `join_request` that differ.
        """
        peer = self.dial(name, role)
        usual = {"layout": self.layout, "name": name, "worker_id": worker_id_of(name)}
        peer.say(join_request(**{**usual, **fields}))
        return peer

    def enter(self, name: str = "rogue", role: Role = Role.WORKER, **fields: Any) -> ScriptedPeer:
        """Return a peer that the master has let in; it may lack the replica."""
        peer = self.ask_to_join(name, role, **fields)
        peer.wait_for(Welcome)
        return peer

    def turn_master(self) -> None:
        """Let the master send what a test has made it say."""
        self.network.turn(self.master_host)

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

    def sample(self, name: str, **labels: str) -> float:
        """Return the value of a metric of the master."""
        value = value_of(self.runs, f"gradwire_{name}", labels)
        assert value is not None, f"there is no metric {name} with {labels}"
        return value

    def check_the_end(self, workers: Sequence[SimulatedWorker], run: Run | None) -> None:
        """All have everything, exactly once, and the same bits."""
        assert run is not None
        if not self.mismatches_expected:
            assert self.sample("digest_mismatches_total") == 0
        with_buffers = [worker for worker in workers if worker.module is not None]
        check_the_end(
            run,
            [worker.module for worker in with_buffers if worker.module is not None],
            [worker.rank for worker in with_buffers if worker not in self.observers],
        )
        if run.rounds is not None:
            self.round_accounts.check(run.relay.versions)
        versions = run.relayed(run.relay.versions)
        everything = (self.initial + self.ledger.sum_of(versions, self.replica_elements)).tobytes()
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
            if not self.damage_may_stay and not worker.may_multiply_damage:
                self.check_conservation(worker)

    def check_conservation(self, worker: SimulatedWorker) -> None:
        """Check that a worker has sent or still has all that its steps changed, but for a decay."""
        quantum = float(worker.sends_from.replica.quantum)
        own = np.zeros(worker.came_in.size)
        for name, body in self.ledger.updates.items():
            if self.ledger.encoders[name] == worker.name:
                update = decode(body, self.replica_elements)
                is_own = update.index < own.size
                own[update.index[is_own]] += update.change[is_own].astype(np.float64) * quantum
        rounding = 2.0**-24 * (worker.sent + worker.applied + 8) * 2
        found = own + worker.residual_at_the_end + worker.forgotten
        assert np.abs(found - worker.came_in).max() <= rounding
