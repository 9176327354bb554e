"""A daemon on a simulated network, with several runs."""

from collections.abc import Callable, Sequence

import numpy as np

from gradwire_codecs import Replica, encode
from gradwire_protocol import Endpoint
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.updates import Finish, Finished, Leave
from gradwire_server.checkpoints.writer import CheckpointWriter
from gradwire_server.config import MasterConfig
from gradwire_server.metrics import ServerMetrics
from gradwire_server.runs.background import Background
from gradwire_server.runs.collector import RunsCollector
from gradwire_server.runs.orders import Order
from gradwire_server.runs.runs import Runs
from gradwire_server.state.run import Run
from gradwire_server.updates.decoding import Decoded, InlineDecoder
from support.network import SimulatedNetwork
from support.peer import LAYOUT, ScriptedPeer, join_request
from support.training import worker_id_of


def an_update(elements: int) -> bytes:
    change = np.zeros(elements, np.float32)
    change[0] = 0.25
    [body] = encode(change, Replica.zeros(elements), threshold=0.25)
    return body


class Decoders(Background):
    """Decoders of the masters, in the order they began, any of which can be made to fail."""

    def __init__(self, writers: Sequence[CheckpointWriter] = ()) -> None:
        self.made: list[BreakableDecoder] = []
        self._writers = iter(writers)

    def decoder(self, on_ready: Callable[[float], None]) -> "BreakableDecoder":
        self.made.append(BreakableDecoder())
        return self.made[-1]

    def writer(self, on_ready: Callable[[float], None]) -> CheckpointWriter | None:
        return next(self._writers, None)


class BreakableDecoder(InlineDecoder):
    """A decoder with an error in it, once it is broken."""

    broken = False

    def decode(
        self, origin: int, body: bytes, elements: int, done: Callable[[Decoded], None]
    ) -> None:
        if self.broken:
            raise LookupError("nobody has thought of this")
        super().decode(origin, body, elements, done)


class Daemon:
    """The runs of a daemon, and peers that talk to them."""

    def __init__(
        self,
        config: MasterConfig | None = None,
        *,
        resumed: Sequence[Run] = (),
        writers: Sequence[CheckpointWriter] = (),
    ) -> None:
        self.config = config or MasterConfig(recovery_seconds=0)
        self.network = SimulatedNetwork(1)
        self.background = Decoders(writers)
        self.failed: list[tuple[str, Exception]] = []
        self.drained: list[str] = []
        self.runs = Runs(
            self.config,
            ServerMetrics(),
            self.background,
            resumed=resumed,
            on_drained=self.drained.append,
            on_failed=lambda run, error: self.failed.append((run, error)),
        )
        self.endpoint = Endpoint(
            self.config.connection,
            random_bytes=self.network.random.randbytes,
            connections_max=self.config.connections_max,
        )
        self.host = self.network.add("master", self.endpoint, self.runs)
        self.runs.begin(self.network.now)

    def dial(self, name: str) -> ScriptedPeer:
        return ScriptedPeer(self.network, name, dial="master")

    def ask(self, name: str, run: str | None = None, layout: Layout = LAYOUT) -> ScriptedPeer:
        """Let a worker ask to join."""
        peer = self.dial(name)
        join = join_request(run=run, name=name, worker_id=worker_id_of(name), layout=layout)
        peer.say(join)
        return peer

    def enter(self, name: str, run: str | None = None, layout: Layout = LAYOUT) -> ScriptedPeer:
        """Let a worker join, and begin the run if it is the first one."""
        peer = self.ask(name, run, layout)
        if peer.wait_for(Welcome).founder:
            peer.say_block(0, np.zeros(layout.elements, np.int32))
            self.until(lambda: self.run_of(peer).founded)
        return peer

    def run_of(self, peer: ScriptedPeer) -> Run:
        [welcome] = peer.all(Welcome)
        found = dict(self.runs.masters)[welcome.run].run
        assert found is not None
        return found

    def train(self, *peers: ScriptedPeer) -> None:
        """Let each send its next update, and wait until it is accepted."""
        for peer in peers:
            [welcome] = peer.all(Welcome)
            run = self.run_of(peer)
            sequence = run.relay.next_sequence(welcome.rank)
            peer.say_update(welcome.rank, sequence, an_update(run.layout.elements))
            self.until(lambda: run.relay.versions.get(welcome.rank, 0) == sequence)  # noqa: B023

    def finish(self, peer: ScriptedPeer, sequence: int) -> None:
        peer.say(Finish(sequence))
        peer.wait_for(Finished)
        peer.say(Leave(sequence, "done"))
        peer.wait_for_end()

    def order(self, action: str, name: str = "", run: str | None = None) -> str:
        try:
            return self.runs.order("operator", Order(action, name, run), self.network.now)
        finally:
            self.network.turn(self.host)

    def until(self, condition: Callable[[], bool]) -> None:
        self.network.run(condition, seconds=60)

    @property
    def names(self) -> list[str]:
        """The names of the runs in progress."""
        return [run["name"] for run in self.runs.status()["runs"]]

    def sample(self, name: str, run: str) -> float:
        [value] = [
            sample.value
            for family in RunsCollector(self.runs).collect()
            for sample in family.samples
            if sample.name == f"gradwire_{name}" and sample.labels == {"run": run}
        ]
        return value
